// Claims, epochs, segments, the Store, deaths and questions, with ranks as processes and without
// hvdrun.
#include "cli/agent/host_memory.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <utility>

#include "rendezvous/agent_socket.h"
#include "runtime/agent_peers.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"
#include "tests/cli/agent/bare_rank.h"
#include "tests/support/catch.h"
#include "tests/support/host_job.h"
#include "tests/support/rank_program.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

// What each number of a board means.
enum Number { kReached, kValue, kCode, kTrouble, kOtherPid, kThread, kMayEnd };

// Runs the body; what it throws lands on the board.
int guarded(const std::function<void()>& body) {
  try {
    body();
    return 0;
  } catch (const CommFailure& failure) {
    rank_board().numbers[kCode] = 100;
    rank_board().write(failure.what());
  } catch (const Error& error) {
    rank_board().numbers[kCode] = static_cast<int>(error.code()) + 1;
    rank_board().write(error.what());
  }
  return 3;
}

const RankProgram meet("meet", [] {
  return guarded([] {
    AgentPeers peers(connect_to_agent());
    const World& world = peers.world();
    peers.store().set("rank " + std::to_string(world.rank), to_bytes(std::to_string(getpid())));
    for (int other = 0; other < world.size; ++other)
      peers.store().get("rank " + std::to_string(other), Deadline::in(30s));
    rank_board().numbers[kValue] = peers.store().add("sum", world.rank);
    rank_board().numbers[kReached] = world.local_rank + 1;
    leave(peers);
  });
});

std::byte* map_piece(const UniqueFd& fd, size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) throw Error(ErrorCode::kInternal, "mmap");
  return static_cast<std::byte*>(at);
}

std::vector<UniqueFd> get_segment(Peers& peers, uint32_t id, uint64_t bytes) {
  peers.request_segment(id, bytes);
  std::optional<std::vector<UniqueFd>> pieces;
  wait_for(peers, [&] { return (pieces = peers.take_segment(id)).has_value(); });
  return std::move(*pieces);
}

// Each rank writes into every rank's piece of two segments; then all look.
const RankProgram segments("segments", [] {
  return guarded([] {
    AgentPeers peers(connect_to_agent());
    const World& world = peers.world();
    const auto size = static_cast<size_t>(world.size);
    int right = 0;
    for (uint32_t id = 0; id < 2; ++id) {
      const std::vector<UniqueFd> pieces = get_segment(peers, id, 4096 * (id + 1));
      std::vector<std::byte*> at;
      for (const UniqueFd& piece : pieces) at.push_back(map_piece(piece, 4096 * (id + 1)));
      for (std::byte* piece : at) piece[world.rank] = std::byte(world.rank + 1);
      peers.store().add("written " + std::to_string(id), 1);
      const std::string all = std::to_string(world.size);
      while (peers.store().get("written " + std::to_string(id), Deadline::in(30s)) != to_bytes(all))
        std::this_thread::yield();
      for (std::byte* piece : at)
        for (size_t rank = 0; rank < size; ++rank) right += piece[rank] == std::byte(rank + 1);
    }
    rank_board().numbers[kValue] = right;
    leave(peers);
  });
});

// Lives until the epoch breaks, answers all questions, and notes what it saw.
void survive(Peers& peers) {
  ControlBlock& block = peers.block();
  RankWords& mine = block.rank(peers.world().local_rank);
  rank_board().numbers[kReached] = 1;
  wait_for(peers, [&] { return block.trouble != 0; });
  rank_board().numbers[kTrouble] = block.reason.load();
  peers.report_broken();
  mine.seen = block.trouble.load();
  mine.quiet = 1;
  wait_for(peers, [&] {
    mine.seen = block.trouble.load();
    for (int i = 0; i < peers.world().local_size; ++i)
      if (block.rank(i).dead == 0 && block.rank(i).quiet == 0) return false;
    return true;
  });
}

const RankProgram survivor("survive", [] {
  return guarded([] {
    AgentPeers peers(connect_to_agent());
    survive(peers);
  });
});

// Holds its robust mutex as the engine thread does, and waits to die. A child of its keeps its
// socket open, as a data loader may: the mutex alone speaks for its death.
const RankProgram victim("die", [] {
  return guarded([] {
    AgentPeers peers(connect_to_agent());
    if (peers.world().local_rank != 0) return survive(peers);
    const UniqueFd test(static_cast<int>(syscall(SYS_pidfd_open, getppid(), 0)));
    if (fork() == 0) {
      pollfd ended{test.get(), POLLIN, 0};
      while (rank_board().numbers[kMayEnd] == 0 && poll(&ended, 1, 5) == 0) {
      }
      _exit(0);
    }
    std::jthread engine([&] {
      pthread_mutex_lock(&peers.block().rank(0).life);
      rank_board().numbers[kThread] = gettid();
      rank_board().numbers[kReached] = 1;
      for (;;) pause();
    });
    for (;;) pause();
  });
});

// The kernel tells of a process's end when its last task is gone, and a traced one goes when its
// tracer has waited for it: until then the rank is dead and nobody can reap it. So it is for as
// long as the kernel frees the memory of a large one.
class HeldInExit {
 public:
  HeldInExit(HostJob& job, int rank)
      : job_(job), rank_(rank), thread_(static_cast<pid_t>(job.board(rank).numbers[kThread])) {
    REQUIRE(ptrace(PTRACE_SEIZE, thread_, nullptr, nullptr) == 0);
  }
  ~HeldInExit() { let_go(); }
  HeldInExit(const HeldInExit&) = delete;
  HeldInExit& operator=(const HeldInExit&) = delete;

  void let_go() {
    job_.board(rank_).numbers[kMayEnd] = 1;
    if (std::exchange(held_, false)) {
      job_.signal(rank_, SIGKILL);
      int status;
      waitpid(thread_, &status, __WALL);
    }
  }

 private:
  HostJob& job_;
  const int rank_;
  const pid_t thread_;
  bool held_ = true;
};

bool all_reached(HostJob& job, int ranks) {
  return job.run_until([&] {
    for (int i = 0; i < ranks; ++i)
      if (job.board(i).numbers[kReached] == 0) return false;
    return true;
  });
}

}  // namespace

TEST_CASE("host memory: ranks meet, count and leave") {
  HostJob job({.ranks = 4, .program = "meet"});
  REQUIRE(job.run());
  INFO(job.describe());
  int64_t most = 0;
  for (int i = 0; i < 4; ++i) {
    CHECK(job.rank(i).status == 0);
    CHECK(job.board(i).numbers[kReached] == i + 1);
    most = std::max<int64_t>(most, job.board(i).numbers[kValue]);
    const RankFacts facts = job.memory().facts(i);
    CHECK(facts.claimed);
    CHECK(facts.left);
    CHECK(facts.epoch == 1);
    CHECK_FALSE(facts.stranded_others);
  }
  CHECK(most == 0 + 1 + 2 + 3);
}

TEST_CASE("host memory: more descriptors than one message takes arrive whole") {
  HostJob job({.ranks = 140, .program = "meet"});
  REQUIRE(job.run());
  INFO(job.describe());
  for (int i = 0; i < 140; ++i) REQUIRE(job.rank(i).status == 0);
}

TEST_CASE("host memory: every rank maps every rank's piece of a segment") {
  HostJob job({.ranks = 3, .program = "segments"});
  REQUIRE(job.run());
  INFO(job.describe());
  for (int i = 0; i < 3; ++i) {
    CHECK(job.rank(i).status == 0);
    CHECK(job.board(i).numbers[kValue] == 2 * 3 * 3);
  }
}

TEST_CASE("host memory: a segment that is too large is refused to all, with the limit") {
  HostJob job({.ranks = 2, .program = "segments", .memory = {.segment_bytes_max = 4096}});
  REQUIRE(job.run());
  INFO(job.describe());
  for (int i = 0; i < 2; ++i) {
    CHECK(job.rank(i).status == 3);
    CHECK_THAT(job.board(i).text,
               Catch::Contains("segment 1 of 8192 bytes") && Catch::Contains("limit of 4096"));
  }
}

TEST_CASE("host memory: a rank's end without shutdown is a death that all hear of") {
  HostJob job({.ranks = 4, .program = "die"});
  REQUIRE(all_reached(job, 4));
  job.signal(0, SIGKILL);
  REQUIRE(job.run());
  job.board(0).numbers[kMayEnd] = 1;
  INFO(job.describe());
  CHECK(job.rank(0).status == 128 + SIGKILL);
  REQUIRE(job.rank(0).dead);
  const RankFacts facts = job.memory().facts(0);
  CHECK(facts.dead);
  CHECK(facts.stranded_others);
  CHECK_FALSE(facts.left);
  for (int i = 1; i < 4; ++i) {
    CHECK(job.rank(i).status == 0);
    CHECK(job.board(i).numbers[kTrouble] == static_cast<int64_t>(TroubleReason::kDeath));
  }
}

TEST_CASE("host memory: a death is told before the kernel lets its parent know") {
  HostJob job({.ranks = 3, .program = "die"});
  REQUIRE(all_reached(job, 3));
  HeldInExit held(job, 0);
  job.signal(0, SIGKILL);
  REQUIRE(job.run_until(
      [&] { return job.rank(1).status.has_value() && job.rank(2).status.has_value(); }, 30s));
  INFO(job.describe());
  // The survivors are through with it while nobody can have reaped it.
  CHECK_FALSE(job.rank(0).status);
  CHECK(job.rank(0).dead);
  for (int i = 1; i < 3; ++i) {
    CHECK(job.rank(i).status == 0);
    CHECK(job.board(i).numbers[kTrouble] == static_cast<int64_t>(TroubleReason::kDeath));
  }
  held.let_go();
  REQUIRE(job.run());
  CHECK(job.rank(0).status == 128 + SIGKILL);
  CHECK(job.rank(0).given_up.empty());
}

TEST_CASE("host memory: a stopped rank of a broken epoch is given up on, one that answers is not") {
  HostJob job({.ranks = 3, .program = "survive"});
  REQUIRE(all_reached(job, 3));
  job.signal(1, SIGSTOP);
  job.signal(0, SIGKILL);
  REQUIRE(job.run());
  INFO(job.describe());
  CHECK(job.rank(0).given_up.empty());
  CHECK(job.rank(1).given_up == "rank 0 has died; rank 1 was stopped and was given up on");
  CHECK(job.rank(1).status == 128 + SIGKILL);
  CHECK(job.rank(2).given_up.empty());
  CHECK(job.rank(2).status == 0);
}

TEST_CASE("host memory: while the job is suspended nobody is given up on") {
  HostJob job({.ranks = 2, .program = "survive"});
  REQUIRE(all_reached(job, 2));
  job.signal(1, SIGSTOP);
  job.memory().suspend();
  job.signal(0, SIGKILL);
  REQUIRE(job.run_until([&] { return job.rank(0).status.has_value(); }));
  CHECK_FALSE(job.run_until([&] { return job.rank(1).status.has_value(); }, 400ms));
  job.signal(1, SIGCONT);
  job.memory().resume();
  REQUIRE(job.run());
  INFO(job.describe());
  CHECK(job.rank(1).status == 0);
}

namespace {

const RankProgram store_waiter("wait in the store", [] {
  return guarded([] {
    AgentPeers peers(connect_to_agent());
    if (peers.world().local_rank == 0) {
      rank_board().numbers[kReached] = 1;
      for (;;) pause();
    }
    peers.store().get("never", Deadline::never());
  });
});

const RankProgram store_timeout("time out in the store", [] {
  return guarded([] {
    AgentPeers peers(connect_to_agent());
    if (peers.world().local_rank == 0)
      peers.store().get("never", Deadline::in(50ms));
    else
      peers.store().get("done", Deadline::never());
  });
});

const RankProgram forgetful("end without shutdown", [] {
  return guarded([] {
    AgentPeers peers(connect_to_agent());
    if (peers.world().local_rank != 0) return survive(peers);
    _exit(0);  // with its socket, which whoever looks for leaks would outlive
  });
});

// A program that replaces itself keeps its pid and loses its socket.
const RankProgram executes("exec", [] {
  return guarded([] {
    AgentPeers peers(connect_to_agent());
    if (peers.world().local_rank != 0) return survive(peers);
    execl("/bin/sleep", "sleep", "1000", nullptr);
  });
});

// A second process of the same rank.
const RankProgram twice("claim twice", [] {
  return guarded([] {
    auto link = connect_to_agent();
    connect_to_agent();
  });
});

const RankProgram stranger("claim another rank", [] {
  return guarded([] {
    AgentAddress address = AgentAddress::parse(env::get("HVD_AGENT").value_or(""));
    address.slot = address.slot == 0 ? 1 : 7;
    AgentConnection link(address);
  });
});

// An ended program's place may be taken by the next one of a script.
const RankProgram wrapper("wrapper", [] {
  return guarded([] {
    for (int i = 0; i < 2; ++i) {
      const pid_t child = fork();
      if (child == 0) {
        _exit(guarded([] {
          AgentPeers peers(connect_to_agent());
          rank_board().numbers[kReached] += 1;
          rank_board().numbers[kOtherPid] = getpid();
          leave(peers);
        }));
      }
      int status;
      waitpid(child, &status, 0);
      if (status != 0) _exit(4);
    }
  });
});

}  // namespace

TEST_CASE("host memory: who waits in the store is told of a death") {
  HostJob job({.ranks = 3, .program = "wait in the store"});
  REQUIRE(job.run_until([&] { return job.board(0).numbers[kReached] != 0; }));
  job.signal(0, SIGKILL);
  REQUIRE(job.run());
  INFO(job.describe());
  for (int i = 1; i < 3; ++i) {
    CHECK(job.board(i).numbers[kCode] == 100);
    CHECK_THAT(job.board(i).text, Catch::Equals("rank 0 has died; \"never\" is not in the store"));
  }
}

TEST_CASE("host memory: a wait in the store ends at its deadline and names who is missing") {
  HostJob job({.ranks = 2, .program = "time out in the store"});
  REQUIRE(job.run());
  INFO(job.describe());
  CHECK(job.board(0).numbers[kCode] == static_cast<int>(ErrorCode::kTimeout) + 1);
  CHECK_THAT(job.board(0).text, Catch::Contains("\"never\""));
  CHECK(job.board(1).numbers[kCode] == 100);  // rank 0 has ended
}

TEST_CASE("host memory: a rank that exits 0 while others go on is known to have stranded them") {
  HostJob job({.ranks = 2, .program = "end without shutdown"});
  REQUIRE(job.run());
  INFO(job.describe());
  CHECK(job.rank(0).status == 0);
  CHECK(job.memory().facts(0).stranded_others);
  CHECK_FALSE(job.memory().facts(1).stranded_others);
  CHECK(job.board(1).numbers[kTrouble] == static_cast<int64_t>(TroubleReason::kEnded));
}

TEST_CASE("host memory: a rank that lost its socket and lives on is given up on") {
  HostJob job({.ranks = 2, .program = "exec"});
  REQUIRE(job.run());
  INFO(job.describe());
  CHECK(job.rank(0).status == 128 + SIGKILL);
  CHECK_THAT(job.rank(0).given_up, Catch::Contains("did not answer"));
  CHECK(job.rank(1).status == 0);
  CHECK(job.board(1).numbers[kTrouble] == static_cast<int64_t>(TroubleReason::kLostSocket));
  REQUIRE(job.warnings().size() == 1);
  CHECK_THAT(job.warnings()[0], Catch::Contains("lives on"));
}

TEST_CASE(
    "host memory: a rank is claimed once, by its own worker, and whoever is refused is told") {
  HostJob first({.ranks = 1, .program = "claim twice"});
  REQUIRE(first.run());
  CHECK_THAT(first.board(0).text,
             Catch::Contains("claims rank 0, but process") &&
                 Catch::Contains("has done so before; a rank is one process: call hvd::init() in"));
  REQUIRE(first.warnings().size() == 1);

  HostJob second({.ranks = 2, .program = "claim another rank"});
  REQUIRE(second.run());
  INFO(second.describe());
  CHECK_THAT(second.board(0).text, Catch::Contains("it was started by rank 0; leave HVD_AGENT"));
  CHECK_THAT(second.board(1).text, Catch::Contains("place 7 of 2; leave HVD_AGENT") ||
                                       Catch::Contains("it was started by rank 1"));
}

TEST_CASE("host memory: the next program of a script may take the place of one that has left") {
  HostJob job({.ranks = 2, .program = "wrapper"});
  REQUIRE(job.run());
  INFO(job.describe());
  for (int i = 0; i < 2; ++i) {
    CHECK(job.rank(i).status == 0);
    CHECK(job.board(i).numbers[kReached] == 2);
    CHECK(job.memory().facts(i).pid == job.board(i).numbers[kOtherPid]);
  }
  CHECK(job.epochs() == 2);
}

TEST_CASE("host memory: init is refused to all who wait, and who has not asked is known") {
  HostJob* running = nullptr;
  std::vector<std::vector<int>> asked;
  HostJob job(
      {.ranks = 2, .program = "meet", .epoch_wanted = [&](const std::vector<int>& slots, bool all) {
         asked.push_back(slots);
         if (all) running->memory().refuse_init("rank 9 has not called hvd::init()", true);
       }});
  running = &job;
  REQUIRE(job.run());
  INFO(job.describe());
  REQUIRE(asked.size() >= 2);
  CHECK(asked[0].size() == 1);
  CHECK(asked[1] == std::vector<int>{0, 1});
  for (int i = 0; i < 2; ++i) {
    CHECK(job.board(i).numbers[kCode] == static_cast<int>(ErrorCode::kTimeout) + 1);
    CHECK_THAT(job.board(i).text, Catch::Equals("rank 9 has not called hvd::init()"));
    CHECK(job.memory().facts(i).status.told);
  }
}
