// How an Engine over ranks as threads ends: shutdown, abort, errors, forked children.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/base/fault_point.h"
#include "tests/runtime/engine/engine_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/redirected.h"
#include "tests/support/until.h"

using namespace hvd;
using namespace std::chrono_literals;

// Catch's assertions are not for several threads: ranks note what they saw, the test checks it.

TEST_CASE("engine: shutdown is local; the first operation that needs that rank names it") {
  const auto hosts = GENERATE(values<Hosts>({{3}, {2, 1}, {1, 2}, {1, 1, 1}}));
  CAPTURE(hosts);
  std::array<std::string, 3> said;
  std::atomic<int> wrong{0};
  run_engines(
      hosts,
      [&](int rank, Engine& engine) {
        std::array<float, 2> data{1, 1};
        auto& text = said[static_cast<size_t>(rank)];
        text = error_of([&] { sum(engine, data, "x"); });
        if (!text.empty()) return;  // between hosts the last one that completed may differ by one
        wrong += data[0] != 3;
        if (rank == 1) return engine.shutdown();
        if (rank == 0) text = error_of([&] { sum(engine, data, "y"); });
        if (rank == 2) text = error_of([&] { sum_async(engine, data, "z")->wait(); });
      },
      {}, false);
  CHECK(wrong == 0);
  for (const int rank : {0, 2})
    CHECK_THAT(said[static_cast<size_t>(rank)], Catch::StartsWith("CommFailure: ") &&
                                                    Catch::Contains("rank 1") &&
                                                    Catch::Contains("shutdown()"));
}

TEST_CASE("engine: after shutdown every call throws, and what was not agreed has failed") {
  const auto hosts = GENERATE(values<Hosts>({{2}, {1, 1}}));
  CAPTURE(hosts);
  std::string late, pending;
  run_engines(hosts, [&](int rank, Engine& engine) {
    std::array<float, 2> data{};
    barrier(engine);
    if (rank == 1) return;
    auto work = sum_async(engine, data, "alone");
    engine.shutdown();
    pending = error_of([&] { work->wait(); });
    late = error_of([&] { sum(engine, data, "x"); });
  });
  CHECK_THAT(pending, Catch::Contains("\"alone\": shutdown() was called"));
  CHECK_THAT(late, Catch::Contains("shutdown() was called; call init() again"));
}

// What was refused is submitted again at once, by threads that know of no shutdown.
TEST_CASE(
    "engine: threads that go on submitting while all leave are told of that and nothing else") {
  const auto hosts = GENERATE(values<Hosts>({{2}, {1, 1}}));
  CAPTURE(hosts);
  constexpr int kThreads = 3, kRounds = 20;
  std::array<std::vector<std::string>, 2> said;
  std::atomic<int> wrong{0};
  for (int round = 0; round < kRounds; ++round)
    run_engines(
        hosts,
        [&](int rank, Engine& engine) {
          std::array<std::string, kThreads> texts;
          std::atomic<int> tries{0};
          {
            std::vector<std::jthread> threads;
            for (int k = 0; k < kThreads; ++k)
              threads.emplace_back([&, k] {
                const std::string name = "of thread " + std::to_string(k);
                std::string& text = texts[static_cast<size_t>(k)];
                bool over = false;
                for (int again = 0; again < 100 && !over; again += !text.empty()) {
                  std::array<float, 1> data{1};
                  text = error_of([&] { sum_async(engine, data, name)->wait(); });
                  wrong += text.empty() && data[0] != 2;
                  ++tries;
                  over = !text.empty() && text.find("shutdown()") == std::string::npos;
                }
              });
            until("all are at it", [&] { return tries >= 10 * kThreads; });
            engine.shutdown();
          }
          auto& seen = said[static_cast<size_t>(rank)];
          seen.insert(seen.end(), texts.begin(), texts.end());
        },
        {}, false);
  CHECK(wrong == 0);
  for (const auto& texts : said)
    for (const std::string& text : texts) CHECK_THAT(text, Catch::Contains("shutdown()"));
}

// Rank 2 holds "first" up. Rank 1 has asked for "second", too, and leaves; then rank 0 asks for it:
// it is decided while rank 1 still does its part of "first".
TEST_CASE("engine: shutdown finishes what is under way, whatever is decided meanwhile") {
  const auto hosts = GENERATE(values<Hosts>({{3}, {2, 1}, {1, 1, 1}}));
  CAPTURE(hosts);
  std::array<std::string, 3> first_said, second_said;
  std::atomic<Work*> refused{nullptr};
  std::atomic<bool> started{false}, decided{false};
  run_engines(
      hosts,
      [&](int rank, Engine& engine) {
        const auto me = static_cast<size_t>(rank);
        std::vector<float> part(100'000), all(300'000), small(2), other(me == 0 ? 3 : 2);
        std::shared_ptr<Work> second, third;
        const auto ask = [&] {
          second = sum_async(engine, small, "second");
          third = sum_async(engine, other, "third");  // differs: refused when it is decided
        };
        if (rank != 0) ask();
        const auto hold = [&](std::span<const uint64_t>) {
          if (rank == 1) started = true;
          if (rank == 2) comes_about([&] { return decided.load(); });
          return all.data();
        };
        const auto first = allgather_async(engine, part, hold, "first");
        if (rank == 1) {
          until("\"first\" has begun", [&] { return started.load(); });
          refused = second.get();
          engine.shutdown();
        }
        if (rank == 0) {
          until("\"second\" is over on rank 1",
                [&] { return refused != nullptr && refused.load()->done(); });
          ask();
          error_of([&] { third->wait(); });
          decided = true;
        }
        first_said[me] = error_of([&] { first->wait(); });
        second_said[me] = error_of([&] { second->wait(); });
        until("it is decided", [&] { return decided.load(); });  // rank 0 still looks at rank 1's
      },
      {}, false);
  CHECK(first_said[1].empty());
  CHECK_THAT(second_said[1], Catch::Contains("\"second\": shutdown() was called on this rank"));
  for (const size_t rank : {0u, 2u})
    CHECK_THAT(second_said[rank],
               Catch::StartsWith("CommFailure: ") && Catch::Contains("rank 1 called shutdown()"));
}

TEST_CASE("engine: abort from any thread, and an end without shutdown, reach every rank") {
  const auto hosts = GENERATE(values<Hosts>({{3}, {2, 1}, {1, 2}, {1, 1, 1}}));
  CAPTURE(hosts);
  for (const bool by_abort : {true, false}) {
    std::array<std::string, 3> said;
    run_engines(
        hosts,
        [&](int rank, Engine& engine) {
          std::array<float, 2> data{};
          error_of([&] { barrier(engine); });  // between hosts it may be broken off already
          if (rank == 1) {
            if (by_abort) std::jthread([&] { engine.abort("the disk is full"); });
            return;
          }
          said[static_cast<size_t>(rank)] = error_of([&] {
            for (;;) sum(engine, data, "x");
          });
        },
        {}, false);
    CHECK(said[0] == said[2]);
    CHECK_THAT(said[0], Catch::StartsWith("CommFailure: ") &&
                            Catch::Contains(by_abort ? "rank 1: the disk is full"
                                                     : "rank 1: ended without shutdown()"));
  }
}

TEST_CASE("engine: an error inside one rank's engine, at any step, ends the epoch alike on all") {
  int passed = 0;
  for (const char* point : {"engine_announce", "engine_log", "engine_start"})
    for (int k = 1; k < 20; ++k) {
      CAPTURE(point, k);
      std::array<std::string, 3> said;
      std::array<int, 3> completed{};
      const std::string action = std::string(point) + ":" + std::to_string(k) + ":throw";
      run_engines(
          3,
          [&](int rank, Engine& engine) {
            const auto me = static_cast<size_t>(rank);
            barrier(engine);
            if (rank == 0) fault::arm(action.c_str());
            said[me] = error_of([&] {
              barrier(engine);
              for (int i = 0; i < 8; ++i, ++completed[me]) {
                std::vector<float> small(3, 1), large(3000, 1);
                auto one = sum_async(engine, small, "one");
                auto two = sum_async(engine, large, i % 2 == 0 ? "two" : "three");
                sum(engine, large);
                one->wait();
                two->wait();
              }
            });
          },
          {}, false);
      fault::arm(nullptr);
      CHECK(said[0] == said[1]);
      CHECK(said[0] == said[2]);
      CHECK(completed[0] == completed[1]);
      CHECK(completed[0] == completed[2]);
      if (said[0].empty()) continue;
      ++passed;
      CHECK_THAT(said[0], Catch::StartsWith("CommFailure: ") &&
                              Catch::Contains(" failed: fault point " + std::string(point)));
    }
  CHECK(passed > 20);
}

TEST_CASE("engine: init names the rank that does not come") {
  InProcessHost host(2);
  host.stop(1);
  std::string said;
  std::jthread([&] {
    said = error_of([&] { Engine engine(host.peers(0), {.start_timeout = 100ms}); });
  }).join();
  CHECK_THAT(said, Catch::StartsWith("Error: init() failed: rank 0 waited 0.100 s for rank 1"));
}

TEST_CASE("engine: in a forked child every call throws and the end touches nothing") {
  int status = -1;
  run_engines(1, [&](int, Engine& engine) {
    const pid_t child = fork();
    if (child == 0) {
      engine.forget_in_child();
      std::array<float, 2> data{};
      const std::string said = error_of([&] { sum(engine, data); });
      engine.~Engine();
      _exit(said.find("forked from a rank") == std::string::npos ? 1 : 0);
    }
    waitpid(child, &status, 0);
  });
  CHECK(status == 0);
}

TEST_CASE("engine: a Work that is under way throws in a forked child, and goes on in the rank") {
  std::atomic<int> forked{0}, wrong{0};
  run_engines(2, [&](int rank, Engine& engine) {
    std::array<float, 2> data{1, 1}, before{1, 1};
    const auto over = sum_async(engine, before, "before");
    over->wait();
    // Until then it stays under way.
    if (rank == 1) until("the child has ended", [&] { return forked != 0; });
    const auto work = sum_async(engine, data, "x");
    if (rank == 0) {
      const pid_t child = fork();
      if (child == 0) {
        engine.forget_in_child();
        const std::string waited = error_of([&] { work->wait(); });
        const std::string asked = error_of([&] { work->done(); });
        const bool right = waited.find("Error: this process was forked from a rank") == 0 &&
                           asked == waited && over->done() &&
                           error_of([&] { over->wait(); }).empty();
        _exit(right ? 0 : 1);
      }
      int status = -1;
      waitpid(child, &status, 0);
      wrong += status != 0;
      ++forked;
    }
    work->wait();
    wrong += data[0] != 2;
  });
  CHECK(wrong == 0);
}

// It may be said with the token in hand, by the thread that has to answer the agent.
TEST_CASE("engine: a warning waits for no reader of standard error") {
  CHECK(waits_for_no_reader([] { warn_on_standard_error("this"); }));
}
