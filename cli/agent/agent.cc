#include "cli/agent/agent.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "cli/agent/host_memory.h"
#include "cli/agent/job_processes.h"
#include "cli/agent/keeper.h"
#include "cli/agent/process_state.h"
#include "cli/agent/streams.h"
#include "cli/agent/system_error_text.h"
#include "cli/agent/workers.h"
#include "cli/exit_code.h"
#include "cli/frame.h"
#include "cli/loop.h"
#include "cli/messages.h"
#include "cli/pipe.h"
#include "cli/signals.h"
#include "rendezvous/client.h"
#include "runtime/base/error.h"
#include "runtime/base/fault_point.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kBeat{1000};
constexpr int kSpawnsPerTurn = 8;  // the lease and orders are looked at in between

class Agent {
 public:
  Agent(Kept kept, int control_fd);
  int run();

 private:
  void on_lease();
  void on_frame(const FrameReader::Piece& piece);
  void on_bootstrap();
  void start_workers(const proto::StartWorkers& start);
  void on_control();
  void on_order(const proto::ToAgent& order);
  void on_worker_ended(int rank);
  void make_memory(const proto::StartWorkers& start);
  void start_epoch(const proto::StartEpoch& start);
  void fill_status(const Worker& worker, proto::RankStatus& status) const;
  void start_some();
  void note_end(std::optional<proto::RankEnd> end);
  void send_ends();
  void begin_end(proto::Ended::Why why, std::string reason, StopPlan plan);
  void describe();
  void say(const std::string& text);
  void beat(TimePoint now);
  void leave_when_done();
  void note_stuck();
  milliseconds stop_grace() const { return milliseconds(bootstrap_.stop_grace_ms()); }
  bool ranks_are_over() const;
  std::optional<TimePoint> next_deadline() const;

  Loop loop_;
  Kept kept_;
  SignalReader child_ends_;
  RendezvousClient client_;
  JobProcesses processes_;
  FrameReader frames_{false};
  std::string bootstrap_bytes_;
  proto::Bootstrap bootstrap_;
  bool bootstrapped_ = false;
  std::unique_ptr<HostMemory> memory_;  // a worker's slot is its place in workers_->all()
  std::unique_ptr<Workers> workers_;
  std::unique_ptr<OutputForwarder> output_;
  std::unique_ptr<StdinFeeder> stdin_;
  proto::RankEnds ends_;   // of this turn
  bool orphaned_ = false;  // hvdrun is gone: nobody to report to
  TimePoint next_beat_ = Clock::now() + kBeat;
  proto::Ended ended_;     // the first reason
  bool finished_ = false;  // the last word is out
};

Agent::Agent(Kept kept, int control_fd)
    : kept_(std::move(kept)),
      child_ends_({SIGCHLD}, 0),
      client_(UniqueFd(control_fd)),
      processes_({[this](pid_t pid) { return workers_ && workers_->is_running(pid); },
                  [this](pid_t pid, int status) {
                    if (workers_) note_end(workers_->ended(pid, status));
                  },
                  [this](pid_t pid, int signal) {
                    if (workers_) workers_->note_signal(pid, signal);
                    if (ended_.why() == proto::Ended::LEFTOVERS && signal == SIGTERM)
                      ended_.set_leftovers(ended_.leftovers() + 1);
                  }}) {
  set_nonblocking(0);
  set_nonblocking(kept_.keeper_lives.get());
  loop_.watch(0, EPOLLIN, [this](uint32_t) { on_lease(); });
  loop_.watch(child_ends_.fd(), EPOLLIN, [this](uint32_t) {
    child_ends_.take();
    processes_.reap_orphans();
  });
  loop_.watch(client_.wake_fd(), EPOLLIN, [this](uint32_t) { on_control(); });
  loop_.watch(kept_.keeper_lives.get(), 0, [this](uint32_t) {  // only EPOLLERR: its reader is gone
    loop_.unwatch(kept_.keeper_lives.get());
    begin_end(proto::Ended::KEEPER_LOST, "its keeper died", fence());
  });
}

void Agent::on_lease() {
  char buffer[64 << 10];
  const ssize_t n = read(0, buffer, sizeof buffer);
  if (n < 0) return;
  if (n == 0) {
    fault_point("agent_lease_lost");
    loop_.unwatch(0);
    orphaned_ = true;
    if (output_) output_->discard();
    begin_end(proto::Ended::LEASE_LOST, "hvdrun is gone", fence());
    return;
  }
  std::string_view input(buffer, size_t(n));
  FrameReader::Piece piece;
  while (frames_.next(input, piece)) on_frame(piece);
}

void Agent::on_frame(const FrameReader::Piece& piece) {
  if (piece.header.kind == FrameKind::kBootstrap && !bootstrapped_) {
    bootstrap_bytes_.append(piece.bytes);
    if (piece.last) on_bootstrap();
  } else if (piece.header.kind == FrameKind::kStdinData && stdin_) {
    stdin_->feed(piece.bytes);
  } else if (piece.header.kind == FrameKind::kStdinEof && stdin_) {
    stdin_->end();
  }
}

void Agent::on_bootstrap() {
  fault_point("agent_bootstrap");
  if (!bootstrap_.ParseFromString(bootstrap_bytes_))
    throw Error(ErrorCode::kInternal, "the bootstrap from hvdrun cannot be read");
  bootstrap_bytes_ = {};
  bootstrapped_ = true;
  proto::FromAgent hello;
  proto::Attached& attached = *hello.mutable_attached();
  attached.set_host(bootstrap_.host());
  attached.set_agent_pid(getpid());
  attached.set_keeper_pid(kept_.keeper_pid);
  client_.send(hello);
  if (bootstrap_.has_start() && !processes_.ending()) start_workers(bootstrap_.start());
  bootstrap_.clear_start();
}

void Agent::start_workers(const proto::StartWorkers& start) {
  if (workers_ || start.worlds_size() == 0 || start.argv_size() == 0)
    throw Error(ErrorCode::kInternal, "hvdrun's order to start workers makes no sense");
  make_memory(start);
  workers_ = std::make_unique<Workers>(
      loop_, start, bootstrap_.job(), [this](int slot) { return memory_->address(slot); },
      [this](int rank) { on_worker_ended(rank); });
  output_ = std::make_unique<OutputForwarder>(loop_, STDOUT_FILENO);
  size_t readers = 0;
  for (const Worker& worker : workers_->all())
    readers +=
        start.stdin() == proto::ALL || (start.stdin() == proto::RANK_0 && worker.world.rank == 0);
  stdin_ = std::make_unique<StdinFeeder>(loop_, readers, [this](size_t bytes) {
    proto::FromAgent message;
    message.mutable_stdin_taken()->set_bytes(int64_t(bytes));
    client_.send(message);
  });
}

void Agent::make_memory(const proto::StartWorkers& start) {
  HostMemoryOptions options;
  options.slots = start.worlds_size();
  for (const proto::World& world : start.worlds()) options.ranks.push_back(world.rank());
  const auto rank_of = [this](int slot) { return workers_->all()[size_t(slot)].world.rank; };
  HostMemoryEvents events;
  events.claimed = [this, rank_of](int slot, pid_t pid) {
    proto::FromAgent message;
    message.mutable_claimed()->set_rank(rank_of(slot));
    message.mutable_claimed()->set_pid(pid);
    client_.send(message);
  };
  events.epoch_wanted = [this, rank_of](const std::vector<int>& slots, bool) {
    proto::FromAgent message;
    for (int slot : slots) message.mutable_epoch_wanted()->add_ranks(rank_of(slot));
    client_.send(message);
  };
  events.dead = [this, rank_of](int slot) { workers_->note_death(rank_of(slot)); };
  events.held = [this, rank_of](const std::vector<Held>& all) {
    proto::FromAgent message;
    proto::Held& held = *message.mutable_held();
    for (const Held& one : all) {
      held.add_ranks(rank_of(one.slot));
      held.add_pids(one.pid);
    }
    client_.send(message);
  };
  events.given_up = [this](int, const std::string& why) { say(why); };
  events.warn = [this](const std::string& text) { say(text); };
  memory_ = std::make_unique<HostMemory>(loop_, std::move(options), std::move(events));
}

void Agent::start_epoch(const proto::StartEpoch& start) {
  std::vector<EpochMember> members;
  for (int i = 0; i < start.ranks_size() && i < start.worlds_size() && workers_; ++i)
    if (const Worker* worker = workers_->of_rank(start.ranks(i)))
      members.push_back({workers_->slot_of(*worker), from_proto(start.worlds(i))});
  if (!members.empty()) memory_->start_epoch(members);
}

void Agent::fill_status(const Worker& worker, proto::RankStatus& status) const {
  const RankFacts facts = memory_->facts(workers_->slot_of(worker));
  status.set_rank(worker.world.rank);
  status.set_claimed(facts.claimed);
  status.set_stranded_others(facts.stranded_others);
  status.set_given_up(facts.given_up);
  status.set_told(facts.status.told);
  status.set_waited_in_vain(facts.waited_in_vain);
  status.mutable_waited_for()->Add(facts.waited_for.begin(), facts.waited_for.end());
  if (facts.claimed) status.set_doing(facts.doing);
}

void Agent::on_control() {
  RendezvousClient::Incoming incoming = client_.take();
  for (const proto::ToAgent& order : incoming.messages) on_order(order);
  if (!incoming.closed) return;
  loop_.unwatch(client_.wake_fd());
  orphaned_ = true;
  if (!finished_) begin_end(proto::Ended::LEASE_LOST, "its stream to hvdrun broke", fence());
}

void Agent::on_order(const proto::ToAgent& order) {
  if (order.has_start()) {
    start_workers(order.start());
  } else if (order.has_stop()) {
    const proto::Stop& stop = order.stop();
    const milliseconds delay(stop.after_ms());
    begin_end(proto::Ended::ASKED, "asked to",
              stop.rank_failed() ? failure_end(stop_grace(), delay)
                                 : planned_end(stop.first_signal(), stop_grace(), delay));
  } else if (order.has_pass() && workers_) {
    workers_->pass(order.pass().signal());
  } else if (order.has_suspend()) {
    if (memory_) memory_->suspend();
    processes_.suspend();
    proto::FromAgent message;
    message.mutable_suspended();
    client_.send(message);
  } else if (order.has_resume()) {
    if (memory_) memory_->resume();
    processes_.resume();
  } else if (order.has_describe()) {
    describe();
  } else if (order.has_start_epoch()) {
    start_epoch(order.start_epoch());
  } else if (order.has_refuse_epoch() && memory_) {
    memory_->refuse_init(order.refuse_epoch().reason());
  }
}

void Agent::start_some() {
  proto::FromAgent message;
  proto::Started& started = *message.mutable_started();
  for (int i = 0; i < kSpawnsPerTurn && !workers_->all_tried(); ++i) {
    Worker& worker = workers_->next();
    const SpawnResult result = workers_->start_next();
    if (result.pid == 0) {
      proto::FromAgent failure;
      failure.mutable_spawn_failed()->set_rank(worker.world.rank);
      failure.mutable_spawn_failed()->set_error(result.error);
      failure.mutable_spawn_failed()->set_step(result.step);
      client_.send(failure);
      workers_->give_up_starting();  // hvdrun decides what becomes of the others
      break;
    }
    processes_.note_started();
    memory_->started(workers_->slot_of(worker), worker.pid);
    started.add_ranks(worker.world.rank);
    started.add_pids(worker.pid);
    output_->add(worker.world.rank, Stream::kStdout, std::move(worker.stdout_read));
    output_->add(worker.world.rank, Stream::kStderr, std::move(worker.stderr_read));
    if (worker.stdin_write) stdin_->attach(std::move(worker.stdin_write));
  }
  started.set_threads_each(workers_->threads_each());
  if (started.ranks_size() > 0) client_.send(message);
  if (!workers_->all_tried()) return;
  stdin_->expect_no_more();
  processes_.reap_orphans();  // proves at once that nothing is left, if nothing was started
}

void Agent::on_worker_ended(int rank) { note_end(workers_->reap(rank)); }

void Agent::note_end(std::optional<proto::RankEnd> end) {
  if (!end) return;
  fault_point("agent_rank_ended");
  const Worker& worker = *workers_->of_rank(end->rank());
  memory_->ended(workers_->slot_of(worker));
  fill_status(worker, *end->mutable_last());
  *ends_.add_ends() = std::move(*end);
}

void Agent::send_ends() {
  if (ends_.ends_size() == 0) return;
  proto::FromAgent message;
  *message.mutable_ends() = std::exchange(ends_, {});
  client_.send(message);
}

void Agent::say(const std::string& text) {
  proto::FromAgent message;
  message.mutable_said()->set_text(printable(text));
  client_.send(message);
}

void Agent::describe() {
  proto::FromAgent message;
  proto::RankStates& states = *message.mutable_states();
  if (workers_) {
    memory_->look_for_debuggers();
    for (const Worker& worker : workers_->all()) {
      if (!worker.running) continue;
      proto::RankStatus& status = *states.add_ranks();
      fill_status(worker, status);
      if (const auto state = read_process_state(worker.pid))
        status.set_state(std::string(1, state->letter));
      status.set_output_blocked(output_->blocks(worker.world.rank));
    }
  }
  client_.send(message);
}

// A second reason only ever makes the end come sooner.
void Agent::begin_end(proto::Ended::Why why, std::string reason, StopPlan plan) {
  fault_point("agent_begin_end");
  if (!processes_.ending()) {
    ended_.set_why(why);
    ended_.set_reason(std::move(reason));
  }
  if (workers_) {
    workers_->give_up_starting();
    stdin_->expect_no_more();
  }
  processes_.reap_orphans();
  if (memory_ && processes_.suspended()) memory_->resume();
  processes_.begin_end(std::move(plan), Clock::now());
}

void Agent::beat(TimePoint now) {
  next_beat_ = now + kBeat;
  if (processes_.suspended()) return;
  if (memory_) memory_->look_for_debuggers();
  proto::FromAgent message;
  message.mutable_beat();
  client_.send_if_idle(message);
}

bool Agent::ranks_are_over() const {
  if (!workers_) return processes_.ending();
  return workers_->all_tried() && workers_->running() == 0;
}

// Once KILL went out long ago nobody is waited for, rank or not.
void Agent::leave_when_done() {
  const TimePoint now = Clock::now();
  const bool gave_up = processes_.gave_up(now);
  if (finished_ || (!ranks_are_over() && !gave_up)) return;
  if (!processes_.nothing_left()) processes_.reap_orphans();
  if (!processes_.nothing_left() && !gave_up) {
    if (!processes_.ending())
      begin_end(proto::Ended::LEFTOVERS, "ranks left processes running",
                leftovers_end(stop_grace()));
    processes_.hurry(
        now);  // the ranks took the interrupt; what they started in the background did not
    return;
  }
  if (output_) {
    output_->drain();
    if (!output_->empty() && !orphaned_) return;  // a slow reader of hvdrun's is waited for
  }
  fault_point("agent_finish");
  finished_ = true;
  if (gave_up) note_stuck();
  send_ends();
  proto::FromAgent message;
  *message.mutable_ended() = ended_;
  client_.send(message);
  client_.finish();
}

// Who is still there now; a rank that is dead too, as long as its end cannot be had.
void Agent::note_stuck() {
  const auto rank_of = [this](pid_t pid) {
    if (workers_ && workers_->is_running(pid))
      for (const Worker& one : workers_->all())
        if (one.pid == pid) return one.world.rank;
    return -1;
  };
  if (workers_)
    for (const Worker& one : workers_->all()) on_worker_ended(one.world.rank);
  for (const Descendant& one : processes_.all()) {
    const int rank = rank_of(one.pid);
    if (!one.alive && rank < 0) continue;
    proto::Stuck& stuck = *ended_.add_stuck();
    stuck.set_rank(rank);
    stuck.set_pid(one.pid);
    stuck.set_why(why_not_ended(one, kill(one.pid, 0) == 0));
  }
}

std::optional<TimePoint> Agent::next_deadline() const {
  const TimePoint now = Clock::now();
  if ((workers_ && !workers_->all_tried()) || processes_.orphans_due()) return now;
  TimePoint soonest = next_beat_;
  if (output_)
    if (const auto at = output_->next_deadline()) soonest = std::min(soonest, *at);
  if (const auto at = processes_.next_deadline(now)) soonest = std::min(soonest, *at);
  if (memory_)
    if (const auto at = memory_->deadline()) soonest = std::min(soonest, *at);
  return soonest;
}

int Agent::run() {
  while (true) {
    loop_.turn(next_deadline());
    const TimePoint now = Clock::now();
    if (processes_.orphans_due()) processes_.reap_orphans();
    if (now >= next_beat_) beat(now);
    if (output_) output_->on_deadline(now);
    if (memory_) memory_->tick(now);
    if (workers_ && !workers_->all_tried()) start_some();
    if (!finished_) {  // what ends after the last word is nobody's news
      processes_.advance(Clock::now());
      send_ends();
    }
    if (workers_) workers_->begin_batch();
    leave_when_done();
    // What hvdrun has not read yet would be lost with us, the verdict with it: gRPC drops what it
    // reads together with a connection's end. hvdrun may be stopped for as long as its user likes;
    // its end is the lease's.
    if (finished_ && orphaned_) return ended_.stuck_size() > 0 ? kSomeAreStuck : 0;
  }
}

}  // namespace

bool is_agent(int argc, char** argv) {
  if (argc < 2 || std::string_view(argv[1]) != "agent") return false;
  return argc == (std::string_view(argv[0]) == "hvd-keeper" ? 3 : 2);
}

void run_agent(int argc, char** argv) {
  const int control_fd = argc == 3 ? std::atoi(argv[2]) : -1;
  struct stat control;
  if (fstat(control_fd, &control) != 0 || !S_ISSOCK(control.st_mode)) {
    std::fprintf(stderr,
                 "hvdrun: agent is a part of hvdrun's own, which it starts itself; a program "
                 "of that name is started by hvdrun -np 2 ./agent\n");
    _exit(kExitUsage);
  }
  try {
    Kept kept = become_kept(argc, argv, control_fd);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);  // an error of the memory that is asked for, see `ulimit -f`
    // It came by number and so without the flag: every worker would hold hvdrun's control stream
    // open.
    fcntl(control_fd, F_SETFD, FD_CLOEXEC);
    fault_point("agent_started");
    auto* agent =
        new Agent(std::move(kept), control_fd);  // never destroyed: the process leaves by _exit
    _exit(agent->run());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "agent: %s\n", text_of(error).c_str());
    _exit(125);
  }
}

}  // namespace hvd
