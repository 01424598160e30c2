#include "tests/collectives/nccl/windowed_lists.h"

#include <stdlib.h>

#include <atomic>
#include <stdexcept>

#include "tests/support/catch.h"

namespace hvd {
namespace {

const int kVersion = setenv("HVD_STANDIN_NCCL_VERSION", "22907", 1);

}  // namespace

Counts counts() {
  const auto count = [](const char* name) { return hvd_standin_count(name, -1); };
  return {count("collectives"), count("symmetric_collectives"), count("registered_collectives"),
          count("copies_within")};
}

std::ostream& operator<<(std::ostream& out, const Counts& c) {
  return out << c.collectives << " collectives, " << c.symmetric << " symmetric, " << c.registered
             << " registered, " << c.copies << " copies";
}

void StepCounts::next(const DeviceRank& r) {
  barrier(r.engine);
  if (r.rank == 0) {
    const Counts now = counts();
    steps.push_back({now.collectives - last_.collectives, now.symmetric - last_.symmetric,
                     now.registered - last_.registered, now.copies - last_.copies});
    last_ = now;
  }
  barrier(r.engine);
}

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

}  // namespace hvd
