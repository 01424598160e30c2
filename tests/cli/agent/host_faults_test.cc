// What goes wrong around ranks: no descriptors left, a debugger that holds one, a death at every
// step of a meeting in the Store.
#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "cli/agent/epoch_memory.h"
#include "cli/agent/host_memory.h"
#include "cli/agent/process_state.h"
#include "rendezvous/agent_socket.h"
#include "runtime/agent_peers.h"
#include "runtime/base/error.h"
#include "tests/cli/agent/bare_rank.h"
#include "tests/support/catch.h"
#include "tests/support/host_job.h"
#include "tests/support/rank_program.h"
#include "tests/support/temporary_directory.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

// What each number of a board means.
enum Number { kReached, kOutcome, kGot, kStored };
enum Outcome : int64_t { kNothing, kFinished, kFailed, kOtherError };

constexpr int kRounds = 5;

int guarded(const std::function<void()>& body) {
  RankBoard& board = rank_board();
  try {
    body();
    board.numbers[kOutcome] = kFinished;
    return 0;
  } catch (const CommFailure& failure) {
    board.numbers[kOutcome] = kFailed;
    board.write(failure.what());
  } catch (const Error& error) {
    board.numbers[kOutcome] = kOtherError;
    board.write(error.what());
  }
  return 3;
}

const RankProgram comes_and_goes("come and go", [] {
  return guarded([] {
    AgentPeers peers(connect_to_agent());
    leave(peers);
  });
});

// Lives until the epoch breaks, and answers.
const RankProgram survivor("survive", [] {
  return guarded([] {
    AgentPeers peers(connect_to_agent());
    ControlBlock& block = peers.block();
    RankWords& mine = block.rank(peers.world().local_rank);
    rank_board().numbers[kReached] = 1;
    wait_for(peers, [&] {
      mine.seen = block.trouble.load();
      return mine.seen != 0;
    });
    mine.quiet = 1;
  });
});

// The first rank gives the word, the others answer, round by round. Whoever fails then looks which
// words are in the store: what is there can be read by all, what is not by nobody.
const RankProgram meetings("meetings", [] {
  std::optional<AgentPeers> peers;
  const int status = guarded([&] {
    peers.emplace(connect_to_agent());
    Store& store = peers->store();
    const World& world = peers->world();
    for (int round = 0; round < kRounds; ++round) {
      const std::string name = "round " + std::to_string(round);
      if (world.rank == 0) {
        store.set(name, to_bytes("go"));
        for (int other = 1; other < world.size; ++other)
          store.get(name + " rank " + std::to_string(other), Deadline::never());
      } else {
        const std::vector<std::string> keys{name};
        store.wait(keys, Deadline::never());
        store.set(name + " rank " + std::to_string(world.rank), {});
      }
      rank_board().numbers[kGot] = round + 1;
    }
    // Nobody leaves before all have answered for the last time, as in shutdown().
    const std::vector<std::string> end{"end"};
    world.rank == 0 ? store.set("end", {}) : store.wait(end, Deadline::never());
    leave(*peers);
  });
  for (int round = 0; peers && status != 0 && round < kRounds; ++round) try {
      peers->store().get("round " + std::to_string(round), Deadline::never());
      rank_board().numbers[kStored] += 1;
    } catch (const CommFailure&) {
      // nobody has set it, and nobody can any more
    }
  return status;
});

// The process has no more than `limit` descriptors, and the right to exceed it is put down.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t limit) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{limit, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
    syscall(SYS_capget, &header_, rights_);
    __user_cap_data_struct fewer[2];
    std::memcpy(fewer, rights_, sizeof fewer);
    fewer[0].effective &= ~(1u << CAP_SYS_RESOURCE | 1u << CAP_SYS_ADMIN);
    syscall(SYS_capset, &header_, fewer);
  }
  ~FewDescriptors() {
    syscall(SYS_capset, &header_, rights_);
    setrlimit(RLIMIT_NOFILE, &before_);
  }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
  __user_cap_header_struct header_{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct rights_[2]{};
};

// Descriptors that were sent and that nobody reads, as a stopped rank leaves them.
class Unread {
 public:
  explicit Unread(int count) {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    reader_.reset(ends[1]);
    AgentSocket sender{UniqueFd(ends[0])};
    AgentMessage message;
    message.kind = AgentMessage::kDoorbells;
    const std::vector<int> fds(100, 0);
    for (int sent = 0; sent < count; sent += 100) sender.send(message, fds);
  }

 private:
  UniqueFd reader_;
};

// Turns of the loop until `done`, or the time is over.
int turns(HostJob& job, const std::function<bool()>& done, std::chrono::milliseconds limit) {
  const Deadline deadline = Deadline::in(limit);
  int count = 0;
  for (; !done() && !deadline.passed(); ++count) {
    job.loop().turn(std::min(deadline.when(), job.memory().deadline().value_or(TimePoint::max())));
    job.memory().tick(Clock::now());
  }
  return count;
}

}  // namespace

TEST_CASE("host faults: a worker waits for descriptors without keeping the agent busy") {
  HostJob job({.ranks = 2, .program = "come and go"});
  const rlim_t limit = 256;
  std::optional<Unread> unread(
      500);  // first: as soon as the limit counts, so do others' descriptors
  FewDescriptors few(limit);
  const auto told = [&] { return !job.warnings().empty(); };
  turns(job, told, 60s);
  REQUIRE(told());
  CHECK_THAT(job.warnings()[0], Catch::Contains("ulimit -n"));
  const int seen = turns(job, [] { return false; }, 500ms);
  INFO(seen << " turns in half a second");
  CHECK(seen < 100);
  CHECK_FALSE(job.rank(0).status);
  unread.reset();
  REQUIRE(job.run());
  INFO(job.describe());
  CHECK(job.rank(0).status == 0);
  CHECK(job.rank(1).status == 0);
  CHECK(job.warnings().size() == 1);
}

// The sanitizer looks at an exception's type through a pipe, for which there is none either.
#if !defined(__SANITIZE_ADDRESS__)
TEST_CASE("host faults: a segment that finds no descriptors is refused with the limit to raise") {
  EpochMemory memory(1, 2, 2, 0);
  FewDescriptors few(256);
  std::vector<UniqueFd> taken;
  for (int fd; (fd = fcntl(0, F_DUPFD_CLOEXEC, 3)) >= 0;) taken.emplace_back(fd);
  CHECK_THROWS_WITH(memory.segment(0, 4096),
                    Catch::Contains("cannot be made: ") &&
                        Catch::Contains("raise the limit on open files (ulimit -n)"));
}
#endif

TEST_CASE("host faults: an agent without a descriptor for a new worker waits until there is one") {
  HostJob job({.ranks = 1, .program = "come and go"});
  std::vector<UniqueFd> taken;
  const rlim_t limit = 256;
  FewDescriptors few(limit);
  for (int fd; (fd = fcntl(0, F_DUPFD_CLOEXEC, 3)) >= 0;) taken.emplace_back(fd);
  const auto told = [&] { return !job.warnings().empty(); };
  turns(job, told, 60s);
  REQUIRE(told());
  CHECK(turns(job, [] { return false; }, 500ms) < 100);
  taken.clear();
  REQUIRE(job.run());
  INFO(job.describe());
  CHECK(job.rank(0).status == 0);
}

TEST_CASE("host faults: of who is dead it is known whether it ended by exit status 0") {
  for (const int end : {0, 3, -SIGSEGV}) {
    INFO(end);
    const pid_t child = fork();
    if (child == 0 && end < 0) {
      signal(-end, SIG_DFL);
      raise(-end);
    }
    if (child == 0) _exit(end);
    siginfo_t info{};
    REQUIRE(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
    CHECK(exits_well(child) == (end == 0));
    REQUIRE(waitpid(child, nullptr, 0) == child);
  }
  CHECK_FALSE(exits_well(getpid()));
}

TEST_CASE("host faults: a rank held by a debugger is not given up on, and answers when let go") {
  HostJob job(
      {.ranks = 3, .program = "survive", .memory = {.stopped_grace = 30ms, .grace = 100ms}});
  const auto reached = [&] {
    for (int i = 0; i < 3; ++i)
      if (job.board(i).numbers[kReached] == 0) return false;
    return true;
  };
  REQUIRE(job.run_until(reached));
  const pid_t held = job.rank(1).pid;
  REQUIRE(ptrace(PTRACE_SEIZE, held, nullptr, nullptr) == 0);
  REQUIRE(ptrace(PTRACE_INTERRUPT, held, nullptr, nullptr) == 0);
  int stop = 0;
  REQUIRE(waitpid(held, &stop, __WALL) == held);
  REQUIRE(read_process_state(held)->held_by_debugger());
  job.signal(0, SIGKILL);
  REQUIRE(job.run_until([&] { return job.rank(0).status.has_value(); }));
  // Ten times the grace.
  CHECK_FALSE(job.run_until([&] { return job.rank(1).status.has_value(); }, 1s));
  REQUIRE(ptrace(PTRACE_DETACH, held, nullptr, nullptr) == 0);
  REQUIRE(job.run());
  INFO(job.describe());
  CHECK(job.rank(1).status == 0);
  CHECK(job.rank(1).given_up.empty());
  CHECK(job.rank(2).status == 0);
}

TEST_CASE("host faults: killed at any step of meetings in the store") {
  TemporaryDirectory folder;
  const std::string counts = folder.path() / "counts";
  int killed = 0, failed = 0, finished = 0;
  for (int victim = 0; victim < 2; ++victim) {
    std::map<int, std::vector<std::string>> counted{{victim, {"HVD_FAULT_POINT=count:" + counts}}};
    HostJob whole({.ranks = 3, .program = "meetings", .rank_environment = counted});
    REQUIRE(whole.run());
    const long steps = count_fault_points(counts);
    unlink(counts.c_str());
    REQUIRE(steps > 20);
    for (long k = 1; k <= steps; ++k) {
      CAPTURE(victim, k, steps);
      HostJob job(
          {.ranks = 3,
           .program = "meetings",
           .rank_environment = {{victim, {"HVD_FAULT_POINT=*:" + std::to_string(k) + ":kill"}}}});
      const bool ended = job.run();
      INFO(job.describe());
      REQUIRE(ended);
      killed += job.rank(victim).status == 128 + SIGKILL;
      const RankBoard& one = job.board(victim == 0 ? 1 : 0);
      const RankBoard& other = job.board(2);
      REQUIRE(one.numbers[kOutcome] == other.numbers[kOutcome]);
      REQUIRE(one.numbers[kStored] == other.numbers[kStored]);
      (one.numbers[kOutcome] == kFinished ? finished : failed) += 1;
      if (one.numbers[kOutcome] == kFinished) continue;
      REQUIRE(one.numbers[kOutcome] == kFailed);
      for (const RankBoard* board : {&one, &other}) {
        REQUIRE(board->numbers[kGot] <= board->numbers[kStored]);
        REQUIRE_THAT(board->text, Catch::Contains("has died"));
      }
    }
  }
  WARN(killed << " killed, " << failed << " pairs of survivors failed, " << finished
              << " finished");
  CHECK(killed > 30);
  CHECK(failed > 20);
}
