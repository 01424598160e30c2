// The buckets of engines on devices in registered memory: when it is used, by all ranks alike, and
// when it goes. Over the oldest NCCL whose windows are used.
#include <stdlib.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>

#include "tests/collectives/nccl/engine_devices.h"
#include "tests/collectives/nccl/standin.h"
#include "tests/support/catch.h"
#include "tests/support/until.h"

using namespace hvd;
using Home = BucketList::Home;

// A collective with memory that is registered otherwise on one rank than on another, memory that is
// freed while it is registered, and a communicator that goes while memory is registered with it are
// violations, which end the process.

namespace {

const int kVersion = setenv("HVD_STANDIN_NCCL_VERSION", "22907", 1);

constexpr int kBuckets = 3;
constexpr size_t kBucketBytes = 12'000, kHomesBytes = kBuckets * 12'032;  // in steps of 256

struct Counts {
  long long collectives, symmetric, registered, copies;
  bool operator==(const Counts&) const = default;
};

Counts counts() {
  const auto count = [](const char* name) { return hvd_standin_count(name, -1); };
  return {count("collectives"), count("symmetric_collectives"), count("registered_collectives"),
          count("copies_within")};
}

std::ostream& operator<<(std::ostream& out, const Counts& c) {
  return out << c.collectives << " collectives, " << c.symmetric << " symmetric, " << c.registered
             << " registered, " << c.copies << " copies";
}

// Of all ranks, between two calls of next(), which all of them make.
class StepCounts {
 public:
  explicit StepCounts(int ranks) : ranks_(ranks) {}

  // All ranks' work of a step is on their devices: what has been counted since the last step.
  void next(const DeviceRank& r) {
    barrier(r.engine);
    if (r.rank == 0) {
      const Counts now = counts();
      steps.push_back({now.collectives - last_.collectives, now.symmetric - last_.symmetric,
                       now.registered - last_.registered, now.copies - last_.copies});
      last_ = now;
    }
    barrier(r.engine);
  }
  // A step whose collectives are all of this kind.
  Counts plain(long long copies = 0) const { return {ranks_ * kBuckets, 0, 0, copies}; }
  Counts local() const { return {ranks_ * kBuckets, 0, ranks_ * kBuckets, 0}; }
  Counts symmetric() const { return {ranks_ * kBuckets, ranks_ * kBuckets, ranks_ * kBuckets, 0}; }

  std::vector<Counts> steps;  // the first one is what was before

 private:
  const long long ranks_;
  Counts last_{};
};

// One step of a list: returns how many values are wrong.
int step(const DeviceRank& r, BucketList& list, Home home, int number) {
  for (int i = 0; i < kBuckets; ++i) {
    const int bucket = (i + r.rank) % kBuckets;
    if (home == Home::kSpare && !list.take_spare(bucket)) throw std::runtime_error("no spare");
    r.stream.write(list.memory(bucket, home),
                   std::vector<float>(3000, static_cast<float>(r.rank + bucket + number)));
    list.ready(bucket, home, r.stream.get());
  }
  list.finish({});
  list.join(r.stream.get());
  int wrong = 0;
  for (int bucket = 0; bucket < kBuckets; ++bucket)
    wrong += count_wrong(
        r.stream.read(list.memory(bucket, home), 3000),
        r.ranks() * static_cast<float>(bucket + number) + r.ranks() * (r.ranks() - 1) / 2);
  return wrong;
}

BucketListSpec averages_of(const DeviceRank& r, DataType type) {
  BucketListSpec spec = list_of(r, kBuckets);
  for (BucketShape& bucket : spec.buckets) bucket.type = type;
  spec.reduction.op = ReduceOp::kAverage;
  return spec;
}

// Steps with each rank's choice of its place; the counts of each.
std::vector<Counts> run_steps(const Hosts& hosts, StepCounts& seen, int steps,
                              const std::function<Home(int rank, int step)>& home_of) {
  std::atomic<int> wrong{0};
  run_on_devices(hosts, [&](const DeviceRank& r) {
    const auto list = r.engine.make_bucket_list(list_of(r, kBuckets));
    seen.next(r);
    for (int number = 0; number < steps; ++number) {
      wrong += step(r, *list, home_of(r.rank, number), number);
      seen.next(r);
    }
  });
  CHECK(wrong == 0);
  seen.steps.erase(seen.steps.begin());
  return seen.steps;
}

std::vector<Counts> run_steps_with_a_spare(StepCounts& seen) {
  return run_steps({3}, seen, 4, [](int rank, int number) {
    return rank == 1 && number == 1 ? Home::kSpare : Home::kHome;
  });
}

// A rank each, where registering is taken for a failure after so long. `last`: the architecture of
// the last one.
struct Backends {
  explicit Backends(std::chrono::milliseconds most = std::chrono::milliseconds(200),
                    const char* last = nullptr) {
    const NcclLimits limits{.registering = most};
    for (int rank = 0; rank < 3; ++rank) {
      const Setting architecture("architecture", rank == 2 ? last : nullptr);
      of[static_cast<size_t>(rank)] = make_standin_backend(rank, limits);
    }
  }
  std::array<std::unique_ptr<DeviceBackend>, 3> of;
};

// What all ranks' engines say to the user.
class Warnings {
 public:
  EngineOptions heard() {
    EngineOptions options;
    options.warn = [this](const std::string& text) {
      const std::lock_guard lock(mutex_);
      texts_.push_back(text);
    };
    return options;
  }
  std::vector<std::string> texts() const {
    const std::lock_guard lock(mutex_);
    return texts_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> texts_;
};

void check_memory_is_back(int ranks, const std::vector<size_t>& before) {
  for (int rank = 0; rank < ranks; ++rank)
    CHECK(comes_about([&] { return hvd_standin_used(rank) == before[static_cast<size_t>(rank)]; }));
}

std::vector<size_t> used(int ranks) {
  std::vector<size_t> bytes;
  for (int rank = 0; rank < ranks; ++rank) bytes.push_back(settled_use(rank));
  return bytes;
}

}  // namespace

TEST_CASE("engine windows: every bucket's sum is in one, in every epoch") {
  const auto hosts = GENERATE(values<Hosts>({{1}, {3}, {1, 1}, {2, 1}}));
  CAPTURE(hosts);
  for (int epoch = 0; epoch < 3; ++epoch) {
    int ranks = 0;
    for (const int each : hosts) ranks += each;
    StepCounts seen(ranks);
    const auto steps = run_steps(hosts, seen, 3, [](int, int) { return Home::kHome; });
    CHECK(steps == std::vector(3, seen.symmetric()));
  }
}

TEST_CASE("engine windows: averages of floats are sums there, scaled by a launch for each") {
  const DataType type = GENERATE(DataType::kFloat32, DataType::kFloat16, DataType::kBfloat16,
                                 DataType::kFloat64);  // of which NCCL has no sums in windows
  CAPTURE(name_of(type));
  const long long sums = hvd_standin_count("symmetric_sums", -1);
  const long long kernels = hvd_standin_count("kernels", -1);
  std::atomic<int> wrong{0};
  run_on_devices({3}, [&](const DeviceRank& r) {
    const auto list = r.engine.make_bucket_list(averages_of(r, type));
    const size_t floats = 3000 * size_of(type) / sizeof(float);
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      r.stream.write(list->memory(bucket, Home::kHome),
                     std::vector<float>(floats, static_cast<float>(r.rank)));
      list->ready(bucket, Home::kHome, r.stream.get());
    }
    list->finish({});
    list->join(r.stream.get());
    for (int bucket = 0; bucket < kBuckets && type == DataType::kFloat32; ++bucket)
      wrong += count_wrong(r.stream.read(list->memory(bucket, Home::kHome), 3000), 1);
    r.stream.drain();
  });
  CHECK(wrong == 0);
  const long long wanted = type == DataType::kFloat64 ? 0 : 3 * kBuckets;
  CHECK(hvd_standin_count("symmetric_sums", -1) == sums + wanted);
  CHECK(hvd_standin_count("kernels", -1) == kernels + wanted);
}

// Several hosts, or devices that do not reach each other.
TEST_CASE("engine windows: where NCCL has no kernels for them it averages itself") {
  const bool several_hosts = GENERATE(true, false);
  CAPTURE(several_hosts);
  const Setting nodes("nodes", several_hosts ? "2" : "1");
  const Setting none("no_windows", several_hosts ? "0" : "1");
  const Backends backends(std::chrono::seconds(10));
  const Counts before = counts();
  const long long kernels = hvd_standin_count("kernels", -1);
  run_engines(several_hosts ? Hosts{2, 1} : Hosts{3}, [&](int own, Engine& engine) {
    engine.use_device(*backends.of[static_cast<size_t>(own)]);
    ProgramStream stream(own);
    const DeviceRank r{own, engine, stream};
    const auto list = engine.make_bucket_list(averages_of(r, DataType::kFloat32));
    step(r, *list, Home::kHome, 0);
  });
  CHECK(counts().registered == before.registered + 3 * kBuckets);
  CHECK(hvd_standin_count("kernels", -1) == kernels);
}

TEST_CASE("engine windows: a rank without kernels takes all out of them") {
  const Backends backends(std::chrono::seconds(10), "70");
  const Counts before = counts();
  Warnings warnings;
  run_engines(
      Hosts{3},
      [&](int own, Engine& engine) {
        engine.use_device(*backends.of[static_cast<size_t>(own)]);
        ProgramStream stream(own);
        const DeviceRank r{own, engine, stream};
        const auto list = engine.make_bucket_list(averages_of(r, DataType::kFloat32));
        step(r, *list, Home::kHome, 0);
        engine.make_bucket_list(list_of(r, 1, "another"));
      },
      warnings.heard());
  REQUIRE(warnings.texts().size() == 1);
  CHECK_THAT(
      warnings.texts()[0],
      Catch::StartsWith("GPU memory is not registered with NCCL, so that NCCL copies "
                        "gradients once more, since a rank cannot; rank 2: hvd's kernels, ") &&
          Catch::Contains("(CUDA_ERROR_NO_BINARY_FOR_GPU); update the GPU's driver"));
  CHECK(counts().collectives == before.collectives + 3 * kBuckets);
  CHECK(counts().registered == before.registered);
}

TEST_CASE("engine windows: a rank in its spare takes all out of them for that step") {
  StepCounts seen(3);
  const auto steps = run_steps_with_a_spare(seen);
  // In and out on the two that are at home.
  CHECK(steps == std::vector{seen.symmetric(), seen.plain(2 * 2 * kBuckets), seen.symmetric(),
                             seen.symmetric()});
}

TEST_CASE("engine windows: ranks that are all in their spares copy nothing") {
  StepCounts seen(2);
  const auto steps = run_steps(
      {2}, seen, 3, [](int, int number) { return number == 1 ? Home::kSpare : Home::kHome; });
  CHECK(steps == std::vector{seen.symmetric(), seen.plain(), seen.symmetric()});
}

TEST_CASE("engine windows: where there are none memory is registered by itself") {
  const Setting none("no_windows", "1");
  StepCounts seen(3);
  const auto steps = run_steps_with_a_spare(seen);
  CHECK(steps ==
        std::vector{seen.local(), seen.plain(2 * 2 * kBuckets), seen.local(), seen.local()});
}

TEST_CASE("engine windows: memory that one rank cannot register is plain on all") {
  const Setting none("no_windows", "1"), fails("registration_fails", "1");
  const Setting rank("fault_rank", GENERATE("-1", "1"));
  StepCounts seen(3);
  const auto steps = run_steps_with_a_spare(seen);
  CHECK(steps == std::vector(4, seen.plain()));  // and a spare is nobody else's business
}

// The second list's registering fails where the first one's has not.
TEST_CASE("engine windows: a failure in the midst of registering means plain memory on all") {
  const std::string call = GENERATE("ncclCommWindowRegister", "window");
  const int number = GENERATE(1, 2);
  CAPTURE(call, number);
  const Setting fails("fail_call", (call + ":" + std::to_string(number) + ":2").c_str());
  const Setting rank("fault_rank", "1");
  const auto hosts = number == 2 ? Hosts{2, 1} : Hosts{3};
  const Backends backends;
  const long long aborts = hvd_standin_count("aborts", -1);
  const long long communicators = hvd_standin_count("communicators", -1);
  StepCounts seen(3);
  std::atomic<int> wrong{0};
  Warnings warnings;
  run_engines(
      hosts,
      [&](int own, Engine& engine) {
        engine.use_device(*backends.of[static_cast<size_t>(own)]);
        ProgramStream stream(own);
        const DeviceRank r{own, engine, stream};
        const auto first = engine.make_bucket_list(list_of(r, kBuckets, "first"));
        const auto second = engine.make_bucket_list(list_of(r, kBuckets, "second"));
        for (int k = 0; k < 3; ++k) {
          seen.next(r);
          wrong += step(r, *(k == 0 ? first : second), Home::kHome, k);
        }
        seen.next(r);
      },
      warnings.heard());
  CHECK(wrong == 0);
  seen.steps.erase(seen.steps.begin());
  CHECK(seen.steps == std::vector(3, seen.plain()));
  CHECK(hvd_standin_count("communicators", -1) == communicators + 6);
  CHECK(hvd_standin_count("aborts", -1) == aborts + 3);
  const std::vector<std::string> said = warnings.texts();
  REQUIRE(said.size() == 1);
  CHECK_THAT(said[0], Catch::StartsWith("GPU memory is not registered with NCCL ") &&
                          Catch::Contains("NCCL_WIN_ENABLE=0 does without"));
}

TEST_CASE("engine windows: what failed in registering is named, and the next epoch registers") {
  Warnings warnings;
  {
    const Setting fails("fail_call", "ncclCommWindowRegister:1:2"), rank("fault_rank", "1");
    const Backends backends(std::chrono::seconds(1));
    run_engines(
        Hosts{3},
        [&](int own, Engine& engine) {
          engine.use_device(*backends.of[static_cast<size_t>(own)]);
          ProgramStream stream(own);
          engine.make_bucket_list(list_of({own, engine, stream}, kBuckets));
        },
        warnings.heard());
  }
  REQUIRE(warnings.texts().size() == 1);
  CHECK_THAT(warnings.texts()[0], Catch::Contains("rank 1: NCCL failed in register \"sgd.list.") &&
                                      Catch::Contains("unhandled system error"));
  StepCounts seen(3);
  CHECK(run_steps({3}, seen, 1, [](int, int) { return Home::kHome; }) ==
        std::vector{seen.symmetric()});
}

TEST_CASE("engine windows: a rank dies while all connect anew") {
  const Setting fails("fail_call", "ncclCommWindowRegister:1:2"), rank("fault_rank", "1");
  const long long windows = hvd_standin_count("windows", -1);
  const long long communicators = hvd_standin_count("communicators", -1);
  const Backends backends;
  InProcessWorld world({3});
  std::array<std::string, 3> said;
  std::atomic<int> told{0};
  run_engines(
      world,
      [&](int own, Engine& engine) {
        engine.use_device(*backends.of[static_cast<size_t>(own)]);
        ProgramStream stream(own);
        std::jthread other;
        if (own == 2)
          other = std::jthread([&] {
            const auto count = [](const char* name) { return hvd_standin_count(name, -1); };
            until("two register", [&] { return count("windows") == windows + 2; });
            hvd_standin_set("init_hangs", "1");
            until("all connect", [&] { return count("communicators") == communicators + 6; });
            world.declare_dead(2);
          });
        said[static_cast<size_t>(own)] =
            error_of([&] { engine.make_bucket_list(list_of({own, engine, stream}, kBuckets)); });
        ++told;
        until("all are told", [&] { return told == 3; });
      },
      {}, false);
  hvd_standin_set("init_hangs", nullptr);
  for (const size_t own : {0, 1})
    CHECK_THAT(said[own], Catch::StartsWith("CommFailure: ") && Catch::Contains("rank 2"));
}

TEST_CASE("engine windows: a rank that aborts, or dies, while they are registered") {
  const bool dies = GENERATE(true, false);
  const Setting hangs("window_hangs", "1"), rank("fault_rank", "2");
  const long long before = hvd_standin_count("windows", -1);
  InProcessWorld world({3});
  std::vector<std::string> said(3);
  std::atomic<int> told{0};
  run_engines(
      world,
      [&](int number, Engine& engine) {
        engine.use_device(standin_backend(number));
        ProgramStream stream(number);
        const DeviceRank r{number, engine, stream};
        std::jthread other;
        if (number == 2)
          other = std::jthread([&] {
            until("all register", [&] { return hvd_standin_count("windows", -1) == before + 3; });
            if (dies)
              world.declare_dead(2);
            else
              engine.abort("a test's");
          });
        said[static_cast<size_t>(number)] =
            error_of([&] { engine.make_bucket_list(list_of(r, kBuckets)); });
        ++told;
        until("all are told", [&] { return told == 3; });
      },
      {}, false);
  for (const int number : {0, 1})
    CHECK_THAT(said[static_cast<size_t>(number)],
               Catch::StartsWith("CommFailure: ") && Catch::Contains("rank 2"));
}

// A rank never comes to a sum in windows: what cannot be aborted is a violation.
TEST_CASE("engine windows: an abort ends a sum in them") {
  const auto said = errors_on_devices(3, [&](const DeviceRank& r) {
    const auto list = r.engine.make_bucket_list(list_of(r, kBuckets));
    step(r, *list, Home::kHome, 0);
    if (r.rank == 2) return r.engine.abort("the test ends it");
    step(r, *list, Home::kHome, 1);
  });
  for (const int rank : {0, 1})
    CHECK_THAT(said[static_cast<size_t>(rank)],
               Catch::StartsWith("CommFailure: ") && Catch::Contains("the test ends it"));
}

TEST_CASE("engine windows: memory goes when the last tensor and the communicator have") {
  const std::vector<size_t> before = used(2);
  std::vector<std::shared_ptr<const void>> kept(2);
  run_on_devices({2}, [&](const DeviceRank& r) {
    const auto list = r.engine.make_bucket_list(list_of(r, kBuckets));
    step(r, *list, Home::kHome, 0);
    kept[static_cast<size_t>(r.rank)] = list->holder(0, Home::kHome);
  });
  // What they go through where ranks are apart is gone; a bucket's home holds the others.
  check_memory_is_back(2, {before[0] + kHomesBytes, before[1] + kHomesBytes});
  kept.clear();
  check_memory_is_back(2, before);
}

TEST_CASE("engine windows: memory of lists that are gone goes with shutdown()") {
  const std::vector<size_t> before = used(2);
  run_on_devices({2}, [&](const DeviceRank& r) {
    step(r, *r.engine.make_bucket_list(list_of(r, kBuckets)), Home::kHome, 0);
    r.engine.shutdown();
    until("it is back",
          [&] { return hvd_standin_used(r.rank) == before[static_cast<size_t>(r.rank)]; });
  });
}

TEST_CASE("engine windows: memory that all have let go of makes room for the next list's") {
  const std::vector<size_t> before = used(3);
  std::array<std::vector<size_t>, 3> seen;
  std::atomic<int> wrong{0};
  run_on_devices({3}, [&](const DeviceRank& r) {
    std::shared_ptr<const void> kept;
    for (int round = 0; round < 6; ++round) {
      const auto list = r.engine.make_bucket_list(list_of(r, kBuckets));
      wrong += step(r, *list, Home::kHome, round);
      // One rank's gradient outlives its list, and the next one.
      if (round == 2 && r.rank == 1) kept = list->holder(0, Home::kHome);
      if (round == 4) kept.reset();
      barrier(r.engine);
      seen[static_cast<size_t>(r.rank)].push_back(hvd_standin_used(r.rank));
      barrier(r.engine);
    }
  });
  CHECK(wrong == 0);
  const size_t of_one = kHomesBytes + kBucketBytes;
  // What went for the list before this one may still be on its way.
  for (size_t rank = 0; rank < seen.size(); ++rank)
    for (const size_t each : seen[rank]) CHECK(each <= before[rank] + 3 * of_one);
  check_memory_is_back(3, before);
}
