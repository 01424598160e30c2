// Who is named when a wait between hosts takes too long: in the stall report, at the timeout.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/engine/log_words.h"
#include "tests/runtime/engine/engine_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/until.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

// For ranks that come to do their part of what is not to time out, whatever else runs here.
constexpr auto kLongEnough = 1000ms;

// "held", an operation of all ranks: one rank's engine gets no further in the log until the epoch
// is broken.
class HeldUp {
 public:
  HeldUp(InProcessWorld& world, int holder) : world_(world), holder_(holder) {}

  std::shared_ptr<Work> submit(int rank, Engine& engine) {
    const auto hold = [this, rank](std::span<const uint64_t>) -> void* {
      if (rank == holder_) {
        holds_ = true;
        comes_about([&] { return broken(rank); });
      }
      return all_.at(static_cast<size_t>(rank)).data();
    };
    return allgather_async(engine, part_, hold, "held");
  }
  void until_held(int rank) const {
    until("\"held\" is held up", [&] { return holds_ || broken(rank); });
  }
  void until_broken(int rank) const {
    until("the epoch is broken", [&] { return broken(rank); });
  }

 private:
  bool broken(int rank) const { return world_.host_of(rank).block().trouble != 0; }

  InProcessWorld& world_;
  const int holder_;
  std::atomic<bool> holds_{false};
  const std::array<float, 1> part_{};
  std::array<std::array<float, 4>, 4> all_{};
};

// As an optimizer's, of one bucket.
class Steps {
 public:
  Steps(Engine& engine, const std::string& name)
      : list_(engine.make_bucket_list({.name = name,
                                       .buckets = {{DataType::kFloat32, 4}},
                                       .parameters = 1,
                                       .layout = "one",
                                       .reduction = {}})) {}

  void step() {
    list_->ready(0, BucketList::Home::kHome);
    list_->finish({});
  }

 private:
  std::unique_ptr<BucketList> list_;
};

// What a rank calls and steps.
struct Program {
  Engine& engine;
  Steps sgd{engine, "sgd"}, adam{engine, "adam"};
  std::array<float, 2> data{};

  void call(const std::string& name) { sum(engine, data, name); }
  void submit(const std::string& name) { sum_async(engine, data, name)->wait(); }
};

// By rank, of three, how its program ended.
std::array<std::string, 3> errors_of(InProcessWorld& world, std::chrono::milliseconds stall_warning,
                                     const std::function<void(int rank, Program&)>& body) {
  std::array<std::string, 3> said;
  run_engines(
      world,
      [&](int rank, Engine& engine) {
        Program program{engine};
        said.at(static_cast<size_t>(rank)) = error_of([&] { body(rank, program); });
      },
      {.stall_warning = stall_warning, .warn = [](const std::string&) {}}, false);
  return said;
}

}  // namespace

TEST_CASE("hosts: of ranks that forward late, none is said to be missing that has asked") {
  // Rank 3 has asked and its leader computes: rank 2 alone is missing, whoever waits.
  std::array<std::string, 4> said;
  std::atomic<int> ended{0};
  run_engines(
      Hosts{2, 2},
      [&](int rank, Engine& engine) {
        std::array<float, 2> data{};
        barrier(engine);
        if (rank == 2)
          until("the others are told", [&] { return ended >= 3; });  // its engine answers
        said[static_cast<size_t>(rank)] = error_of([&] {
          if (rank == 2) sum(engine, data);
          if (rank != 2) sum_async(engine, data, "loss")->wait();
        });
        ++ended;
      },
      {.collective_timeout = kLongEnough}, false);
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::StartsWith("CommFailure: ") &&
                         Catch::Contains("waited 1 s for rank 2 in \"loss\""));
}

// One rank's engine does not get any further than "held", behind which is "loss" in the log. That
// the others have acted on it they know from what is refused behind it.
TEST_CASE("hosts: who does not act on what is in the log is named, also to who calls shutdown()") {
  struct Scene {
    Hosts hosts;
    int busy;
    std::string last;  // of what it is missing in
  };
  const auto scene = GENERATE(values<Scene>(
      {{{1, 2}, 2, "loss]"},
       {{2, 2}, 1, "loss]"},
       {{2, 1}, 2, "the question what its host waits for]"}}));  // it would have to say so itself
  const bool leaves = GENERATE(false, true);
  CAPTURE(scene.hosts, scene.busy, leaves);
  std::mutex mutex;
  std::condition_variable changed;
  bool holds = false, warned = false, late = false;
  std::string warnings;
  const auto wait_until = [&](const bool& it) {
    std::unique_lock lock(mutex);
    late |= !changed.wait_for(lock, 60s, [&] { return it; });
  };
  const auto say = [&](bool& it) {
    std::lock_guard lock(mutex);
    it = true;
    changed.notify_all();
  };
  EngineOptions options{.stall_warning = 100ms};
  options.warn = [&](const std::string& text) {
    const size_t line = text.find("\n" + std::to_string(scene.busy) + ": [");
    if (line != text.npos && text.substr(0, text.find('\n', line + 1)).ends_with(scene.last))
      say(warned);
    std::lock_guard lock(mutex);
    warnings += text;
  };
  std::array<std::string, 4> said;
  run_engines(
      scene.hosts,
      [&](int rank, Engine& engine) {
        const bool busy = rank == scene.busy;
        std::vector<float> part(1), all(4), data(2), other(busy ? 3 : 2);
        const auto hold = [&](std::span<const uint64_t>) {
          if (busy) say(holds), wait_until(warned);
          return all.data();
        };
        std::shared_ptr<Work> loss, refused;
        const auto ask = [&] {
          loss = sum_async(engine, data, "loss");
          refused = sum_async(engine, other, "refused");
        };
        if (busy) ask();
        const auto first = allgather_async(engine, part, hold, "held");
        wait_until(holds);
        if (!busy) ask();
        said[static_cast<size_t>(rank)] = error_of([&] { refused->wait(); });
        if (leaves) return engine.shutdown();
        loss->wait();
        first->wait();
      },
      options);
  CAPTURE(warnings);
  CHECK(warned);
  CHECK_FALSE(late);
  for (int rank = 0; rank < std::accumulate(scene.hosts.begin(), scene.hosts.end(), 0); ++rank)
    CHECK_THAT(said[static_cast<size_t>(rank)],
               Catch::Contains("\"refused\" differs between ranks"));
}

TEST_CASE("hosts: at a timeout a leader that does not answer is who is missing") {
  const auto what = GENERATE(values<std::string>({"\"held\"", "\"loss\"", "allreduce"}));
  CAPTURE(what);
  InProcessWorld world({1, 1, 1});
  HeldUp held(world, 2);
  std::array<std::string, 3> said;
  run_engines(
      world,
      [&](int rank, Engine& engine) {
        std::array<float, 2> data{};
        const auto first = held.submit(rank, engine);
        held.until_held(rank);
        said[static_cast<size_t>(rank)] = error_of([&] {
          if (rank != 2 && what == "\"loss\"") sum_async(engine, data, "loss")->wait();
          if (rank != 2 && what == "allreduce") sum(engine, data);
          first->wait();    // may complete, once rank 2 goes on
          barrier(engine);  // not this
        });
      },
      {.collective_timeout = 500ms}, false);
  for (const size_t rank : {0u, 1u})
    CHECK_THAT(said[rank], Catch::StartsWith("CommFailure: ") &&
                               Catch::Contains("waited 0.500 s for rank 2 in " + what));
}

// Each host's log has room for what its slowest rank has not acted on, and no more.
TEST_CASE("hosts: who keeps a log full is named to who waits for what comes behind") {
  enum class Last { kNew, kKnown, kOnce, kRefused };
  struct Scene {
    Hosts hosts;
    int holder, waits;
    Last last;
  };
  const auto scene = GENERATE(values<Scene>({{{3}, 2, 0, Last::kNew},
                                             {{3}, 2, 0, Last::kRefused},
                                             {{3}, 2, 1, Last::kOnce},
                                             {{3}, 2, 1, Last::kKnown},
                                             {{2, 1}, 1, 0, Last::kNew},
                                             {{2, 1}, 1, 0, Last::kRefused},
                                             {{2, 1}, 1, 2, Last::kKnown},
                                             {{1, 2}, 2, 1, Last::kNew},
                                             {{1, 2}, 2, 1, Last::kRefused},
                                             {{1, 2}, 2, 0, Last::kKnown},
                                             {{1, 3}, 3, 2, Last::kRefused},
                                             {{1, 3}, 3, 2, Last::kKnown}}));
  CAPTURE(scene.hosts, scene.holder, scene.waits, scene.last);
  const auto limit = scene.last == Last::kOnce ? 5 * kLongEnough : kLongEnough;  // many names first
  InProcessWorld world(scene.hosts);
  HeldUp held(world, scene.holder);
  std::array<std::string, 4> said;
  run_engines(
      world,
      [&](int rank, Engine& engine) {
        std::vector<float> data(LogWords::kNamesMax);
        std::vector<std::shared_ptr<Work>> work;
        const auto ask = [&](const std::string& name, size_t count) {
          for (size_t i = 0; i < count; ++i)
            work.push_back(
                sum_async(engine, std::span(data).subspan(i, 1), name + std::to_string(i)));
        };
        const auto ask_for_more_than_there_is_room = [&] {
          ask("s", 300);  // more than two logs hold
          const size_t elements = scene.last == Last::kRefused && rank == 0 ? 2 : 1;
          work.push_back(sum_async(engine, std::span(data).first(elements), "last0"));
        };
        if (scene.last == Last::kKnown) ask("last", 1);
        if (scene.last == Last::kOnce) ask("other", LogWords::kNamesMax);
        for (const auto& one : work) one->wait();
        if (rank == scene.holder) ask_for_more_than_there_is_room();
        const auto first = held.submit(rank, engine);
        held.until_held(rank);
        if (rank != scene.holder) ask_for_more_than_there_is_room();
        if (rank == scene.waits)
          said[static_cast<size_t>(rank)] = error_of([&] { work.back()->wait(); });
        held.until_broken(rank);
        error_of([&] { first->wait(); });
        for (const auto& one : work) error_of([&] { one->wait(); });  // `data` is theirs till then
      },
      {.collective_timeout = limit}, false);
  CHECK_THAT(said[static_cast<size_t>(scene.waits)],
             Catch::Contains("waited " + std::string(scene.last == Last::kOnce ? "5" : "1") +
                             " s for rank " + std::to_string(scene.holder) + " in \"last0\""));
}

// Rank 0 computes, and hears of no wait: who waits judges by itself.
TEST_CASE("hosts: who waits behind a leader that stands still names it, not rank 0") {
  const auto what = GENERATE(values<std::string>({"\"loss\"", "allreduce"}));
  CAPTURE(what);
  InProcessWorld world({1, 2});
  HeldUp held(world, 1);
  std::array<std::string, 3> said;
  run_engines(
      world,
      [&](int rank, Engine& engine) {
        std::array<float, 2> data{};
        const auto first = held.submit(rank, engine);
        said[static_cast<size_t>(rank)] = error_of([&] {
          if (rank == 2 && what == "allreduce") sum(engine, data);
          if (rank == 2) sum_async(engine, data, "loss")->wait();
        });
        held.until_broken(rank);
        error_of([&] { first->wait(); });
      },
      {.collective_timeout = 500ms}, false);
  CHECK_THAT(said[2], Catch::StartsWith("CommFailure: ") &&
                          Catch::Contains("waited 0.500 s for rank 1 in " + what));
}

TEST_CASE("waits: a call on one rank and a step on others, each before the other, break off") {
  const auto hosts = GENERATE(values<Hosts>({{3}, {2, 1}, {1, 2}}));
  const int caller = GENERATE(0, 2);
  CAPTURE(hosts, caller);
  InProcessWorld world(hosts);
  const auto said = errors_of(world, 200ms, [&](int rank, Program& program) {
    program.sgd.step();
    program.call("before");
    program.adam.step();
    if (rank != caller) program.sgd.step();
    program.call("loss");
    program.sgd.step();
  });
  for (const std::string& text : said)
    CHECK_THAT(text,
               Catch::StartsWith("CommFailure: ") &&
                   Catch::Contains("rank " + std::to_string(caller) + " in allreduce \"loss\"") &&
                   Catch::Contains(" in step 2 of \"sgd\"") &&
                   Catch::Contains("do all have as many batches?"));
}

TEST_CASE("waits: two lists' steps in another order break off") {
  const auto hosts = GENERATE(values<Hosts>({{3}, {2, 1}, {1, 2}}));
  const int other = GENERATE(0, 2);
  CAPTURE(hosts, other);
  InProcessWorld world(hosts);
  const auto said = errors_of(world, 200ms, [&](int rank, Program& program) {
    program.sgd.step();
    program.call("before");
    if (rank == other) program.adam.step();
    program.sgd.step();
    if (rank != other) program.adam.step();
  });
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::StartsWith("CommFailure: ") &&
                         Catch::Contains("rank " + std::to_string(other)) &&
                         Catch::Contains(" in step 2 of \"sgd\"") &&
                         Catch::Contains(" in step 1 of \"adam\"") &&
                         Catch::Contains("do all have as many batches?"));
}

TEST_CASE("waits: ranks that are late in calls and steps are never taken to be in another order") {
  const auto hosts = GENERATE(values<Hosts>({{3}, {2, 1}}));
  CAPTURE(hosts);
  InProcessWorld world(hosts);
  const auto sleeps = [&](int rank) {
    return (world.host_of(rank).block().rank(world.local_rank(rank)).asleep & kWaitsBit) != 0;
  };
  const auto said = errors_of(world, 4ms, [&](int rank, Program& program) {
    for (int round = 0; round < 60; ++round) {
      // In turns: the others wait in the call, or in one of the steps.
      const auto late = [&](int place) {
        if ((round + place) % 3 != rank) return;
        until("the others sleep", [&] {
          return (sleeps((rank + 1) % 3) && sleeps((rank + 2) % 3)) ||
                 world.host_of(rank).block().trouble != 0;
        });
      };
      late(0);
      program.sgd.step();
      late(1);
      program.call("loss");
      late(2);
      program.adam.step();
      late(0);
      program.submit("statistic");
    }
  });
  for (const std::string& text : said) CHECK(text.empty());
}
