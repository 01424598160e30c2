// The Engine over ranks as threads: orders, refusals, waiting.
#include "runtime/engine/engine.h"

#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "collectives/arena.h"
#include "runtime/base/env.h"
#include "runtime/base/fault_point.h"
#include "runtime/base/usable_cpus.h"
#include "runtime/engine/log_words.h"
#include "runtime/engine/text_hash.h"
#include "runtime/solo_peers.h"
#include "tests/runtime/engine/engine_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/left_out.h"
#include "tests/support/until.h"

using namespace hvd;
using namespace std::chrono_literals;

// Catch's assertions are not for several threads: ranks note what they saw, the test checks it.
namespace {

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
  for (const Hosts& hosts : {Hosts{1}, {2}, {4}, {1, 1}, {2, 2}, {1, 3}, {1, 1, 1}}) {
    const int ranks = std::accumulate(hosts.begin(), hosts.end(), 0);
    std::atomic<int> wrong{0};
    run_engines(hosts, [&](int rank, Engine& engine) {
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

TEST_CASE("engine: ranks of one host that share no memory are told so, and none starts") {
  InProcessWorld world({3});
  world.host(0).keep_apart(1);
  std::array<std::string, 3> said;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      said[static_cast<size_t>(rank)] =
          error_of([&] { Engine engine(world.peers(rank), {.start_timeout = 30s}); });
    });
  threads.clear();
  for (const std::string& words : said) {
    CAPTURE(said[0], said[1], said[2]);
    CHECK_THAT(words, Catch::Contains("rank 1") && Catch::Contains("share no memory"));
  }
}

TEST_CASE("engine: ranks are on one host by what agents say, not by their number") {
  InProcessHost host(2);
  host.block().fate(0).host_ranks = host.block().fate(1).host_ranks = 1;
  host.block().fate(1).host_first = 1;
  CHECK_THAT(error_of([&] { Engine engine(host.peers(0), {.start_timeout = 30s}); }),
             Catch::Contains("the control block's hosts are not those of this epoch"));
}

TEST_CASE("engine: ranks that wait on one CPU, though there are more, say so and go on") {
  if (usable_cpus() < 2)  // then they yield at once, and need not say it
    return note_left_out("engine_test: ranks that wait on one CPU of several", "there is but one");
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
  const auto hosts = GENERATE(values<Hosts>({{4}, {2, 2}, {1, 3}, {1, 1, 1, 1}}));
  CAPTURE(hosts);
  std::atomic<int> wrong{0};
  run_engines(hosts, [&](int rank, Engine& engine) {
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
  const auto hosts = GENERATE(values<Hosts>({{2}, {1, 1}}));
  CAPTURE(hosts);
  std::array<std::string, 2> synchronous, asynchronous;
  std::atomic<int> wrong{0};
  run_engines(hosts, [&](int rank, Engine& engine) {
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
  const auto hosts = GENERATE(values<Hosts>({{2}, {1, 1}}));
  CAPTURE(hosts);
  std::array<std::string, 2> said;
  run_engines(hosts, [&](int rank, Engine& engine) {
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
  std::string again, another_kind, none, too_long, cut, too_long_in_order, cut_in_order;
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
    too_long_in_order = error_of([&] { sum(engine, other, std::string(256, 'y')); });
    cut_in_order = error_of([&] { sum(engine, other, std::string("y\0z", 3)); });
    barrier(engine);
    work->wait();
  });
  CHECK_THAT(again, Catch::Contains("\"x\" is already under way"));
  CHECK(another_kind == again);
  CHECK_THAT(none, Catch::Contains("needs a name"));
  CHECK_THAT(too_long, Catch::Contains("256 bytes long; at most 255"));
  CHECK_THAT(cut, Catch::Contains("\"y…\" has a byte of value 0"));
  CHECK(too_long_in_order == too_long);
  CHECK(cut_in_order == cut);
}

TEST_CASE("engine: more names than have a bit, more announcements than the ring holds") {
  const auto hosts = GENERATE(values<Hosts>({{2}, {1, 1}}));
  CAPTURE(hosts);
  std::atomic<int> wrong{0};
  run_engines(hosts, [&](int rank, Engine& engine) {
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
  const auto hosts = GENERATE(values<Hosts>({{2}, {1, 1}}));
  const bool waits_for_other = GENERATE(false, true);
  CAPTURE(hosts, waits_for_other);
  std::array<std::string, 2> said;
  run_engines(
      hosts,
      [&](int rank, Engine& engine) {
        std::array<float, 2> data{};
        said[static_cast<size_t>(rank)] = error_of([&] {
          if (rank == 0) sum(engine, data, "loss");
          if (rank == 1) {
            std::array<float, 2> other{};
            const auto loss = sum_async(engine, data, "loss");
            if (waits_for_other) sum_async(engine, other, "other")->wait();
            loss->wait();
          }
        });
      },
      {.stall_warning = 200ms, .warn = [](const std::string&) {}}, false);
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::StartsWith("CommFailure: ") &&
                         Catch::Contains("\"loss\" was called synchronously on rank 0 and "
                                         "submitted asynchronously, or from another thread than "
                                         "init()'s, on rank 1;"));
}

TEST_CASE("engine: one name submitted here and called there is no mistake while both may go on") {
  const auto hosts = GENERATE(values<Hosts>({{2}, {1, 1}}));
  const int submitter = GENERATE(0, 1);
  CAPTURE(hosts, submitter);
  std::atomic<bool> looked{false};  // rank 0, at who has submitted it and who has not
  std::atomic<int> wrong{0};
  run_engines(hosts,
              [&](int rank, Engine& engine) {
                std::array<float, 2> before{}, submitted{1, 2}, called{3, 4};
                const auto& trouble = engine.peers().block().trouble;
                const auto compute = [&] {
                  until("rank 0 has looked", [&] { return looked || trouble != 0; });
                };
                if (rank != submitter) compute();
                sum_async(engine, before, "loss")->wait();  // in which the submitter sleeps
                std::shared_ptr<Work> work;
                if (rank == submitter) {
                  looked = false;
                  work = sum_async(engine, submitted, "loss");
                  compute();
                }
                sum(engine, called, "loss");
                if (rank != submitter) work = sum_async(engine, submitted, "loss");
                work->wait();
                wrong += submitted[1] != 4 || called[1] != 8;
              },
              {.stall_warning = 100ms, .warn = [&](const std::string& text) {
                 if (text.find("\n" + std::to_string(1 - submitter) + ": [loss") != text.npos)
                   looked = true;
               }});
  CHECK(wrong == 0);
}

TEST_CASE("engine: a collective timeout names whom it waited for, on all ranks") {
  const auto hosts = GENERATE(values<Hosts>({{3}, {2, 1}, {1, 2}, {1, 1, 1}}));
  CAPTURE(hosts);
  std::array<std::string, 3> said;
  std::atomic<int> ended{0};
  run_engines(
      hosts,
      [&](int rank, Engine& engine) {
        std::array<float, 2> data{};
        if (rank == 2) until("the others are told", [&] { return ended >= 2; });  // computes
        const auto call = [&] { sum(engine, data, "loss"); };
        std::string& mine = said[static_cast<size_t>(rank)];
        mine = error_of(call);
        // Between hosts it may complete what the others have given up; the next one fails.
        if (rank == 2 && mine.empty() && hosts.size() > 1) mine = error_of(call);
        ++ended;
      },
      {.collective_timeout = 500ms}, false);
  CHECK_THAT(said[0], Catch::StartsWith("CommFailure: ") && Catch::Contains("waited 0.500 s for "
                                                                            "rank 2 in allreduce"));
  CHECK(said[0] == said[1]);
  CHECK(said[0] == said[2]);
}

TEST_CASE("engine: a timeout in the log names whom it waited for, on all ranks") {
  const auto hosts = GENERATE(values<Hosts>({{3}, {2, 1}, {1, 2}, {1, 1, 1}}));
  CAPTURE(hosts);
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
        hosts,
        [&](int rank, Engine& engine) {
          std::array<float, 2> data{};
          const bool late = std::count(scene.missing.begin(), scene.missing.end(), rank) != 0;
          if (late) until("the others are told", [&] { return ended >= waiting; });  // computes
          said[static_cast<size_t>(rank)] = error_of([&] {
            if (late) sum(engine, data);
            if (!late) sum_async(engine, data, "loss")->wait();
          });
          ++ended;
        },
        {.collective_timeout = 500ms}, false);
    for (const std::string& text : said)
      CHECK_THAT(text, Catch::StartsWith("CommFailure: ") &&
                           Catch::Contains(std::string("waited 0.500 s for ") + scene.text));
  }
}

TEST_CASE("engine: of two waits that are overdue the first is asked for until it is over") {
  InProcessWorld world({3});
  const ControlBlock& block = world.host(0).block();
  std::array<std::string, 3> said;
  bool replaced = false;
  run_engines(
      world,
      [&](int rank, Engine& engine) {
        std::array<float, 2> data{}, first{}, second{};
        std::vector<float> part(100'000), all(300'000);
        std::atomic<bool> started{false};
        const auto broken = [&] { return block.trouble != 0; };
        // Rank 0 answers no question: its engine is in here.
        const auto hold = [&](std::span<const uint64_t>) {
          started = true;
          if (rank == 0) comes_about(broken);
          return all.data();
        };
        const auto work = allgather_async(engine, part, hold, "held");
        until("\"held\" has begun", [&] { return started || broken(); });
        auto& text = said[static_cast<size_t>(rank)];
        if (rank != 1) {
          until("the epoch is broken", broken);  // computes
          text = error_of([&] { sum(engine, data); });
          return;
        }
        auto pieces = *world.peers(1)->take_segment(0);
        struct stat status{};
        fstat(pieces[1].get(), &status);
        const auto bytes = static_cast<size_t>(status.st_size);
        const Segment segment(0, std::move(pieces), bytes, 1, 0);
        const auto& words = *reinterpret_cast<LogWords*>(segment.own() + bytes -
                                                         (sizeof(LogWords) + 4095) / 4096 * 4096);
        const auto one = sum_async(engine, first, "first");
        const auto other = sum_async(engine, second, "second");
        std::jthread waiting([&] { text = error_of([&] { one->wait(); }); });
        until("\"first\" is asked for", [&] {
          return words.overdue[LogWords::kOverdueName] == text_hash("first") || broken();
        });
        std::jthread beside([&] { error_of([&] { other->wait(); }); });
        until("the epoch is broken", [&] {
          replaced |= words.overdue[LogWords::kOverdueName] == text_hash("second");
          return broken();
        });
      },
      {.collective_timeout = 500ms}, false);
  CHECK_FALSE(replaced);
  CHECK_THAT(said[1], Catch::Contains("rank 1 waited 0.500 s for rank 0 in \"first\""));
}

TEST_CASE("engine: the stall check names missing ranks, in the log and in program order") {
  const auto hosts = GENERATE(values<Hosts>({{3}, {2, 1}, {1, 2}, {1, 1, 1}}));
  CAPTURE(hosts);
  std::mutex mutex;
  std::vector<std::string> warnings;
  // A slow machine may be warned of a wait in init() as well.
  auto of_slow = [&]() -> std::string {
    std::lock_guard lock(mutex);
    const auto found = std::ranges::find_if(
        warnings, [](const std::string& text) { return text.find("slow") != std::string::npos; });
    return found == warnings.end() ? "" : *found;
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
        hosts,
        [&](int rank, Engine& engine) {
          std::array<float, 2> data{};
          if (rank == 1) until("there is a warning", [&] { return !of_slow().empty(); });
          if (log) sum_async(engine, data, "slow")->wait();
          if (!log) sum(engine, data, "slow");
        },
        options);
    CHECK_THAT(of_slow(), Catch::Contains("Missing ranks:") && Catch::Contains("\n1: ["));
  }
}

TEST_CASE("engine: segments are added in program order and reduced in place") {
  const auto hosts = GENERATE(values<Hosts>({{2}, {1, 1}}));
  CAPTURE(hosts);
  std::atomic<int> wrong{0};
  run_engines(hosts, [&](int rank, Engine& engine) {
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
  const auto hosts = GENERATE(values<Hosts>({{3}, {2, 1}}));
  CAPTURE(hosts);
  constexpr size_t kBytes = 4 << 20;
  std::atomic<size_t> first{0}, left{0};
  std::atomic<int> wrong{0};
  run_engines(hosts, [&](int rank, Engine& engine) {
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

TEST_CASE("engine: a thread that comes after the init thread's end is not taken for it") {
  std::unique_ptr<Engine> engine;
  std::thread::id init_thread;
  std::thread([&] {
    engine = std::make_unique<Engine>(std::make_unique<SoloPeers>(1), EngineOptions{});
    init_thread = std::this_thread::get_id();
  }).join();
  bool same_id = false, taken = false;
  for (int i = 0; i < 100 && !same_id; ++i)
    std::thread([&] {
      same_id = std::this_thread::get_id() == init_thread;
      taken = taken || engine->on_init_thread();
    }).join();
  CHECK(same_id);  // or nothing was tried
  CHECK_FALSE(taken);
}
