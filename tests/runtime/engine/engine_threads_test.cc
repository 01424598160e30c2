// Several threads of a rank that wait, each for its own, beside a rank where one does all.
#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/engine/engine_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/time_limit.h"

using namespace hvd;

TEST_CASE("engine threads: whoever waits goes on, however many take turns at the token") {
  const auto hosts = GENERATE(values<Hosts>({{2}, {1, 1}}));
  CAPTURE(hosts);
  const TimeLimit limit;
  constexpr int kRounds = 1000;
  std::atomic<int> wrong{0};
  run_engines(hosts, [&](int rank, Engine& engine) {
    const auto sum_of = [&](const std::string& name) {
      std::array<float, 1> data{1};
      sum_async(engine, data, name)->wait();
      wrong += data[0] != 2;
    };
    const auto loop = [&](const std::vector<std::string>& names) {
      for (int round = 0; round < kRounds; ++round)
        for (const std::string& name : names) sum_of(name);
    };
    if (rank == 1) return loop({"a", "b", "c", "d", "e"});
    std::vector<std::jthread> threads;
    for (const std::string name : {"c", "d", "e"})
      threads.emplace_back([&loop, name] { loop({name}); });
    loop({"a", "b"});
  });
  CHECK(wrong == 0);
}
