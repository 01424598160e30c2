// The buckets of engines on devices in registered memory: when it is used, by all ranks alike, and
// when it goes.
#include <array>
#include <atomic>
#include <memory>
#include <string>

#include "tests/collectives/nccl/windowed_lists.h"
#include "tests/support/catch.h"
#include "tests/support/until.h"

using namespace hvd;

// A collective with memory that is registered otherwise on one rank than on another, memory that is
// freed while it is registered, and a communicator that goes while memory is registered with it are
// violations, which end the process.

namespace {

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

TEST_CASE("engine windows: a list's averages are sums of what comes multiplied") {
  const DataType type = GENERATE(DataType::kFloat32, DataType::kFloat16, DataType::kBfloat16,
                                 DataType::kFloat64);  // of which NCCL has no sums in windows
  CAPTURE(name_of(type));
  const long long sums = hvd_standin_count("symmetric_sums", -1);
  const long long kernels = hvd_standin_count("kernels", -1);
  std::atomic<int> wrong{0};
  run_on_devices({3}, [&](const DeviceRank& r) {
    BucketListSpec spec = averages_of(r, type);
    spec.reduction.prescale = 4;
    spec.reduction.postscale = 0.5;
    const auto list = r.engine.make_bucket_list(spec);
    wrong += list->factor() != 4 * 0.5 / 3;
    const size_t floats = 3000 * size_of(type) / sizeof(float);
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      r.stream.write(list->memory(bucket, Home::kHome),
                     std::vector<float>(floats, static_cast<float>(r.rank)));
      list->ready(bucket, Home::kHome, r.stream.get());
    }
    list->finish({});
    list->join(r.stream.get());
    for (int bucket = 0; bucket < kBuckets && type == DataType::kFloat32; ++bucket)
      wrong += count_wrong(r.stream.read(list->memory(bucket, Home::kHome), 3000), 0 + 1 + 2);
    r.stream.drain();
  });
  CHECK(wrong == 0);
  const long long wanted = type == DataType::kFloat64 ? 0 : 3 * kBuckets;
  CHECK(hvd_standin_count("symmetric_sums", -1) == sums + wanted);
  CHECK(hvd_standin_count("kernels", -1) == kernels);
}

// Several hosts, or devices that do not reach each other.
TEST_CASE("engine windows: where NCCL has no kernels for them nothing else changes") {
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

TEST_CASE("engine windows: a rank whose driver takes no kernels of hvd's uses them, too") {
  const Backends backends(std::chrono::seconds(10), "70");
  const Counts before = counts();
  Warnings warnings;
  std::atomic<int> wrong{0};
  run_engines(
      Hosts{3},
      [&](int own, Engine& engine) {
        engine.use_device(*backends.of[static_cast<size_t>(own)]);
        ProgramStream stream(own);
        const DeviceRank r{own, engine, stream};
        const auto list = engine.make_bucket_list(averages_of(r, DataType::kFloat32));
        wrong += step(r, *list, Home::kHome, 0);
      },
      warnings.heard());
  CHECK(wrong == 0);
  CHECK(warnings.texts().empty());
  CHECK(counts().symmetric == before.symmetric + 3 * kBuckets);
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
