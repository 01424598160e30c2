#include "cli/messages.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "cli/agent/worker_environment.h"

namespace hvd {
namespace {

// Empty where it is gone since the job was checked: no rank can be started there.
std::string working_directory() {
  char here[PATH_MAX];
  return getcwd(here, sizeof here) != nullptr ? here : "";
}

mode_t current_umask() {
  const mode_t mask = umask(0);
  umask(mask);
  return mask;
}

proto::Stdin to_proto(StdinMode mode) {
  switch (mode) {
    case StdinMode::kRank0:
      return proto::RANK_0;
    case StdinMode::kNone:
      return proto::NONE;
    case StdinMode::kAll:
      break;
  }
  return proto::ALL;
}

}  // namespace

World from_proto(const proto::World& message) {
  World world;
  world.epoch = message.epoch();
  world.rank = message.rank();
  world.size = message.size();
  world.local_rank = message.local_rank();
  world.local_size = message.local_size();
  world.cross_rank = message.cross_rank();
  world.cross_size = message.cross_size();
  world.host = message.host();
  return world;
}

void to_proto(const World& world, proto::World& message) {
  message.set_epoch(world.epoch);
  message.set_rank(world.rank);
  message.set_size(world.size);
  message.set_local_rank(world.local_rank);
  message.set_local_size(world.local_size);
  message.set_cross_rank(world.cross_rank);
  message.set_cross_size(world.cross_size);
  message.set_host(world.host);
}

RankEnd from_proto(const proto::RankEnd& message) {
  RankEnd end;
  end.rank = message.rank();
  end.pid = message.pid();
  end.killed = message.killed();
  end.status = message.status();
  end.run_ns = message.run_ns();
  end.at_ns = message.at_ns();
  end.order = message.order();
  end.batch = message.batch();
  end.sent_signal = message.sent_signal();
  end.told = message.last().told();
  end.stranded_others = message.last().stranded_others();
  end.given_up = message.last().given_up();
  end.waited_in_vain = message.last().waited_in_vain();
  end.waited_for.assign(message.last().waited_for().begin(), message.last().waited_for().end());
  end.doing = message.last().doing();
  return end;
}

std::string describe(const proto::RankStatus& status) {
  std::string text = "rank " + std::to_string(status.rank()) + " ";
  text += status.claimed() ? status.doing() : "runs and has not called hvd::init()";
  if (status.output_blocked()) text += ", blocked in writing: nobody reads its output";
  if (status.state() == "T") text += ", stopped by a signal";
  if (status.state() == "t") text += ", held by a debugger";
  if (status.state() == "D") text += ", in an uninterruptible wait";
  return text;
}

std::string leftovers_note(const proto::Ended& ended) {
  const auto& stuck = ended.stuck();
  const auto beside = std::count_if(stuck.begin(), stuck.end(),
                                    [](const proto::Stuck& one) { return one.rank() < 0; });
  const auto count = ended.leftovers() - beside;
  if (count <= 0) return "";
  return "ended " + std::to_string(count) + (count == 1 ? " process" : " processes") +
         " that the ranks had left running";
}

std::string threads_note(int threads_each) {
  return "OMP_NUM_THREADS=" + std::to_string(threads_each) +
         " for each rank, its share of this machine's CPUs; set it to choose otherwise";
}

proto::StartWorkers start_message(const JobSpec& spec, const StartState& start,
                                  const std::vector<World>& worlds) {
  proto::StartWorkers message;
  for (const World& world : worlds) to_proto(world, *message.add_worlds());
  for (const std::string& word : spec.command) message.add_argv(word);
  for (const std::string& entry : with_settings(start.environment, spec.environment))
    message.add_environment(entry);
  for (const EnvironmentSetting& one : spec.environment) message.add_chosen(one.name);
  message.set_directory(spec.directory.empty() ? working_directory() : spec.directory);
  message.set_file_mask(current_umask());
  for (const RlimitValue& limit : start.limits) {
    proto::ResourceLimit& one = *message.add_limits();
    one.set_resource(limit.resource);
    one.set_soft(limit.value.rlim_cur);
    one.set_hard(limit.value.rlim_max);
  }
  message.set_ignored_signals(start.ignored_signals);
  message.set_stdin(to_proto(spec.stdin_mode));
  return message;
}

proto::ToAgent to_message(const action::StartEpoch& start) {
  proto::ToAgent message;
  message.mutable_start_epoch()->set_epoch(start.epoch);
  for (const action::Member& member : start.members) {
    message.mutable_start_epoch()->add_ranks(member.rank);
    to_proto(member.world, *message.mutable_start_epoch()->add_worlds());
  }
  return message;
}

proto::ToAgent to_message(const action::RefuseEpoch& refuse) {
  proto::ToAgent message;
  message.mutable_refuse_epoch()->set_reason(refuse.reason);
  return message;
}

proto::ToAgent to_message(const action::EndJob& end) {
  proto::ToAgent message;
  message.mutable_stop()->set_first_signal(end.first_signal);
  message.mutable_stop()->set_after_ms(int(end.after.count()));
  message.mutable_stop()->set_rank_failed(end.cause == EndCause::kRankFailed);
  return message;
}

}  // namespace hvd
