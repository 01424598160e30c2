#include "cli/messages.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "cli/after_cd.h"
#include "cli/agent/worker_environment.h"
#include "cli/quoted.h"
#include "rendezvous/socket_address.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"

namespace hvd {
namespace {

// With this from the session there Debian's bash reads ~/.bashrc for each script that begins
// without a SHLVL, as ranks do of a hvdrun under cron.
constexpr std::string_view kOfLogin = "SSH_CLIENT";

// Where ranks start: hvdrun's own directory is known without links, --wdir as it was named.
std::string whole_directory(const JobSpec& spec, const StartState& start) {
  return spec.directory.empty() ? start.directory : after_cd(start.directory, spec.directory);
}

// The same by the name that the user went by, or nothing.
std::string whole_named_directory(const JobSpec& spec, const StartState& start) {
  const bool leads_up = spec.directory.starts_with("..");  // from where links lead: by no name
  if (start.named_directory.empty() || leads_up || spec.directory.starts_with('/')) return "";
  return after_cd(start.named_directory, spec.directory);
}

mode_t current_umask() {
  const mode_t mask = umask(0);
  umask(mask);
  return mask;
}

constexpr std::pair<AgentMessage::Kind, proto::StoreQuestion::Kind> kStoreKinds[] = {
    {AgentMessage::kStoreSet, proto::StoreQuestion::SET},
    {AgentMessage::kStoreGet, proto::StoreQuestion::GET},
    {AgentMessage::kStoreWait, proto::StoreQuestion::WAIT},
    {AgentMessage::kStoreAdd, proto::StoreQuestion::ADD}};

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
  end.unknown = message.unknown();
  end.run_ns = message.run_ns();
  end.order = message.order();
  end.batch = message.batch();
  end.sent_signal = message.sent_signal();
  end.told = message.last().told();
  end.stranded_others = message.last().stranded_others();
  end.given_up = printable(message.last().given_up());
  end.waited_in_vain = printable(message.last().waited_in_vain());
  end.waited_for.assign(message.last().waited_for().begin(), message.last().waited_for().end());
  end.doing = printable(message.last().doing());
  if (message.last().state() == "T")
    end.doing += end.doing.empty() ? "was stopped by a signal" : ", stopped by a signal";
  return end;
}

proto::StoreQuestion to_proto(const AgentMessage& question, int rank) {
  proto::StoreQuestion message;
  message.set_epoch(question.epoch);
  message.set_rank(rank);
  for (const auto& [kind, number] : kStoreKinds)
    if (question.kind == kind) message.set_kind(number);
  message.set_id(question.id);
  message.set_key(question.key);
  message.set_value(question.value);
  message.set_body(question.text());
  return message;
}

AgentMessage from_proto(const proto::StoreQuestion& message) {
  AgentMessage question;
  for (const auto& [kind, number] : kStoreKinds)
    if (message.kind() == number) question.kind = kind;
  question.epoch = message.epoch();
  question.id = message.id();
  question.key = message.key();
  question.value = message.value();
  question.body = to_bytes(message.body());
  return question;
}

proto::StoreAnswer answer_to_proto(const AgentMessage& answer, int rank) {
  proto::StoreAnswer message;
  message.set_epoch(answer.epoch);
  message.set_rank(rank);
  message.set_id(answer.id);
  message.set_refused(answer.kind == AgentMessage::kStoreRefused);
  message.set_value(answer.value);
  message.set_body(answer.text());
  return message;
}

AgentMessage from_proto(const proto::StoreAnswer& message) {
  AgentMessage answer;
  answer.kind = message.refused() ? AgentMessage::kStoreRefused : AgentMessage::kStoreAnswer;
  answer.epoch = message.epoch();
  answer.id = message.id();
  answer.value = message.value();
  answer.body = to_bytes(message.body());
  return answer;
}

ListensAt listens_at(const proto::Listening& said, int place, const std::string& offered) {
  if (place >= std::min(said.addresses_size(), said.troubles_size()))
    return {{}, "is not listened on"};
  const std::string &address = said.addresses(place), &trouble = said.troubles(place);
  if (!trouble.empty() || address.empty())
    return {{}, trouble.empty() ? "is not listened on" : printable(head_of(trouble, kReasonMax))};
  try {
    // What stands behind % is an interface of one host.
    if (address.find('%') == address.npos) {
      const SocketAddress there = SocketAddress::parse(address);
      if (offered.empty() || there == SocketAddress::of(offered, there.port()))
        return {there.text(), {}};
      return {{}, "was told as " + hvd::in_quotes(address) + ", which that host has not offered"};
    }
  } catch (const Error&) {
  }
  return {{}, "was told as " + hvd::in_quotes(address) + ", which is no address for others"};
}

std::string describe(const proto::RankStatus& status) {
  std::string text = "rank " + std::to_string(status.rank()) + " ";
  text += status.claimed() ? printable(status.doing()) : "runs and has not called hvd::init()";
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

std::string threads_note(const JobSpec& spec, const std::map<int, int>& each, bool here) {
  std::set<int> threads;
  for (const auto& [host, count] : each)
    if (count > 0) threads.insert(count);
  if (threads.empty()) return "";
  const bool some_own = std::ranges::any_of(spec.environment, [](const EnvironmentSetting& one) {
    return one.name == kThreadsVariable && !one.ranks.empty();
  });
  return std::string(kThreadsVariable) + "=" + std::to_string(*threads.begin()) +
         (threads.size() > 1 ? " to " + std::to_string(*threads.rbegin()) : "") + " for each rank" +
         (some_own ? " that has none of its own" : "") + ", its share of " +
         (here ? "this machine's" : "its host's") + " CPUs; set it to choose otherwise";
}

std::string limit_note(const std::string& host, const proto::ResourceLimit& lowered,
                       const StartState& start) {
  const auto here = std::find_if(start.limits.begin(), start.limits.end(), [&](const auto& one) {
    return one.resource == lowered.resource();
  });
  const bool files = lowered.resource() == int(RLIMIT_NOFILE);
  if (here == start.limits.end() || (!files && lowered.resource() != int(RLIMIT_MEMLOCK)))
    return "";
  const auto text = [](uint64_t limit) {
    return limit == RLIM_INFINITY ? "unlimited" : std::to_string(limit);
  };
  return std::string(files ? "open files (ulimit -n)" : "bytes of locked memory (ulimit -l)") +
         " on " + host + ": " + text(lowered.soft()) + " for a rank, here " +
         text(here->value.rlim_cur) + "; raise the hard limit there if that is too few";
}

std::vector<std::string> users_environment(const JobSpec& spec, const StartState& start) {
  std::vector<EnvironmentSetting> settings;
  if (!spec.directory.empty()) settings.push_back({"PWD", whole_directory(spec, start)});
  settings.insert(settings.end(), spec.environment.begin(), spec.environment.end());
  return with_settings(start.environment, settings);
}

proto::StartWorkers start_message(const JobSpec& spec, const StartState& start,
                                  const std::vector<World>& worlds, int group_rank,
                                  int group_size) {
  proto::StartWorkers message;
  message.set_group_rank(group_rank);
  message.set_group_size(group_size);
  for (const World& world : worlds) to_proto(world, *message.add_worlds());
  for (const std::string& word : spec.command) message.add_argv(word);
  for (const std::string& entry : users_environment(spec, start)) message.add_environment(entry);
  for (const std::string& name : chosen_names(start.environment, spec.environment))
    message.add_chosen(name);
  for (const EnvironmentSetting& one : spec.environment) {
    proto::RankVariable own;
    for (const World& world : worlds)
      if (std::binary_search(one.ranks.begin(), one.ranks.end(), world.rank))
        own.add_ranks(world.rank);
    if (own.ranks().empty() || !one.value) continue;
    own.set_entry(one.name + "=" + *one.value);
    *message.add_of_ranks() = std::move(own);
  }
  message.set_directory(spec.directory);
  message.set_file_mask(current_umask());
  for (const RlimitValue& limit : start.limits) {
    proto::ResourceLimit& one = *message.add_limits();
    one.set_resource(limit.resource);
    one.set_soft(limit.value.rlim_cur);
    one.set_hard(limit.value.rlim_max);
  }
  message.set_core_filter(start.core_filter);
  message.set_ignored_signals(start.ignored_signals);
  message.set_stdin(to_proto(spec.stdin_mode));
  return message;
}

void set_interface(const InterfaceAddress& at, proto::StartWorkers& message) {
  message.set_interface(at.interface);
  message.set_interface_by_ipv6(at.address.find(':') != at.address.npos);
}

void make_remote(const JobSpec& spec, const StartState& start, proto::StartWorkers& message) {
  message.set_directory(whole_directory(spec, start));
  message.set_named_directory(whole_named_directory(spec, start));
  const auto& chosen = message.chosen();
  for (const std::string_view name : names_of_session())
    if (std::find(chosen.begin(), chosen.end(), name) == chosen.end())
      message.add_own(std::string(name));
  auto& entries = *message.mutable_environment();
  const auto is_own = [&](const std::string& entry) {
    const std::string name = entry.substr(0, entry.find('='));
    return std::ranges::find(message.own(), name) != message.own().end() ||
           (name == kOfLogin && std::ranges::find(chosen, name) == chosen.end());
  };
  entries.erase(std::remove_if(entries.begin(), entries.end(), is_own), entries.end());
}

proto::ToAgent to_message(const action::RefuseEpoch& refuse) {
  proto::ToAgent message;
  message.mutable_refuse_epoch()->set_reason(refuse.reason);
  message.mutable_refuse_epoch()->set_timed_out(refuse.timed_out);
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
