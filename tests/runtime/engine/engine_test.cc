// The Engine over ranks as threads: orders, refusals, waiting.
#include "runtime/engine/engine.h"

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "runtime/base/env.h"
#include "runtime/base/fault_point.h"
#include "runtime/base/usable_cpus.h"
#include "tests/runtime/engine/engine_ranks.h"
#include "tests/support/catch.h"

using namespace hvd;
using namespace std::chrono_literals;

// Catch's assertions are not for several threads: ranks note what they saw, the test checks it.
namespace {

template <typename Function>
std::string error_of(Function&& function) {
  try {
    function();
  } catch (const CommFailure& error) {
    return std::string("CommFailure: ") + error.what();
  } catch (const Error& error) {
    return std::string("Error: ") + error.what();
  }
  return "";
}

int first_cpu() {
  cpu_set_t all;
  CPU_ZERO(&all);
  sched_getaffinity(0, sizeof all, &all);
  int cpu = 0;
  while (cpu < CPU_SETSIZE - 1 && !CPU_ISSET(cpu, &all)) ++cpu;
  return cpu;
}

}  // namespace

TEST_CASE("engine: synchronous calls in program order give every rank the sum") {
  for (const int ranks : {1, 2, 4}) {
    std::atomic<int> wrong{0};
    run_engines(ranks, [&](int rank, Engine& engine) {
      for (int i = 0; i < 200; ++i) {
        const size_t count = i % 10 == 0 ? 5000 : 3;
        std::vector<float> data(count, static_cast<float>(rank + i));
        sum(engine, data, "x");
        const int expected = ranks * i + ranks * (ranks - 1) / 2;
        wrong += std::any_of(data.begin(), data.end(),
                             [&](float x) { return x != static_cast<float>(expected); });
      }
    });
    CHECK(wrong == 0);
  }
}

TEST_CASE("engine: ranks that wait on one CPU, though there are more, say so and go on") {
  if (usable_cpus() < 2) return;  // then they yield at once, and need not say it
  std::atomic<int> wrong{0};
  std::array<uint32_t, 2> where{};
  run_engines(2, [&](int rank, Engine& engine) {
    const int cpu = first_cpu();
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    wrong += sched_setaffinity(0, sizeof one, &one) != 0;  // of this thread alone
    for (int i = 0; i < 2000; ++i) {
      std::vector<float> data(3, static_cast<float>(rank + i));
      sum(engine, data);
      wrong += data[2] != static_cast<float>(2 * i + 1);
    }
    where[static_cast<size_t>(rank)] = engine.peers().block().rank(rank).cpu;
    wrong += where[static_cast<size_t>(rank)] != static_cast<uint32_t>(cpu + 1);
  });
  CHECK(wrong == 0);
  CHECK(where[0] == where[1]);
}

TEST_CASE("engine: named operations submitted in opposite orders finish") {
  std::atomic<int> wrong{0};
  run_engines(4, [&](int rank, Engine& engine) {
    for (int round = 0; round < 50; ++round) {
      std::vector<std::array<float, 4>> data(6);
      std::map<int, std::shared_ptr<Work>> works;
      for (int i = 0; i < 6; ++i) {
        const int one = rank % 2 == 0 ? i : 5 - i;
        data[static_cast<size_t>(one)].fill(static_cast<float>(one + rank));
        works[one] = sum_async(engine, data[static_cast<size_t>(one)], "n" + std::to_string(one));
      }
      for (auto& [one, work] : works) {
        work->wait();
        for (const float x : data[static_cast<size_t>(one)])
          wrong += x != static_cast<float>(4 * one + 6);
      }
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("engine: ranks that differ are told both sides, and the world lives") {
  std::array<std::string, 2> synchronous, asynchronous;
  std::atomic<int> wrong{0};
  run_engines(2, [&](int rank, Engine& engine) {
    std::vector<float> data(rank == 0 ? 3 : 4, 1.0f);
    synchronous[static_cast<size_t>(rank)] = error_of([&] { sum(engine, data, "loss"); });
    for (int i = 0; i < 2; ++i) {  // the second time by the same way: never bound
      auto work = sum_async(engine, data, "accuracy");
      asynchronous[static_cast<size_t>(rank)] = error_of([&] { work->wait(); });
      error_of([&] { work->wait(); });  // may be called again
    }
    for (const float x : data) wrong += x != 1.0f;
    std::array<float, 2> equal{1, 2};
    sum(engine, equal, "loss");
    sum_async(engine, equal, "accuracy")->wait();
    wrong += equal[0] != 4 || equal[1] != 8;
  });
  CHECK(wrong == 0);
  CHECK(synchronous[0] == synchronous[1]);
  CHECK(asynchronous[0] == asynchronous[1]);
  for (const std::string& text : {synchronous[0], asynchronous[0]})
    CHECK_THAT(text, Catch::StartsWith("Error: ") && Catch::Contains("rank 0") &&
                         Catch::Contains("rank 1") && Catch::Contains("[3]") &&
                         Catch::Contains("[4]"));
}

TEST_CASE("engine: one name for two kinds is refused on every rank, and says who called what") {
  std::array<std::string, 2> said;
  run_engines(2, [&](int rank, Engine& engine) {
    std::array<float, 2> data{1, 1};
    auto work = rank == 0 ? sum_async(engine, data, "x") : broadcast_async(engine, data, "x");
    said[static_cast<size_t>(rank)] = error_of([&] { work->wait(); });
    sum_async(engine, data, "x")->wait();
  });
  CHECK(said[0] == said[1]);
  CHECK_THAT(said[0], Catch::Contains("rank 0 submitted allreduce") &&
                          Catch::Contains("rank 1 submitted broadcast"));
}

TEST_CASE("engine: a name that is under way, missing or too long is refused at once") {
  std::string again, another_kind, none, too_long, cut;
  run_engines(2, [&](int rank, Engine& engine) {
    std::array<float, 2> data{}, other{};
    if (rank == 1) {
      barrier(engine);
      sum_async(engine, data, "x")->wait();
      return;
    }
    auto work = sum_async(engine, data, "x");
    again = error_of([&] { sum_async(engine, other, "x"); });
    another_kind = error_of([&] { broadcast_async(engine, other, "x"); });
    none = error_of([&] { sum_async(engine, other, ""); });
    too_long = error_of([&] { sum_async(engine, other, std::string(256, 'y')); });
    cut = error_of([&] { sum_async(engine, other, std::string("y\0z", 3)); });
    barrier(engine);
    work->wait();
  });
  CHECK_THAT(again, Catch::Contains("\"x\" is already under way"));
  CHECK(another_kind == again);
  CHECK_THAT(none, Catch::Contains("needs a name"));
  CHECK_THAT(too_long, Catch::Contains("256 bytes long; at most 255"));
  CHECK_THAT(cut, Catch::Contains("\"y…\" has a byte of value 0"));
}

TEST_CASE("engine: more names than have a bit, more announcements than the ring holds") {
  std::atomic<int> wrong{0};
  run_engines(2, [&](int rank, Engine& engine) {
    for (int round = 0; round < 2; ++round) {
      std::vector<std::array<float, 1>> data(1100);
      std::vector<std::shared_ptr<Work>> works;
      for (size_t i = 0; i < data.size(); ++i) {
        data[i][0] = static_cast<float>(i + static_cast<size_t>(rank));
        works.push_back(sum_async(engine, data[i], "name " + std::to_string(i)));
      }
      for (size_t i = 0; i < data.size(); ++i) {
        works[i]->wait();
        wrong += data[i][0] != static_cast<float>(2 * i + 1);
      }
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("engine: one name synchronous here and asynchronous there breaks off and says so") {
  std::array<std::string, 2> said;
  run_engines(
      2,
      [&](int rank, Engine& engine) {
        std::array<float, 2> data{};
        said[static_cast<size_t>(rank)] = error_of([&] {
          if (rank == 0) sum(engine, data, "loss");
          if (rank == 1) sum_async(engine, data, "loss")->wait();
        });
      },
      {.stall_warning = 200ms, .warn = [](const std::string&) {}}, false);
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::StartsWith("CommFailure: ") &&
                         Catch::Contains("\"loss\" was called synchronously on rank 0"));
}

TEST_CASE("engine: a collective timeout names whom it waited for, on all ranks") {
  std::array<std::string, 3> said;
  std::atomic<int> ended{0};
  run_engines(
      3,
      [&](int rank, Engine& engine) {
        std::array<float, 2> data{};
        while (rank == 2 && ended < 2) std::this_thread::yield();  // computes; its engine answers
        said[static_cast<size_t>(rank)] = error_of([&] { sum(engine, data, "loss"); });
        ++ended;
      },
      {.collective_timeout = 100ms}, false);
  CHECK_THAT(said[0], Catch::StartsWith("CommFailure: ") && Catch::Contains("waited 0.100 s for "
                                                                            "rank 2 in allreduce"));
  CHECK(said[0] == said[1]);
  CHECK(said[0] == said[2]);
}

TEST_CASE("engine: a timeout in the log names whom it waited for, on all ranks") {
  struct Scene {
    std::vector<int> missing;
    const char* text;
  };
  for (const Scene& scene : {Scene{{2}, "rank 2 in \"loss\""}, Scene{{0}, "rank 0 in "},
                             Scene{{0, 2}, "ranks 0, 2 in "}}) {
    std::array<std::string, 3> said;
    const int waiting = 3 - static_cast<int>(scene.missing.size());
    std::atomic<int> ended{0};
    run_engines(
        3,
        [&](int rank, Engine& engine) {
          std::array<float, 2> data{};
          const bool late = std::count(scene.missing.begin(), scene.missing.end(), rank) != 0;
          while (late && ended < waiting) std::this_thread::yield();  // computes
          said[static_cast<size_t>(rank)] = error_of([&] {
            if (late) sum(engine, data);
            if (!late) sum_async(engine, data, "loss")->wait();
          });
          ++ended;
        },
        {.collective_timeout = 100ms}, false);
    for (const std::string& text : said)
      CHECK_THAT(text, Catch::StartsWith("CommFailure: ") &&
                           Catch::Contains(std::string("waited 0.100 s for ") + scene.text));
  }
}

TEST_CASE("engine: shutdown is local; the first operation that needs that rank names it") {
  std::array<std::string, 3> said;
  std::atomic<int> wrong{0};
  run_engines(
      3,
      [&](int rank, Engine& engine) {
        std::array<float, 2> data{1, 1};
        sum(engine, data, "x");
        wrong += data[0] != 3;
        auto& text = said[static_cast<size_t>(rank)];
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
  std::string late, pending;
  run_engines(2, [&](int rank, Engine& engine) {
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

TEST_CASE("engine: abort from any thread, and an end without shutdown, reach every rank") {
  for (const bool by_abort : {true, false}) {
    std::array<std::string, 3> said;
    run_engines(
        3,
        [&](int rank, Engine& engine) {
          std::array<float, 2> data{};
          barrier(engine);
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

TEST_CASE("engine: the stall check names missing ranks, in the log and in program order") {
  std::mutex mutex;
  std::vector<std::string> warnings;
  auto count = [&] {
    std::lock_guard lock(mutex);
    return warnings.size();
  };
  EngineOptions options;
  options.stall_warning = 100ms;
  options.warn = [&](const std::string& text) {
    std::lock_guard lock(mutex);
    warnings.push_back(text);
  };
  for (const bool log : {true, false}) {
    warnings.clear();
    run_engines(
        3,
        [&](int rank, Engine& engine) {
          std::array<float, 2> data{};
          while (rank == 1 && count() == 0) std::this_thread::yield();
          if (log) sum_async(engine, data, "slow")->wait();
          if (!log) sum(engine, data, "slow");
        },
        options);
    REQUIRE_FALSE(warnings.empty());
    CHECK_THAT(warnings[0], Catch::Contains("Missing ranks:\n1: [") && Catch::Contains("slow"));
  }
}

TEST_CASE("engine: segments are added in program order and reduced in place") {
  std::atomic<int> wrong{0};
  run_engines(2, [&](int rank, Engine& engine) {
    for (int i = 0; i < 3; ++i) {
      const auto segment = engine.add_segment(100'000);
      std::span data(reinterpret_cast<float*>(segment->own()), 20'000);
      std::fill(data.begin(), data.end(), static_cast<float>(rank + 1));
      sum(engine, data);
      wrong += std::any_of(data.begin(), data.end(), [](float x) { return x != 3; });
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("engine: memory that its last user let go of is given back, on all ranks") {
  constexpr size_t kBytes = 4 << 20;
  std::atomic<size_t> first{0}, left{0};
  std::atomic<int> wrong{0};
  run_engines(3, [&](int rank, Engine& engine) {
    std::vector<std::byte*> mine;
    for (int i = 0; i < 12; ++i) {
      auto segment = engine.add_segment(kBytes);
      mine.push_back(segment->own());
      auto another = segment;
      segment.reset();
      if (i == 0) first += resident_pages(mine[0], kBytes);
      if (i > 0 && rank == i % 3) continue;  // at once, when others may still be faulting it in
      std::span data(reinterpret_cast<float*>(another->own()), kBytes / sizeof(float));
      std::fill(data.begin(), data.end(), static_cast<float>(rank));
    }
    barrier(engine);
    for (const std::byte* one : mine) left += resident_pages(one, kBytes);
    std::array<float, 1> x{1};
    sum(engine, x);
    wrong += x[0] != 3;
  });
  CHECK(wrong == 0);
  CHECK(first == 3 * kBytes / 4096);
  CHECK(left == 0);
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
    if (rank == 1)
      while (forked == 0) std::this_thread::yield();  // until then it stays under way
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
