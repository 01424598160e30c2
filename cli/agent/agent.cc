#include "cli/agent/agent.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "cli/agent/agent_impl.h"
#include "cli/agent/process_state.h"
#include "cli/agent/system_error_text.h"
#include "cli/agent/worker_environment.h"
#include "cli/command_check.h"
#include "cli/exit_code.h"
#include "cli/frame.h"
#include "cli/loop.h"
#include "cli/messages.h"
#include "cli/pipe.h"
#include "cli/quoted.h"
#include "cli/signals.h"
#include "rendezvous/credentials.h"
#include "runtime/base/error.h"
#include "runtime/base/fault_point.h"
#include "runtime/base/last_words.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;
// What workers are started from comes one way or the other, and is checked before (job_check).
static_assert(kOrderBytesMax == kFrameBytesMax);
constexpr int kSpawnsPerTurn = 8;  // the lease and orders are looked at in between

// As a rank will be started: in its directory, by its path or where PATH finds it.
std::vector<Alternatives> looked_at_first(const proto::StartWorkers& start) {
  const std::vector<std::string> command{start.argv(0)};
  const std::vector<std::string> environment(start.environment().begin(),
                                             start.environment().end());
  const CommandPlace place{.command = command,
                           .program = "",
                           .directory = start.directory(),
                           .path = value_in(environment, "PATH", kDefaultPath),
                           .start = ""};
  return {{start.named_directory(), start.directory()}, candidates_of(place)};
}

}  // namespace

Agent::Agent(Kept kept)
    : kept_(std::move(kept)),
      child_ends_({SIGCHLD}, 0),
      uplink_(loop_, {[this](const proto::ToAgent& order) { on_order(order); },
                      [this](const std::string& why) { on_uplink_closed(why); }}),
      processes_({[this](pid_t pid) { return workers_ && workers_->is_running(pid); },
                  [this](pid_t pid, int status) {
                    if (workers_) note_end(workers_->ended(pid, status));
                  },
                  [this](pid_t pid, int signal) {
                    if (workers_) workers_->note_signal(pid, signal);
                    if (ended_.why() == proto::Ended::LEFTOVERS && signal == SIGTERM)
                      ended_.set_leftovers(ended_.leftovers() + 1);
                  },
                  [this] { end_words_of_ended(); }}),
      stdin_(loop_, [this](size_t bytes, bool gone) {
        proto::FromAgent message;
        message.mutable_stdin_taken()->set_bytes(int64_t(bytes));
        message.mutable_stdin_taken()->set_gone(gone);
        uplink_.send(message);
      }) {
  set_nonblocking(0);
  set_nonblocking(kept_.keeper_lives.get());
  loop_.watch(0, EPOLLIN, [this](uint32_t) { on_lease(); });
  loop_.watch(child_ends_.fd(), EPOLLIN, [this](uint32_t) {
    child_ends_.take();
    processes_.reap_orphans();
  });
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
  } else if (piece.header.kind == FrameKind::kStdinData) {
    stdin_.feed(piece.bytes);
  } else if (piece.header.kind == FrameKind::kStdinEof) {
    stdin_.end();
  }
}

void Agent::on_bootstrap() {
  fault_point("agent_bootstrap");
  if (!bootstrap_.ParseFromString(bootstrap_bytes_))
    throw Error(ErrorCode::kInternal, "the bootstrap from hvdrun cannot be read");
  bootstrap_bytes_ = {};
  bootstrapped_ = true;
  if (key_) connect();
  proto::FromAgent hello;
  proto::Attached& attached = *hello.mutable_attached();
  attached.set_host(bootstrap_.host());
  attached.set_agent_pid(getpid());
  attached.set_keeper_pid(kept_.keeper_pid);
  if (bootstrap_.hold_port()) held_port_ = hold_port(port_range());
  attached.set_master_port(held_port_.port);
  uplink_.send(hello);
  if (bootstrap_.has_start()) start_workers(bootstrap_.start());
  bootstrap_.clear_start();
}

// A program that needs none runs all the same.
void Agent::say_no_master_port(const proto::StartWorkers& start) {
  const bool has_first =
      std::ranges::any_of(start.worlds(), [](const proto::World& one) { return one.rank() == 0; });
  if (!has_first || held_port_.error == 0 || start.master_port() > 0) return;
  const PortRange ports = port_range();
  say("no port is left for MASTER_PORT where rank 0 runs" +
      (ports.high == 0 ? "" : ", " + range_text(ports)) + ": " + why_not(ports, held_port_.error));
}

// hvdrun itself has looked at what is here.
void Agent::look_first(const proto::StartWorkers& start) {
  host_ = start.worlds(0).host();
  first_look_ = std::make_unique<FirstLook>(loop_, looked_at_first(start),
                                            [this, start] { start_workers(start); });
}

// An order that comes when the end has begun (the keeper is dead, say) is too late.
void Agent::start_workers(proto::StartWorkers start) {
  if (processes_.ending()) return;
  if (workers_ || start.worlds_size() == 0 || start.argv_size() == 0)
    throw Error(ErrorCode::kInternal, "hvdrun's order to start workers makes no sense");
  if (key_ && !first_look_) return look_first(start);
  command_.assign(start.argv().begin(), start.argv().end());
  if (shipped_) start_from_shipped(*shipped_, start);
  find_directory(start);
  say_no_master_port(start);
  make_memory(start);
  workers_ = std::make_unique<Workers>(
      loop_, start, bootstrap_.job(), held_port_.port,
      [this](int slot) { return memory_->address(slot); },
      [this](int rank) { on_worker_ended(rank); });
  output_ = std::make_unique<OutputForwarder>(
      loop_, STDOUT_FILENO, key_ ? std::string_view() : kFrameMagic);  // with a key it has spoken
  size_t readers = 0;
  for (const Worker& worker : workers_->all())
    readers +=
        start.stdin() == proto::ALL || (start.stdin() == proto::RANK_0 && worker.world.rank == 0);
  stdin_.expect(readers);
}

void Agent::find_directory(proto::StartWorkers& start) {
  std::string directory = start.directory();
  if (struct stat facts{}; stat(start.named_directory().c_str(), &facts) == 0)
    directory = start.named_directory();
  else if (shipped_)
    directory = where_to_start(*shipped_, start.directory());
  if (directory == start.directory()) return;
  if (directory != start.named_directory())
    say("there is no " + start.directory() + "; its ranks start in " + directory +
        " (--wdir names another)");
  const auto& chosen = start.chosen();
  if (std::find(chosen.begin(), chosen.end(), "PWD") == chosen.end())
    for (std::string& entry : *start.mutable_environment())
      if (entry.starts_with("PWD=")) entry = "PWD=" + directory;
  start.set_directory(directory);
}

void Agent::make_memory(const proto::StartWorkers& start) {
  HostMemoryOptions options;
  options.slots = start.worlds_size();
  options.machine_ranks = start.machine_ranks();
  for (const proto::World& world : start.worlds()) options.ranks.push_back(world.rank());
  const auto rank_of = [this](int slot) { return workers_->all()[size_t(slot)].world.rank; };
  HostMemoryEvents events;
  events.claimed = [this, rank_of](int slot, pid_t pid) {
    proto::FromAgent message;
    message.mutable_claimed()->set_rank(rank_of(slot));
    message.mutable_claimed()->set_pid(pid);
    uplink_.send(message);
  };
  events.epoch_wanted = [this, rank_of](const std::vector<int>& slots, bool) {
    proto::FromAgent message;
    for (int slot : slots) message.mutable_epoch_wanted()->add_ranks(rank_of(slot));
    uplink_.send(message);
  };
  events.dead = [this, rank_of](int slot, const Death& death) {
    const std::string words =
        workers_->note_speaker_death(rank_of(slot), death, other_hosts_ != nullptr);
    if (!words.empty()) say(words);
  };
  events.held = [this, rank_of](const std::vector<Held>& all) {
    proto::FromAgent message;
    proto::Held& held = *message.mutable_held();
    for (const Held& one : all) {
      held.add_ranks(rank_of(one.slot));
      held.add_pids(one.pid);
    }
    uplink_.send(message);
  };
  events.given_up = [this](int, const std::string& why) { say(why); };
  events.warn = [this](const std::string& text) { say(text); };
  if (other_hosts_) other_hosts_->add_to(events, options.ranks);
  memory_ = std::make_unique<HostMemory>(loop_, std::move(options), std::move(events));
  if (other_hosts_) other_hosts_->use(*memory_);
  if (held_elsewhere_) memory_->hold_elsewhere(true);
}

void Agent::listen_for_links(const proto::ListenForLinks& order) {
  if (workers_ || other_hosts_)
    throw Error(ErrorCode::kInternal, "hvdrun's order to listen for links comes too late");
  if (!order.keep_port()) held_port_ = {};
  other_hosts_ = std::make_unique<OtherHosts>(
      loop_, bootstrap_.host(), order, uint16_t(held_port_.port),
      OtherHosts::Callbacks{[this](const proto::FromAgent& message) { uplink_.send(message); },
                            [this](const std::string& text) { say(text); }});
}

void Agent::start_epoch(const proto::StartEpoch& start) {
  std::vector<EpochMember> members;
  for (int i = 0; i < start.ranks_size() && i < start.worlds_size() && workers_; ++i)
    if (const Worker* worker = workers_->of_rank(start.ranks(i)))
      members.push_back({workers_->slot_of(*worker), from_proto(start.worlds(i))});
  for (const int rank : start.ranks())
    if (workers_) workers_->note_epoch(rank);
  if (members.empty()) return;
  if (other_hosts_) other_hosts_->start_epoch(start);
  memory_->start_epoch(members, started_as(start));
}

void Agent::fill_status(const Worker& worker, proto::RankStatus& status) const {
  const RankFacts facts = memory_->facts(workers_->slot_of(worker));
  status.set_rank(worker.world.rank);
  status.set_claimed(facts.claimed);
  status.set_stranded_others(facts.stranded_others || worker.speaker);
  status.set_given_up(facts.given_up);
  status.set_told(facts.status.told && !worker.speaker);
  status.set_waited_in_vain(facts.waited_in_vain);
  status.mutable_waited_for()->Add(facts.waited_for.begin(), facts.waited_for.end());
  if (facts.claimed) status.set_doing(facts.doing);
}

void Agent::connect() {
  const WallClock::time_point launcher = clock_of(bootstrap_.clock_s());
  if (const std::string why = clock_objection(launcher, WallClock::now()); !why.empty())
    throw Error(ErrorCode::kUnavailable, why);
  uplink_.connect({{bootstrap_.addresses().begin(), bootstrap_.addresses().end()},
                   key_->with(bootstrap_.authority(), bootstrap_.certificate()),
                   milliseconds(bootstrap_.start_timeout_ms())});
}

void Agent::on_uplink_closed(const std::string& why) {
  orphaned_ = true;
  if (finished_) return;
  begin_end(proto::Ended::LEASE_LOST, "its stream to hvdrun broke", fence());
  if (!why.empty()) write_last_words("agent: " + printable(why) + "\n");
}

void Agent::on_order(const proto::ToAgent& order) {
  if (order.has_start()) {
    start_workers(order.start());
  } else if (order.has_stop()) {
    const proto::Stop& stop = order.stop();
    const milliseconds delay(stop.after_ms());
    proto::FromAgent message;
    message.mutable_stopping();
    uplink_.send(message);
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
    uplink_.send(message);
  } else if (order.has_resume()) {
    if (memory_) memory_->resume();
    processes_.resume();
  } else if (order.has_describe()) {
    describe();
  } else if (order.has_listen_for_links()) {
    listen_for_links(order.listen_for_links());
  } else if (order.has_try_to_reach() && other_hosts_) {
    other_hosts_->on(order.try_to_reach());
  } else if (order.has_links_at() && other_hosts_) {
    other_hosts_->on(order.links_at());
  } else if (order.has_start_epoch()) {
    start_epoch(order.start_epoch());
  } else if (order.has_held_elsewhere()) {
    held_elsewhere_ = order.held_elsewhere().any();
    if (memory_) memory_->hold_elsewhere(held_elsewhere_);
  } else if (order.has_died() && memory_ && other_hosts_) {
    other_hosts_->on(order.died());
  } else if (order.has_broken() && memory_ && other_hosts_) {
    other_hosts_->on(order.broken());
  } else if (order.has_store_answer() && memory_ && other_hosts_) {
    other_hosts_->on(order.store_answer());
  } else if (order.has_refuse_epoch() && memory_) {
    memory_->refuse_init(order.refuse_epoch().reason(), order.refuse_epoch().timed_out());
  }
}

void Agent::start_some() {
  proto::FromAgent message;
  proto::Started& started = *message.mutable_started();
  for (int i = 0; i < kSpawnsPerTurn && !workers_->all_tried(); ++i) {
    if (i > 0 && loop_.pending()) break;  // a death, maybe: it goes before those of who starts now
    Worker& worker = workers_->next();
    const SpawnResult result = workers_->start_next();
    if (result.pid == 0) {
      proto::FromAgent failure;
      *failure.mutable_spawn_failed() =
          workers_->failure_of(worker, result, command_, key_ != nullptr);
      uplink_.send(failure);
      workers_->give_up_starting();  // hvdrun decides what becomes of the others
      break;
    }
    processes_.note_started();
    memory_->started(workers_->slot_of(worker), worker.pid);
    started.add_ranks(worker.world.rank);
    started.add_pids(worker.pid);
    output_->add(worker.world.rank, Stream::kStdout, std::move(worker.stdout_read));
    output_->add(worker.world.rank, Stream::kStderr, std::move(worker.stderr_read));
    if (worker.stdin_write) stdin_.attach(std::move(worker.stdin_write));
  }
  started.set_threads_each(workers_->threads_each());
  *started.mutable_lowered() = workers_->lowered();
  if (started.ranks_size() > 0) uplink_.send(message);
  if (!workers_->all_tried()) return;
  stdin_.expect_no_more();
  processes_.reap_orphans();  // proves at once that nothing is left, if nothing was started
}

// What they left is told to end.
void Agent::end_words_of_ended() {
  if (!output_) return;
  for (const Worker& worker : workers_->all())
    if (worker.pid != 0 && !worker.running) output_->end_own_words(worker.world.rank);
}

void Agent::on_worker_ended(int rank) { note_end(workers_->reap(rank)); }

void Agent::note_end(std::optional<proto::RankEnd> end) {
  if (!end) return;
  fault_point("agent_rank_ended");
  const Worker& worker = *workers_->of_rank(end->rank());
  memory_->ended(workers_->slot_of(worker), !end->killed() && end->status() == 0);
  fill_status(worker, *end->mutable_last());
  if (worker.found_stopped) end->mutable_last()->set_state("T");
  *ends_.add_ends() = std::move(*end);
}

void Agent::send_ends() {
  if (ends_.ends_size() == 0) return;
  proto::FromAgent message;
  *message.mutable_ends() = std::exchange(ends_, {});
  uplink_.send(message);
}

void Agent::say(const std::string& text) {
  proto::FromAgent message;
  message.mutable_said()->set_text(printable(text));
  uplink_.send(message);
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
  uplink_.send(message);
}

bool is_agent(int argc, char** argv) {
  if (argc < 2 || std::string_view(argv[1]) != "agent") return false;
  return argc == (std::string_view(argv[0]) == "hvd-keeper" ? 3 : 2);
}

int run_agent(Kept kept, std::unique_ptr<AgentKey> key, std::optional<Shipped> shipped) {
  auto* agent = new Agent(std::move(kept));  // never destroyed, as below
  agent->use(std::move(key));
  agent->use(std::move(shipped));
  return agent->run();
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
    auto* agent = new Agent(std::move(kept));  // never destroyed: the process leaves by _exit
    agent->use(UniqueFd(control_fd));
    _exit(agent->run());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "agent: %s\n", text_of(error).c_str());
    _exit(125);
  }
}

}  // namespace hvd
