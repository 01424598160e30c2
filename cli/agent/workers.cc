#include "cli/agent/workers.h"

#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <utility>

#include "cli/agent/process_state.h"
#include "cli/agent/worker_environment.h"
#include "cli/command_check.h"
#include "cli/exit_code.h"
#include "cli/failure_report.h"
#include "cli/interfaces.h"
#include "cli/messages.h"
#include "cli/pipe.h"
#include "cli/quoted.h"
#include "runtime/base/env.h"
#include "runtime/base/fault_point.h"
#include "runtime/base/usable_cpus.h"

namespace hvd {
namespace {

constexpr int kOomScoreMore = 500, kOomScoreMax = 1000;

// The kernel takes a worker before hvdrun or the agent, whatever they have themselves.
int worker_oom_score() {
  int own = 0;
  std::ifstream("/proc/self/oom_score_adj") >> own;
  return std::min(own + kOomScoreMore, kOomScoreMax);
}

// A machine's CPUs are shared by the ranks of all its hosts.
int threads_for_each(const std::vector<std::string>& users, const proto::StartWorkers& start) {
  std::set<int> with_own;
  for (const proto::RankVariable& own : start.of_ranks())
    if (is_set_in({&own.entry(), 1}, kThreadsVariable))
      with_own.insert(own.ranks().begin(), own.ranks().end());
  const bool all_own = int(with_own.size()) == start.worlds_size();
  if (all_own || is_set_in(users, kThreadsVariable)) return 0;
  return std::max(1, usable_cpus() / std::max({1, start.worlds_size(), start.machine_ranks()}));
}

// The user's environment, with what is this host's own to say.
std::vector<std::string> with_own(const proto::StartWorkers& start) {
  std::vector<std::string> all(start.environment().begin(), start.environment().end());
  for (const std::string& name : start.own())
    if (const auto value = env::get(name.c_str())) all.push_back(name + "=" + *value);
  return all;
}

int64_t nanoseconds(Clock::duration span) { return std::chrono::nanoseconds(span).count(); }

// `status`: as waitpid() has it.
void set_end(proto::RankEnd& end, pid_t pid, std::optional<int> status) {
  const int how = status.value_or(0);
  end.set_pid(pid);
  end.set_unknown(!status);
  end.set_killed(WIFSIGNALED(how));
  end.set_status(end.killed() ? WTERMSIG(how) : WEXITSTATUS(how));
}

// A command that went on until it was ended, or makes nothing of its program's failure, tells less
// of it than that program's own end.
void set_end_of_speaker(const Worker& worker, proto::RankEnd& end) {
  const SpeakerDeath& first = *worker.speaker;
  end.set_order(first.order);
  end.set_batch(first.batch);
  end.set_at_clock_ns(nanoseconds(first.at.time_since_epoch()));
  const bool ended_well = !end.killed() && end.status() == 0;
  if (worker.sent_signal == 0 && !ended_well) return;
  set_end(end, first.death.pid, first.death.status);
  end.set_run_ns(nanoseconds(first.at - worker.started));
  end.set_sent_signal(0);
}

bool has_ended(const Worker& worker) {
  pollfd ended{worker.pidfd.get(), POLLIN, 0};
  return poll(&ended, 1, 0) > 0;
}

}  // namespace

Workers::Workers(Loop& loop, proto::StartWorkers start, std::string job, int held_port,
                 std::function<std::string(int slot)> agent_address,
                 std::function<void(int rank)> ready)
    : loop_(loop),
      start_(std::move(start)),
      job_(std::move(job)),
      agent_address_(std::move(agent_address)),
      ready_(std::move(ready)),
      users_environment_(with_own(start_)),
      chosen_(start_.chosen().begin(), start_.chosen().end()),
      master_port_(start_.master_port() > 0 ? start_.master_port() : held_port),
      threads_each_(threads_for_each(users_environment_, start_)),
      interface_(start_.interface().empty() ? loopback_interface() : start_.interface()),
      oom_score_(worker_oom_score()),
      null_(open_null()),
      workers_(size_t(start_.worlds_size())) {
  // As where hvdrun runs, as far as this host allows it.
  for (const proto::ResourceLimit& limit : start_.limits()) {
    rlimit here{};
    getrlimit(__rlimit_resource_t(limit.resource()), &here);
    limits_.push_back({limit.resource(),
                       {std::min<rlim_t>(limit.soft(), here.rlim_max),
                        std::min<rlim_t>(limit.hard(), here.rlim_max)}});
    if (limit.soft() <= here.rlim_max) continue;
    proto::ResourceLimit& lowered = *lowered_.Add();
    lowered.set_resource(limit.resource());
    lowered.set_soft(here.rlim_max);
    lowered.set_hard(here.rlim_max);
  }
  for (int i = 0; i < start_.worlds_size(); ++i)
    workers_[size_t(i)].world = from_proto(start_.worlds(i));
}

std::vector<std::string> Workers::environment_of(int slot) const {
  WorkerPlace place;
  place.world = workers_[size_t(slot)].world;
  place.job = job_;
  place.agent_address = agent_address_(slot);
  place.group_rank = start_.group_rank();
  place.group_size = start_.group_size();
  place.master_address = start_.master_address();
  place.master_port = master_port_;
  place.interface = interface_;
  place.interface_by_ipv6 = start_.interface_by_ipv6();
  place.threads_each = threads_each_;
  std::vector<std::string> chosen = chosen_, entries;
  for (const proto::RankVariable& own : start_.of_ranks()) {
    if (std::ranges::find(own.ranks(), place.world.rank) == own.ranks().end()) continue;
    entries.push_back(own.entry());
    chosen.push_back(own.entry().substr(0, own.entry().find('=')));
  }
  return worker_environment(with_entries(users_environment_, entries), chosen, place);
}

proto::SpawnFailed Workers::failure_of(const Worker& worker, const SpawnResult& result,
                                       const std::vector<std::string>& command, bool far) const {
  const std::string step = result.step;
  proto::SpawnFailed failure;
  failure.set_rank(worker.world.rank);
  failure.set_error(result.error);
  failure.set_step(step == "chdir" ? step + " to " + shell_word(start_.directory()) : step);
  const CommandPlace place{
      .command = command,
      .program = start_.argv(0) == command[0] ? "" : start_.argv(0),
      .directory = start_.directory(),
      .path = value_in(environment_of(slot_of(worker)), "PATH", kDefaultPath),
      .start = "hvdrun ...",  // and the user's options, of which nothing is known here
      .far = far};
  if (step == "chdir" && result.error == ENOENT)
    failure.set_advice(missing_directory_advice(place));
  if (step != "exec" || exit_code_of_spawn(result.error) == kExitOwnFailure) return failure;
  if (const auto refusal = check_command(place))
    failure.set_advice(refusal->message);
  else if (result.error == ENOEXEC)
    failure.set_advice("it is no program that this machine knows; build it for this one");
  return failure;
}

SpawnResult Workers::start_next() {
  fault_point("agent_spawn");
  Worker& worker = workers_[tried_++];
  Pipe out = make_pipe(), err = make_pipe(), in;
  const bool with_stdin =
      start_.stdin() == proto::ALL || (start_.stdin() == proto::RANK_0 && worker.world.rank == 0);
  if (with_stdin) in = make_pipe();
  const std::vector<std::string> environment = environment_of(slot_of(worker));
  std::vector<const char*> entries;
  for (const std::string& entry : environment) entries.push_back(entry.c_str());
  entries.push_back(nullptr);
  SpawnOptions options;
  options.argv.assign(start_.argv().begin(), start_.argv().end());
  options.path = value_in(environment, "PATH", kDefaultPath);
  options.environment = entries.data();
  if (!start_.directory().empty()) options.directory = start_.directory().c_str();
  options.stdin_fd = with_stdin ? in.read.get() : null_.get();
  options.stdout_fd = out.write.get();
  options.stderr_fd = err.write.get();
  options.parent_death_signal = true;
  options.new_session = true;
  options.oom_score_adj = oom_score_;
  options.file_mask = int(start_.file_mask());
  options.limits = limits_;
  options.core_filter = int(start_.core_filter());
  options.ignored_signals = start_.ignored_signals();
  worker.started = Clock::now();
  SpawnResult result = spawn(options);
  if (result.pid == 0) return result;
  worker.pid = result.pid;
  worker.running = true;
  running_by_pid_[worker.pid] = worker.world.rank;
  worker.pidfd = std::move(result.pidfd);
  // By its edge, which comes again when a tracer that holds a dead rank lets it go.
  loop_.watch(worker.pidfd.get(), EPOLLIN | EPOLLET,
              [this, rank = worker.world.rank](uint32_t) { ready_(rank); });
  // One that was dead before it was watched would come behind those that died because of it. Who is
  // dead by then, too, but has not been seen to be, may have been first as well: all in one batch.
  if (has_ended(worker)) {
    note_death(worker.world.rank);
    for (const Worker& one : workers_)
      if (one.running && has_ended(one)) note_death(one.world.rank);
  }
  set_nonblocking(out.read.get());
  set_nonblocking(err.read.get());
  worker.stdout_read = std::move(out.read);
  worker.stderr_read = std::move(err.read);
  if (with_stdin) {
    set_nonblocking(in.write.get());
    worker.stdin_write = std::move(in.write);
  }
  fault_point("agent_spawned");
  return result;
}

Worker* Workers::of_rank(int rank) {
  const auto found = std::find_if(workers_.begin(), workers_.end(),
                                  [&](const Worker& one) { return one.world.rank == rank; });
  return found == workers_.end() ? nullptr : &*found;
}

std::optional<proto::RankEnd> Workers::reap(int rank) {
  Worker* worker = of_rank(rank);
  if (worker == nullptr || !worker->running) return std::nullopt;
  int status = 0;
  if (waitpid(worker->pid, &status, WNOHANG) != worker->pid) return std::nullopt;
  return ended(worker->pid, status);
}

std::optional<proto::RankEnd> Workers::ended(pid_t pid, int status) {
  const auto found = running_by_pid_.find(pid);
  if (found == running_by_pid_.end()) return std::nullopt;
  Worker& worker = *of_rank(found->second);
  running_by_pid_.erase(found);
  note_death(worker.world.rank);
  worker.running = false;
  loop_.unwatch(worker.pidfd.get());
  worker.pidfd.reset();
  proto::RankEnd end;
  end.set_rank(worker.world.rank);
  set_end(end, pid, status);
  end.set_run_ns(nanoseconds(worker.died - worker.started));
  end.set_at_clock_ns(nanoseconds(worker.died.time_since_epoch()));
  end.set_order(worker.death_order);
  end.set_batch(worker.death_batch);
  end.set_sent_signal(worker.found_ending ? 0 : worker.sent_signal);
  if (worker.speaker) set_end_of_speaker(worker, end);
  return end;
}

void Workers::note_death(int rank) {
  Worker* worker = of_rank(rank);
  if (worker == nullptr || worker->death_order != 0) return;
  worker->death_order = ++deaths_;
  worker->death_batch = batch_;
  worker->died = Clock::now();
}

std::string Workers::note_speaker_death(int rank, const Death& death, bool others_elsewhere) {
  Worker* worker = of_rank(rank);
  if (worker == nullptr) return "";
  if (death.pid == worker->pid) {
    note_death(rank);
    return "";
  }
  if (!death.breaks_epoch || worker->speaker || !worker->running) return "";
  worker->speaker = {death, ++deaths_, batch_, Clock::now()};
  proto::RankEnd end;
  set_end(end, death.pid, death.status);
  const bool ended_well =
      death.status && WIFEXITED(*death.status) && WEXITSTATUS(*death.status) == 0;
  const bool unknown_need = ended_well && others_elsewhere;  // who waits there is not known here
  std::string words = "rank " + std::to_string(rank) + " (pid " + std::to_string(death.pid) + ") " +
                      how_it_ended(from_proto(end)) +
                      (unknown_need ? " without shutdown()" : " while other ranks needed it") +
                      "; waiting for the end of its command (pid " + std::to_string(worker->pid) +
                      ")";
  if (!ended_well || others_elsewhere) return words;
  worker->speaker->words = std::move(words);
  return "";
}

std::vector<std::string> Workers::take_held_words(const std::function<bool(const Worker&)>& told) {
  std::vector<std::string> all;
  for (Worker& one : workers_) {
    if (!one.running || !one.speaker || one.speaker->words.empty()) continue;
    const bool waited = std::ranges::any_of(
        workers_, [&](const Worker& other) { return &other != &one && told(other); });
    if (waited) all.push_back(std::exchange(one.speaker->words, {}));
  }
  return all;
}

void Workers::pass(int signal) {
  for (const Worker& worker : workers_)
    if (worker.running) kill(worker.pid, signal);  // not reaped yet, so the pid is its own
}

void Workers::note_signal(pid_t pid, int signal) {
  const auto found = running_by_pid_.find(pid);
  if (found == running_by_pid_.end()) return;
  Worker& worker = *of_rank(found->second);
  if (worker.death_order != 0) return;
  if (worker.sent_signal == 0) {
    const std::optional<ProcessState> state = read_process_state(pid);
    worker.found_stopped = state && state->stopped();
    worker.found_ending = all_tasks_exiting(pid);
  }
  worker.sent_signal = signal;
}

}  // namespace hvd
