// The public API with ranks as processes below the agent's part, without hvdrun: results, epochs,
// deaths. Those at every step are in ranks_killed_test.cc.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numeric>
#include <thread>

#include "hvd/hvd.h"
#include "tests/runtime/rank_outcome.h"
#include "tests/support/catch.h"
#include "tests/support/host_job.h"
#include "tests/support/rank_program.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

// Every collective once, in every form, checked.
void use_everything(int round) {
  const int me = rank(), all = size();
  std::vector<float> x(1000 + static_cast<size_t>(round), static_cast<float>(me + 1));
  allreduce_(x, {.op = ReduceOp::kSum});
  const int sum = all * (all + 1) / 2;
  expect(
      std::all_of(x.begin(), x.end(), [&](float one) { return one == static_cast<float>(sum); }));
  const std::vector<double> average = allreduce(std::vector<double>{double(me)}, {.name = "a"});
  expect(average[0] == double(all - 1) / 2);
  std::vector<int32_t> mine(static_cast<size_t>(me), me);
  const std::vector<int32_t> gathered = allgather(mine);
  expect(gathered.size() == static_cast<size_t>(all * (all - 1) / 2));
  expect(std::is_sorted(gathered.begin(), gathered.end()));
  std::vector<int64_t> sent(3, me == all - 1 ? round : -1);
  broadcast_(sent, all - 1);
  expect(sent == std::vector<int64_t>(3, round));
  auto later = allreduce_async(std::vector<int64_t>{1}, {.name = "later", .op = ReduceOp::kSum});
  auto parts = allgather_async(std::vector<uint8_t>{uint8_t(me)}, {.name = "parts"});
  barrier();
  expect(later.wait()[0] == all);
  expect(parts.wait().size() == static_cast<size_t>(all));
  const std::string text = "from rank " + std::to_string(me);
  const auto words = allgather_bytes(std::as_bytes(std::span(text)));
  expect(words.size() == static_cast<size_t>(all));
  expect(std::memcmp(words[0].data(), "from rank 0", 11) == 0);
  const auto letters = [&](int from) {  // of another length on every rank
    return std::string(static_cast<size_t>(100 * from + round), static_cast<char>('a' + from));
  };
  const std::string own = letters(me), last = letters(all - 1);
  const auto sent_bytes = broadcast_bytes(std::as_bytes(std::span(own)), all - 1);
  expect(std::ranges::equal(sent_bytes, std::as_bytes(std::span(last))));
}

const RankProgram everything("everything", [] {
  return guarded([] {
    init();
    use_everything(1);
    ArenaBuffer<float> buffer = arena_buffer<float>(100'000);
    std::iota(buffer.begin(), buffer.end(), static_cast<float>(rank()));
    allreduce_(buffer, {.op = ReduceOp::kMax});
    expect(buffer[0] == static_cast<float>(size() - 1));
    shutdown();
  });
});

const RankProgram epochs("a hundred epochs", [] {
  return guarded([] {
    for (int epoch = 0; epoch < 100; ++epoch) {
      init();
      std::vector<int64_t> x{epoch, rank()};
      allreduce_(x, {.op = ReduceOp::kSum});
      expect(x[0] == int64_t{epoch} * size());
      rank_board().numbers[kReached] = epoch + 1;
      shutdown();
    }
  });
});

// Each thread has two under way at once, begun in opposite orders by even and odd ranks.
const RankProgram threads("threads", [] {
  return guarded([] {
    init();
    std::vector<std::thread> others;
    for (int thread = 0; thread < 3; ++thread) {
      others.emplace_back([thread] {
        const std::string prefix = "thread " + std::to_string(thread) + " ";
        for (int i = 0; i < 50; ++i) {
          std::vector<int64_t> x{1}, y{2};
          const auto begin = [&](std::vector<int64_t>& data) {
            return allreduce_async_(
                data, {.name = prefix + std::to_string(data[0]), .op = ReduceOp::kSum});
          };
          try {
            const bool even = rank() % 2 == 0;
            const auto first = begin(even ? x : y);
            const auto second = begin(even ? y : x);
            first->wait();
            second->wait();
            expect(x[0] == size() && y[0] == 2 * size());
          } catch (const Error&) {
            expect(false);
          }
        }
      });
    }
    for (int i = 0; i < 200; ++i) {
      std::vector<float> x{1};
      allreduce_(x, {.op = ReduceOp::kSum});
      expect(x[0] == static_cast<float>(size()));
    }
    for (std::thread& one : others) one.join();
    shutdown();
  });
});

// From here on this rank's stderr is read by itself: true when it has said these words.
bool says(const char* words) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0 || dup2(ends[1], STDERR_FILENO) < 0) return false;
  std::string said;
  pollfd polled{ends[0], POLLIN, 0};
  while (said.find(words) == said.npos && poll(&polled, 1, 30'000) == 1) {
    char part[256];
    said.append(part, static_cast<size_t>(std::max<ssize_t>(read(ends[0], part, sizeof part), 0)));
  }
  return said.find(words) != said.npos;
}

// Two threads of each rank meet those of the other, one pair in program order and one in the log.
// Each rank begins with another pair, so each waits for what the other one has not called yet.
const RankProgram two_barriers("two barriers", [] {
  return guarded([] {
    init();
    const auto other_thread = [] {
      try {
        barrier();
      } catch (const Error& error) {
        rank_board().write(error.what());
        expect(false);
      }
    };
    if (rank() == 0) {
      std::jthread other(other_thread);
      expect(says("barrier"));  // it has looked at who waits for whom, and found nothing wrong
      barrier();
    } else {
      barrier();
      std::jthread other(other_thread);
    }
    shutdown();
  });
});

// One name, in a call and then submitted. Rank 0 comes late to the call.
const RankProgram both_ways("both ways", [] {
  return guarded([] {
    init();
    while (rank() == 0 && rank_board().numbers[kMayEnd] == 0) sched_yield();
    std::vector<float> x{1};
    allreduce_(x, {.name = "x"});
    std::jthread watching([late = rank() == 0] {
      if (!late) return;
      expect(says("1: [x]"));  // it has looked at who waits for whom
      rank_board().numbers[kReached] = 1;
    });
    allreduce_async_(x, {.name = "x"})->wait();
    shutdown();
  });
});

const RankProgram mismatch("mismatch", [] {
  return guarded([] {
    init();
    std::vector<float> x(static_cast<size_t>(rank() + 1));
    try {
      allreduce_(x, {.name = "loss"});
      expect(false);
    } catch (const CommFailure&) {
      expect(false);
    } catch (const Error& error) {
      rank_board().write(error.what());
      expect(error.code() == ErrorCode::kInvalidArgument);
    }
    try {  // of one size in pages
      arena_buffer<float>(rank() == 0 ? 10 : 20);
      expect(false);
    } catch (const Error& error) {
      expect(error.code() == ErrorCode::kInvalidArgument &&
             std::strstr(error.what(),
                         "rank 0 called arena_buffer of 40 bytes, "
                         "rank 1 called arena_buffer of 80 bytes;") != nullptr);
    }
    for (int round = 0; round < 3; ++round) {  // one rank alone, or none, asks for memory
      try {
        if (rank() == 0)
          barrier();
        else if (round == 1)
          allreduce_(x, {.name = "y"});
        else
          arena_buffer<float>(25);
        expect(false);
      } catch (const Error& error) {
        expect(error.code() == ErrorCode::kInvalidArgument);
      }
    }
    expect(arena_buffer<float>(25).size() == 25);
    use_everything(2);  // the world lives
    shutdown();
  });
});

int exit_code_of_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) exit(body());  // also the child's exit handlers are not the rank's
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

const RankProgram forking("forking", [] {
  return guarded([] {
    init();
    use_everything(0);
    const auto look = [] {
      for (int fd = 3; fd < 198; ++fd) {
        char path[64], target[64] = {};
        std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, target, sizeof target - 1) < 0) continue;
        if (std::strncmp(target, "socket:", 7) == 0 || std::strstr(target, "eventfd") != nullptr)
          return 2;
      }
      return is_initialized() ? 3 : 0;
    };
    expect(exit_code_of_child(look) == 0);
    const auto fork_again = [] {
      std::vector<int> files(64);
      for (int& file : files) file = open("/dev/null", O_RDONLY | O_CLOEXEC);
      return exit_code_of_child([&] {
        const auto is_open = [](int file) { return fcntl(file, F_GETFD) >= 0; };
        return std::all_of(files.begin(), files.end(), is_open) ? 0 : 4;
      });
    };
    expect(exit_code_of_child(fork_again) == 0);
    use_everything(1);
    shutdown();
    expect(exit_code_of_child(look) == 0);
    expect(exit_code_of_child(fork_again) == 0);
  });
});

// One rank ends cleanly, by its own exit code 0, while the others want a collective.
int go_on_without_rank_0(void (*its_end)()) {
  return guarded([its_end] {
    init();
    use_everything(0);
    if (rank() == 0) return its_end();
    std::vector<float> x(10, 1);
    for (;;) allreduce_(x, {.name = "wanted"});
  });
}
const RankProgram deserter("deserter", [] { return go_on_without_rank_0([] {}); });
const RankProgram leaver("leaver", [] { return go_on_without_rank_0(shutdown); });

// What the others started has failed. Rank 1 and children, which are no rank, hear of it by wait().
const RankProgram unaware("unaware", [] {
  return guarded([] {
    init();
    use_everything(0);
    if (rank() == 0) return;
    std::vector<float> x(10);
    const auto work = allreduce_async_(x, {.name = "wanted"});
    const Deadline deadline = Deadline::in(30s);
    while (!work->done() && !deadline.passed()) sched_yield();
    expect(work->done());
    const auto wait = [&] { return guarded([&] { work->wait(); }); };
    expect(exit_code_of_child(wait) == 3);
    if (rank() == 1) work->wait();
  });
});

// It says goodbye when its main() is over.
const RankProgram ending("ending", [] {
  return guarded([] {
    struct AtEnd {
      ~AtEnd() { shutdown(); }
    };
    init();
    use_everything(0);
    if (rank() == 0) {
      std::atexit(shutdown);
    } else {
      static const AtEnd at_end;
    }
  });
});

// Blocks for ever inside a named collective, so that its status page can be read.
const RankProgram blocked("blocked", [] {
  return guarded([] {
    init();
    rank_board().numbers[kReached] = 1;
    if (rank() == 0) {
      for (;;) pause();
    }
    std::vector<float> x(1);
    allreduce_(x, {.name = "x", .op = ReduceOp::kSum});
  });
});

// The same in an asynchronous one, after a synchronous one that is much like it.
const RankProgram waiting("waiting", [] {
  return guarded([] {
    init();
    std::vector<float> x(1);
    allreduce_(x, {.name = "x"});
    if (rank() == 0) {
      for (;;) pause();
    }
    allreduce_async_(x, {.name = "x", .op = ReduceOp::kMax, .postscale = 3})->wait();
  });
});

bool is_stopped(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  return std::getline(stat, text) && text.find(") T ") != text.npos;
}

// The rank has waited in such an allreduce for long enough to note since when.
bool waits_in_allreduce(HostJob& job, int rank, const char* op = "Sum") {
  const StatusSnapshot status = job.memory().facts(rank).status;
  return status.phase == Phase::kCollective && status.since_ns != 0 &&
         status.operation.find("allreduce") != std::string::npos &&
         status.operation.find(op) != std::string::npos;
}

}  // namespace

TEST_CASE("ranks: every collective gives the right result at np 1 to 5") {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    HostJob job({.ranks = ranks, .program = "everything"});
    check_all_finish(job, ranks);
  }
}

TEST_CASE("ranks: a hundred epochs in one process") {
  HostJob job({.ranks = 3, .program = "a hundred epochs"});
  check_all_finish(job, 3);
  CHECK(job.epochs() == 100);
}

TEST_CASE("ranks: threads that name their operations may order them as they like") {
  HostJob job({.ranks = 3, .program = "threads"});
  check_all_finish(job, 3);
}

TEST_CASE("ranks: two threads may be in barrier() at once, each rank's in another order") {
  HostJob job({.ranks = 2,
               .program = "two barriers",
               .environment = {"HOROVOD_STALL_CHECK_TIME_SECONDS=0.2"},
               .rank_environment = {{1, {"HOROVOD_LOG_LEVEL=error"}}}});
  check_all_finish(job, 2);
}

TEST_CASE("ranks: who was stopped in a call that is over by now is not taken to be in it still") {
  HostJob job({.ranks = 2,
               .program = "both ways",
               .environment = {"HOROVOD_STALL_CHECK_TIME_SECONDS=0.2"}});
  REQUIRE(job.run_until([&] { return waits_in_allreduce(job, 1, "Average"); }));
  job.signal(1, SIGSTOP);
  REQUIRE(job.run_until([&] { return is_stopped(job.rank(1).pid); }));
  job.board(0).numbers[kMayEnd] = 1;
  REQUIRE(job.run_until(
      [&] { return job.board(0).numbers[kReached] == 1 || job.rank(1).status.has_value(); }));
  if (!job.rank(1).status) job.signal(1, SIGCONT);
  check_all_finish(job, 2);
}

TEST_CASE(
    "ranks: a mismatch is an error on every rank that names both sides, and the world lives") {
  HostJob job({.ranks = 2, .program = "mismatch"});
  check_all_finish(job, 2);
  CHECK_THAT(job.board(0).text, Catch::Contains("rank 0") && Catch::Contains("rank 1"));
  CHECK(std::string(job.board(0).text) == job.board(1).text);
}

TEST_CASE("ranks: a forked child holds none of the rank's descriptors and speaks not for it") {
  HostJob job({.ranks = 2, .program = "forking"});
  check_all_finish(job, 2);
  CHECK(job.warnings().empty());
}

TEST_CASE("ranks: a rank that exits 0 while others want a collective is the one that is named") {
  HostJob job({.ranks = 3, .program = "deserter"});
  REQUIRE(job.run());
  INFO(job.describe());
  CHECK(job.rank(0).status == 0);
  CHECK(job.memory().facts(0).stranded_others);
  for (int i = 1; i < 3; ++i) {
    CHECK(job.board(i).numbers[kOutcome] == kFailed);
    CHECK_THAT(job.board(i).text, Catch::Contains("rank 0"));
    CHECK(job.rank(i).given_up.empty());
  }
  CHECK(std::string(job.board(1).text) == job.board(2).text);
}

TEST_CASE("ranks: what a call of the program has thrown is known, and what none has is not") {
  HostJob job({.ranks = 3, .program = "unaware"});
  REQUIRE(job.run());
  INFO(job.describe());
  CHECK(job.board(1).numbers[kOutcome] == kFailed);
  CHECK(job.board(2).numbers[kOutcome] == kFinished);
  for (int i = 0; i < 3; ++i) {
    CHECK(job.board(i).numbers[kWrong] == 0);
    CHECK(job.memory().facts(i).status.told == (i == 1));
  }
}

TEST_CASE("ranks: shutdown() may be called by exit handlers and by destructors of statics") {
  HostJob job({.ranks = 3, .program = "ending"});
  check_all_finish(job, 3);
  for (int i = 0; i < 3; ++i) CHECK(job.memory().facts(i).left);
}

TEST_CASE("ranks: who needs a rank that has left fails and names it") {
  HostJob job({.ranks = 3, .program = "leaver"});
  REQUIRE(job.run());
  INFO(job.describe());
  CHECK(job.rank(0).status == 0);
  CHECK(job.memory().facts(0).left);
  for (int i = 1; i < 3; ++i) {
    CHECK(job.board(i).numbers[kOutcome] == kFailed);
    CHECK_THAT(job.board(i).text, Catch::Contains("rank 0"));
  }
}

TEST_CASE("ranks: the status page tells what a rank was doing when it died") {
  HostJob job({.ranks = 2, .program = "blocked"});
  REQUIRE(job.run_until(
      [&] { return waits_in_allreduce(job, 1) && job.board(0).numbers[kReached] == 1; }));
  CHECK(job.memory().facts(0).status.phase == Phase::kComputing);
  job.signal(1, SIGKILL);
  REQUIRE(job.run_until([&] { return job.rank(1).status.has_value(); }));
  CHECK_THAT(job.memory().facts(1).doing,
             Catch::Matches("was in allreduce \"x\" float32 \\[1\\] Sum #[0-9]+, 4 bytes, for "
                            "[0-9.]+ s"));
}

TEST_CASE("ranks: the status page tells of the asynchronous operation that a rank waits for") {
  HostJob job({.ranks = 2, .program = "waiting"});
  REQUIRE(job.run_until([&] { return waits_in_allreduce(job, 1, "Max"); }));
  job.signal(1, SIGKILL);
  REQUIRE(job.run_until([&] { return job.rank(1).status.has_value(); }));
  CHECK_THAT(job.memory().facts(1).doing,
             Catch::Matches("was waiting for allreduce \"x\" float32 \\[1\\] Max postscale 3, 4 "
                            "bytes, for [0-9.]+ s"));
}

TEST_CASE("ranks: a survivor that is stopped is given up on, and its memory is left alone") {
  HostJob job({.ranks = 3, .program = "blocked"});
  REQUIRE(job.run_until([&] { return waits_in_allreduce(job, 1) && waits_in_allreduce(job, 2); }));
  job.signal(1, SIGSTOP);
  job.signal(0, SIGKILL);
  REQUIRE(job.run());
  INFO(job.describe());
  CHECK(job.rank(1).status == 128 + SIGKILL);
  CHECK(job.board(2).numbers[kOutcome] == kFailed);
}

TEST_CASE("ranks: without their agent they end, in a collective or computing") {
  HostJob job({.ranks = 3, .program = "blocked"});
  REQUIRE(job.run_until([&] {
    return waits_in_allreduce(job, 1) && waits_in_allreduce(job, 2) &&
           job.board(0).numbers[kReached] == 1;
  }));
  job.lose_agent();
  REQUIRE(job.run());
  INFO(job.describe());
  for (int i = 0; i < 3; ++i) CHECK(job.rank(i).status == 125);
}

TEST_CASE("ranks: without their agent they do not wait in init()") {
  size_t asked = 0;
  HostJob job({.ranks = 2,
               .program = "everything",
               .epoch_wanted = [&](const std::vector<int>& slots, bool) { asked = slots.size(); }});
  REQUIRE(job.run_until([&] { return asked == 2; }));
  job.lose_agent();
  REQUIRE(job.run());
  for (int i = 0; i < 2; ++i) {
    CHECK(job.board(i).numbers[kOutcome] == kOtherError);
    CHECK_THAT(job.board(i).text, Catch::Contains("the agent of this host has ended"));
  }
}
