// The bucket list over ranks as threads: bits, verdicts, differing layouts.
#include "runtime/engine/engine_bucket_list.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <numeric>
#include <random>
#include <span>
#include <thread>

#include "tests/runtime/engine/engine_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/memory_limit_folder.h"
#include "tests/support/until.h"

using namespace hvd;
using Home = BucketList::Home;
using namespace std::chrono_literals;

namespace {

const std::vector<BucketShape> kShapes = {{DataType::kFloat32, 7000},
                                          {DataType::kFloat64, 100},
                                          {DataType::kFloat32, 1},
                                          {DataType::kFloat32, 70'000}};

BucketListSpec spec_of(const std::string& name, int bias = 1, size_t buckets = 4) {
  BucketListSpec spec;
  spec.name = name;
  spec.buckets.assign(kShapes.begin(), kShapes.begin() + static_cast<std::ptrdiff_t>(buckets));
  spec.parameters = 100;
  spec.layout = "op Average\nweight float32 [7000]\nbias float32 [" + std::to_string(bias) + "]";
  spec.reduction.op = ReduceOp::kAverage;
  return spec;
}

// What rank, step and bucket put at `i`: fractions whose sum depends on the order of additions.
float value(int rank, int step, int bucket, size_t i) {
  std::minstd_rand random(static_cast<unsigned>(rank * 7919 + step * 104729 + bucket * 31) +
                          static_cast<unsigned>(i));
  random.discard(2);
  return static_cast<float>(random()) / 1e6f - 1000.0f;
}

void fill(BucketList& list, int bucket, Home home, int rank, int step) {
  const BucketShape& shape = kShapes[static_cast<size_t>(bucket)];
  std::byte* to = list.memory(bucket, home);
  for (size_t i = 0; i < shape.count; ++i) {
    const float x = value(rank, step, bucket, i);
    if (shape.type == DataType::kFloat32) reinterpret_cast<float*>(to)[i] = x;
    if (shape.type == DataType::kFloat64) reinterpret_cast<double*>(to)[i] = x;
  }
}

// Wrong bits against one process that adds the same parts in rank order and multiplies once.
template <typename T>
int wrong_bits(const std::byte* data, size_t count, int ranks, int step, int bucket) {
  int wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    T sum = value(0, step, bucket, i);
    for (int rank = 1; rank < ranks; ++rank) sum += value(rank, step, bucket, i);
    const T expected = static_cast<T>(sum * (T{1} / static_cast<T>(ranks)));
    const auto bits = std::as_bytes(std::span(&expected, 1));
    wrong += !std::equal(bits.begin(), bits.end(), data + i * sizeof(T));
  }
  return wrong;
}

int wrong_bits(const BucketList& list, int bucket, Home home, int ranks, int step) {
  const BucketShape& shape = kShapes[static_cast<size_t>(bucket)];
  const std::byte* data = list.memory(bucket, home);
  return shape.type == DataType::kFloat32
             ? wrong_bits<float>(data, shape.count, ranks, step, bucket)
             : wrong_bits<double>(data, shape.count, ranks, step, bucket);
}

void all_ready(BucketList& list, int buckets = 4) {
  for (int bucket = 0; bucket < buckets; ++bucket) list.ready(bucket, Home::kHome);
}

void step(BucketList& list, int buckets = 4) {
  all_ready(list, buckets);
  list.finish({});
}

// What is thrown to whom when the last rank lets go of its list after a step and does `then`, while
// the others make another step.
std::vector<std::string> let_go_early(const Hosts& hosts, int buckets,
                                      const std::function<void(Engine&)>& then) {
  const int ranks = std::accumulate(hosts.begin(), hosts.end(), 0);
  std::vector<std::string> said(static_cast<size_t>(ranks));
  run_engines(
      hosts,
      [&](int rank, Engine& engine) {
        auto list = engine.make_bucket_list(spec_of("sgd", 1, static_cast<size_t>(buckets)));
        auto& text = said[static_cast<size_t>(rank)];
        if (rank < ranks - 1) {
          text = error_of([&] {
            step(*list, buckets);
            step(*list, buckets);
          });
        } else {
          step(*list, buckets);
          list.reset();
          text = error_of([&] { then(engine); });
        }
      },
      {.collective_timeout = 10s}, false);
  return said;
}

}  // namespace

TEST_CASE("bucket list: averages bit for bit, ready in any order, from home or spare") {
  for (const Hosts& hosts : {Hosts{1}, {2}, {4}, {1, 1}}) {
    const int ranks = std::accumulate(hosts.begin(), hosts.end(), 0);
    std::atomic<int> wrong{0};
    run_engines(hosts, [&](int rank, Engine& engine) {
      const auto list = engine.make_bucket_list(spec_of("sgd"));
      std::mt19937 random(static_cast<unsigned>(rank));
      for (int step = 0; step < 12; ++step) {
        std::vector<int> order = {0, 1, 2, 3};
        std::shuffle(order.begin(), order.end(), random);
        std::vector<Home> homes(4);
        for (const int bucket : order) {
          homes[static_cast<size_t>(bucket)] = random() % 3 == 0 ? Home::kSpare : Home::kHome;
          fill(*list, bucket, homes[static_cast<size_t>(bucket)], rank, step);
        }
        std::jthread hooks([&] {  // as autograd's threads
          for (const int bucket : order) list->ready(bucket, homes[static_cast<size_t>(bucket)]);
        });
        hooks.join();
        wrong += list->finished_buckets() > 3;  // the last one waits for finish()
        const StepVerdict verdict = list->finish({});
        wrong += !verdict.poison.empty() || list->step() != static_cast<uint64_t>(step) + 1;
        for (int bucket = 0; bucket < 4; ++bucket)
          wrong += wrong_bits(*list, bucket, homes[static_cast<size_t>(bucket)], ranks, step);
      }
    });
    CHECK(wrong == 0);
  }
}

TEST_CASE("bucket list: over several hosts the same bits on all ranks, in every run") {
  const auto hosts = GENERATE(values<Hosts>({{2, 2}, {1, 3}, {1, 1, 1}}));
  CAPTURE(hosts);
  const auto ranks = static_cast<size_t>(std::accumulate(hosts.begin(), hosts.end(), 0));
  std::vector<std::vector<std::byte>> bits(2 * ranks);  // of both runs
  for (const size_t run : {size_t{0}, size_t{1}})
    run_engines(hosts, [&](int rank, Engine& engine) {
      const auto list = engine.make_bucket_list(spec_of("sgd"));
      auto& mine = bits[run * ranks + static_cast<size_t>(rank)];
      for (int step = 0; step < 3; ++step) {
        for (int bucket = 0; bucket < 4; ++bucket) fill(*list, bucket, Home::kHome, rank, step);
        all_ready(*list);
        list->finish({});
        for (int bucket = 0; bucket < 4; ++bucket) {
          const BucketShape& shape = kShapes[static_cast<size_t>(bucket)];
          const std::byte* data = list->memory(bucket, Home::kHome);
          mine.insert(mine.end(), data, data + shape.count * size_of(shape.type));
        }
      }
    });
  CHECK_FALSE(bits[0].empty());
  for (const auto& one : bits) CHECK((one == bits[0]));
}

TEST_CASE("bucket list: buckets but the last finish everywhere before finish() is called") {
  const auto hosts = GENERATE(values<Hosts>({{2}, {1, 1}}));
  CAPTURE(hosts);
  std::atomic<int> finished{0};
  run_engines(hosts, [&](int rank, Engine& engine) {
    const auto list = engine.make_bucket_list(spec_of("sgd"));
    for (int bucket = 0; bucket < 4; ++bucket) fill(*list, bucket, Home::kHome, rank, 0);
    all_ready(*list);
    // Its engine threads move it.
    until("three buckets have finished", [&] { return list->finished_buckets() >= 3; });
    finished += list->finished_buckets();
    list->finish({});
  });
  CHECK(finished == 6);
}

// Rank 0 has given a bucket away and computes; the stall is that of rank 2, and of rank 1's step.
TEST_CASE("bucket list: a stall is reported by a rank that waits, though a lower one does not") {
  std::mutex mutex;
  std::string warning;
  const auto warned = [&] {
    std::lock_guard lock(mutex);
    return warning.find("sgd") != std::string::npos;
  };
  std::atomic<bool> ready{false};
  EngineOptions options;
  options.stall_warning = 200ms;
  options.warn = [&](const std::string& text) {
    std::lock_guard lock(mutex);
    if (text.find("sgd") != std::string::npos) warning = text;
  };
  run_engines(
      std::vector{3},
      [&](int rank, Engine& engine) {
        const auto list = engine.make_bucket_list(spec_of("sgd"));
        if (rank == 0) list->ready(0, Home::kHome), ready = true;
        until("rank 0 has given a bucket away", [&] { return ready.load(); });
        if (rank != 1) until("rank 1 reports the stall", warned);
        for (int bucket = rank == 0 ? 1 : 0; bucket < 4; ++bucket) list->ready(bucket, Home::kHome);
        list->finish({});
      },
      options);
  CHECK_THAT(warning, Catch::Contains("Missing ranks:\n2: ["));
}

TEST_CASE("bucket list: the verdict gathers poison, later layouts and used bits of all ranks") {
  const auto hosts = GENERATE(values<Hosts>({{3}, {2, 1}, {1, 1, 1}}));
  CAPTURE(hosts);
  std::array<StepVerdict, 3> voided, next;
  run_engines(hosts, [&](int rank, Engine& engine) {
    const auto list = engine.make_bucket_list(spec_of("sgd"));
    StepWord word;
    word.used = {uint64_t{1} << rank, uint64_t{1} << (rank + 20)};
    word.additions = rank == 1 ? 77 : 0;
    if (rank > 0) word.poison = "weight got a second gradient " + std::to_string(rank);
    all_ready(*list);
    voided[static_cast<size_t>(rank)] = list->finish(word);
    all_ready(*list);
    next[static_cast<size_t>(rank)] = list->finish({});
  });
  for (const StepVerdict& verdict : voided) {
    CHECK(verdict.poison == "rank 1: weight got a second gradient 1");
    CHECK(verdict.additions == std::vector<uint32_t>{0, 77, 0});
    CHECK(verdict.used == std::vector<uint64_t>{7, 7u << 20});
  }
  for (const StepVerdict& verdict : next) {
    CHECK(verdict.poison.empty());
    CHECK(verdict.used == std::vector<uint64_t>{0, 0});
  }
}

TEST_CASE("bucket list: ranks whose layouts differ are told both sides, and the world lives") {
  const auto hosts = GENERATE(values<Hosts>({{3}, {2, 1}, {1, 1, 1}}));
  CAPTURE(hosts);
  std::array<std::string, 3> said;
  std::atomic<int> wrong{0};
  run_engines(hosts, [&](int rank, Engine& engine) {
    said[static_cast<size_t>(rank)] =
        error_of([&] { engine.make_bucket_list(spec_of("sgd", rank == 2 ? 9 : 1)); });
    const auto list = engine.make_bucket_list(spec_of("sgd"));
    all_ready(*list);
    list->finish({});
    wrong += list->step() != 1;
  });
  CHECK(wrong == 0);
  CHECK_THAT(said[0],
             Catch::Contains("\"sgd\" differ between ranks: rank 0 has bias float32 [1], ") &&
                 Catch::Contains("parameter 2 of 2; rank 2 has bias float32 [9], "));
  CHECK_THAT(said[0], !Catch::Contains("contiguous"));
  CHECK(said[0] == said[1]);
  CHECK(said[0] == said[2]);
}

TEST_CASE("bucket list: of twenty thousand parameters the last one is named when it differs") {
  const auto hosts = GENERATE(values<Hosts>({{4}, {2, 2}}));
  CAPTURE(hosts);
  std::array<std::string, 4> said;
  run_engines(hosts, [&](int rank, Engine& engine) {
    BucketListSpec spec = spec_of("sgd");
    for (int i = 0; i < 20'000; ++i)
      spec.layout += "\nencoder.layer.attention.weight." + std::to_string(i) + " float32 [64, 64]";
    if (rank == 3) spec.layout.back() = 'x';
    said[static_cast<size_t>(rank)] = error_of([&] { engine.make_bucket_list(spec); });
  });
  CHECK_THAT(said[0], Catch::Contains("weight.19999 float32 [64, 64], parameter 20002 of 20002; "
                                      "rank 3 has encoder.layer.attention.weight.19999 float32 "
                                      "[64, 64x, parameter 20002 of 20002; "));
  for (const std::string& one : said) CHECK(one == said[0]);
}

TEST_CASE("bucket list: two lists and calls beside them do not hold each other up") {
  const auto hosts = GENERATE(values<Hosts>({{2}, {1, 1}}));
  CAPTURE(hosts);
  std::atomic<int> wrong{0};
  run_engines(hosts, [&](int rank, Engine& engine) {
    const auto first = engine.make_bucket_list(spec_of("first"));
    const auto second = engine.make_bucket_list(spec_of("second"));
    for (int step = 0; step < 30; ++step) {
      // Each rank starts with another list: under one lock in order of calls this would hang.
      BucketList& one = rank == 0 ? *first : *second;
      BucketList& other = rank == 0 ? *second : *first;
      for (int bucket = 0; bucket < 4; ++bucket) {
        fill(one, bucket, Home::kHome, rank, step);
        fill(other, bucket, Home::kHome, rank, step);
      }
      all_ready(one);
      std::array<float, 1> loss{1};
      sum(engine, loss, "loss");
      wrong += loss[0] != 2;
      all_ready(other);
      first->finish({});
      second->finish({});
      for (int bucket = 0; bucket < 4; ++bucket)
        wrong += wrong_bits(*first, bucket, Home::kHome, 2, step);
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("bucket list: let go in the middle of a step, it breaks the epoch off by name") {
  const auto hosts = GENERATE(values<Hosts>({{2}, {1, 1}}));
  const int buckets = GENERATE(1, 4);  // of a single one nothing is issued before finish()
  CAPTURE(hosts, buckets);
  std::string said;
  run_engines(
      hosts,
      [&](int rank, Engine& engine) {
        auto list = engine.make_bucket_list(spec_of("sgd", 1, static_cast<size_t>(buckets)));
        error_of([&] { barrier(engine); });  // between hosts it may be broken off already
        all_ready(*list, buckets);
        if (rank == 0) said = error_of([&] { list->finish({}); });
        if (rank == 1) list.reset();
      },
      {}, false);
  CHECK_THAT(said, Catch::EndsWith("step 1 of \"sgd\" failed: rank 1 let go of \"sgd\" in the "
                                   "middle of a step"));
}

TEST_CASE("bucket list: shutdown() in the middle of a step is told to whoever waits elsewhere") {
  const auto hosts = GENERATE(values<Hosts>({{2}, {1, 1}}));
  const std::string elsewhere = GENERATE("in a call", "in the log", "in another list");
  CAPTURE(hosts, elsewhere);
  std::string said;
  run_engines(
      hosts,
      [&](int rank, Engine& engine) {
        const auto list = engine.make_bucket_list(spec_of("sgd"));
        const auto other = engine.make_bucket_list(spec_of("other"));
        error_of([&] { barrier(engine); });  // between hosts it may be broken off already
        if (rank == 0) {
          list->ready(0, Home::kHome);
          return engine.shutdown();
        }
        std::array<float, 1> data{};
        said = error_of([&] {
          if (elsewhere == "in a call") sum(engine, data);
          if (elsewhere == "in the log") sum_async(engine, data, "x")->wait();
          if (elsewhere == "in another list") step(*other);
        });
      },
      {.collective_timeout = 10s}, false);
  CHECK_THAT(said, Catch::StartsWith("CommFailure: ") &&
                       Catch::EndsWith("rank 0 called shutdown() in the middle of a step"));
}

TEST_CASE("bucket list: shutdown() by all in the middle of a step ends it on all") {
  const auto hosts = GENERATE(values<Hosts>({{3}, {1, 2}}));
  CAPTURE(hosts);
  std::atomic<int> ended{0};
  run_engines(hosts, [&](int, Engine& engine) {
    const auto list = engine.make_bucket_list(spec_of("sgd"));
    step(*list);
    list->ready(0, Home::kHome);
    list->ready(1, Home::kHome);
    engine.shutdown();
    ++ended;
  });
  CHECK(ended == 3);
}

TEST_CASE("bucket list: who needs a rank that let go of it after a step fails and names it") {
  for (const Hosts& hosts : {Hosts{2}, {3}, {1, 1}, {2, 1}, {1, 2}})
    for (const int buckets : {1, 4}) {
      CAPTURE(hosts, buckets);
      const int ranks = std::accumulate(hosts.begin(), hosts.end(), 0);
      const std::string reason = "failed: rank " + std::to_string(ranks - 1) +
                                 " let go of \"sgd\", or called shutdown(), while other ranks went";
      auto said = let_go_early(hosts, buckets, [](Engine& engine) { engine.shutdown(); });
      CHECK(said.back().empty());
      for (int rank = 0; rank < ranks - 1; ++rank)
        CHECK_THAT(said[static_cast<size_t>(rank)],
                   Catch::StartsWith("CommFailure: step ") && Catch::Contains(reason) &&
                       // Between hosts the last step that completed may differ by one.
                       (hosts.size() > 1 ? Catch::Contains("") : Catch::Contains("step 2 of")));

      said = let_go_early(hosts, buckets, [](Engine& engine) {
        step(*engine.make_bucket_list(spec_of("another")));
      });
      for (const std::string& text : said) CHECK_THAT(text, Catch::Contains(reason));
    }
}

TEST_CASE("bucket list: let go of by all, here sooner and there later, it breaks nothing") {
  const auto hosts = GENERATE(values<Hosts>({{4}, {2, 2}, {1, 3}}));
  CAPTURE(hosts);
  std::atomic<int> steps{0};
  run_engines(hosts, [&](int rank, Engine& engine) {
    std::unique_ptr<BucketList> previous;
    for (int round = 0; round < 50; ++round) {
      auto list = engine.make_bucket_list(spec_of("sgd", 1, round % 2 == 0 ? 1 : 4));
      step(*list, round % 2 == 0 ? 1 : 4);
      if (rank % 2 == 0) list.reset();
      previous = std::move(list);
      std::array<float, 1> loss{1};
      sum(engine, loss, "loss");
      ++steps;
    }
  });
  CHECK(steps == 4 * 50);
}

TEST_CASE("bucket list: its memory goes back with its last user, but for what others look at") {
  const std::vector<BucketShape> shapes(2, {DataType::kFloat32, 1 << 20});
  std::atomic<size_t> before{0}, held{0}, after{0};
  run_engines(2, [&](int, Engine& engine) {
    BucketListSpec spec = spec_of("sgd");
    spec.buckets = shapes;
    auto list = engine.make_bucket_list(spec);
    const std::byte* const home = list->memory(0, Home::kHome);
    auto gradient = list->holder(0, Home::kHome);
    constexpr size_t kBytes = size_t{4} << 20;
    before += resident_pages(home, kBytes);
    list.reset();
    held += resident_pages(home, kBytes);
    gradient.reset();
    barrier(engine);
    after += resident_pages(home, kBytes);
  });
  CHECK(before == 2 * 1024);
  CHECK(held == before);
  CHECK(after == 0);
}

TEST_CASE("bucket list: the memory of a spare is taken at its first use, of that bucket alone") {
  constexpr size_t kAllSpares = 76 * 4096;
  std::atomic<size_t> before{0}, taken{0}, again{0};
  run_engines(2, [&](int, Engine& engine) {
    const auto list = engine.make_bucket_list(spec_of("sgd"));
    const std::byte* spares = list->memory(0, Home::kSpare);
    before += resident_pages(spares, kAllSpares);
    const bool first = list->take_spare(0);
    taken += first ? resident_pages(spares, kAllSpares) : 0;
    const bool second = list->take_spare(0);
    again += second ? resident_pages(spares, kAllSpares) : 0;
  });
  CHECK(before == 0);
  CHECK(taken == 2 * 7);  // 28,000 bytes
  CHECK(again == taken);
}

TEST_CASE("bucket list: without room for a spare the epoch breaks, with the figures, for all") {
  const auto hosts = GENERATE(values<Hosts>({{1}, {3}, {1, 1}}));
  CAPTURE(hosts);
  const MemoryLimitFolder limit(20);  // the first bucket has 28,000 bytes, the second one 800
  InProcessWorld world(hosts);
  const int poor = world.size() - 1;
  std::vector<std::string> said(static_cast<size_t>(world.size()));
  std::atomic<int> wrong{0};
  run_engines(
      world,
      [&](int rank, Engine& engine) {
        const auto list = engine.make_bucket_list(spec_of("sgd"));
        step(*list);
        if (rank != poor) {
          all_ready(*list);
        } else {
          world.host_of(rank).limit_memory(limit.path());
          wrong += !list->take_spare(1);
          wrong += list->take_spare(0);
          wrong += resident_pages(list->memory(0, Home::kSpare), 6 * 4096) != 0;
          for (const int bucket : {1, 2, 3})
            list->ready(bucket, bucket == 1 ? Home::kSpare : Home::kHome);
        }
        for (int round = 0; round < 2; ++round)
          said[static_cast<size_t>(rank)] = error_of([&] { list->finish({}); });
      },
      {}, false);
  CHECK(wrong == 0);
  for (const std::string& text : said)
    CHECK(text == "CommFailure: step 2 of \"sgd\" failed: rank " + std::to_string(poor) +
                      " kept gradients and has no room for the next ones: cannot take 28000 bytes "
                      "of shared memory: of the 1024000 bytes of this machine 1003520 are in use; "
                      "ask for less, or start fewer ranks on this host");
}

TEST_CASE("bucket list: outlives its engine and says so") {
  std::string said;
  run_engines(1, [&](int, Engine& engine) {
    const auto list = engine.make_bucket_list(spec_of("sgd"));
    all_ready(*list);
    list->finish({});
    engine.shutdown();
    said = error_of([&] { list->finish({}); });
    list->ready(0, Home::kHome);  // a hook may still fire
  });
  CHECK_THAT(said, Catch::Contains("\"sgd\" belongs to an epoch that shutdown() has ended") &&
                       Catch::Contains("make a new DistributedOptimizer after init()"));
}
