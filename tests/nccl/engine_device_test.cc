// An Engine whose ranks, threads here, have a device each: order, buckets, mistakes, ends.
#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "runtime/base/deadline.h"
#include "tests/nccl/device_tensor.h"
#include "tests/nccl/standin.h"
#include "tests/runtime/engine/engine_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/until.h"

using namespace hvd;
using namespace std::chrono_literals;
using Home = BucketList::Home;

// Catch's assertions are not for several threads: ranks note what they saw, the test checks it.

namespace {

// Until it is taken back, at the test's end.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) { hvd_standin_set(name, value); }
  ~Setting() { hvd_standin_set(name_, nullptr); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* const name_;
};

int count_wrong(const std::vector<float>& values, float wanted) {
  return static_cast<int>(
      std::count_if(values.begin(), values.end(), [&](float x) { return x != wanted; }));
}

void run_on_devices(const Hosts& hosts, const std::function<void(int, Engine&)>& body,
                    EngineOptions options = {}, bool shut_down = true) {
  run_engines(
      hosts,
      [&](int rank, Engine& engine) {
        engine.use_device(standin_backend(rank));
        body(rank, engine);
      },
      std::move(options), shut_down);
}

}  // namespace

TEST_CASE("engine on devices: sums, ordered by events alone") {
  const auto hosts = GENERATE(values<Hosts>({{1}, {2}, {3}, {1, 1}, {2, 2}}));
  CAPTURE(hosts);
  const Setting slow("delay_us", "2000");
  std::atomic<int> wrong{0};
  run_on_devices(hosts, [&](int rank, Engine& engine) {
    const auto ranks = static_cast<float>(engine.world().size);
    ProgramStream stream(rank);
    for (int round = 0; round < 3; ++round) {
      std::vector<std::unique_ptr<DeviceTensor>> tensors;
      std::vector<std::shared_ptr<Work>> works;
      for (int k = 0; k < 4; ++k) {
        tensors.push_back(
            std::make_unique<DeviceTensor>(rank, stream, 1000, static_cast<float>(rank + k)));
        works.push_back(tensors.back()->sum_async(engine, "tensor " + std::to_string(k)));
      }
      for (int k = 0; k < 4; ++k) {
        works[static_cast<size_t>(k)]->wait();
        const float wanted = ranks * static_cast<float>(k) + ranks * (ranks - 1) / 2;
        wrong += count_wrong(tensors[static_cast<size_t>(k)]->values(), wanted);
      }
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("engine on devices: who submits in another order gets the log's") {
  std::atomic<int> wrong{0};
  run_on_devices({4}, [&](int rank, Engine& engine) {
    ProgramStream stream(rank);
    for (int round = 0; round < 10; ++round) {
      std::array<std::unique_ptr<DeviceTensor>, 6> tensors;
      std::array<std::shared_ptr<Work>, 6> works;
      for (size_t i = 0; i < 6; ++i) {
        const size_t k = (i + static_cast<size_t>(rank)) % 6;
        tensors[k] = std::make_unique<DeviceTensor>(rank, stream, 100 + k, static_cast<float>(k));
        works[k] = tensors[k]->sum_async(engine, "tensor " + std::to_string(k));
      }
      for (size_t k = 0; k < 6; ++k) {
        works[k]->wait();
        wrong += count_wrong(tensors[k]->values(), 4 * static_cast<float>(k));
      }
    }
  });
  CHECK(wrong == 0);
  CHECK(hvd_standin_violations() == 0);
}

TEST_CASE("engine on devices: tensors on CPU and device, on one rank and another, are an error") {
  std::array<std::string, 2> said;
  std::atomic<int> wrong{0};
  run_on_devices({2}, [&](int rank, Engine& engine) {
    ProgramStream stream(rank);
    DeviceTensor tensor(rank, stream, 10, 1);
    std::vector<float> on_cpu(10, 1);
    said[static_cast<size_t>(rank)] = error_of([&] {
      if (rank == 0)
        sum_async(engine, on_cpu, "x")->wait();
      else
        tensor.sum_async(engine, "x")->wait();
    });
    tensor.sum_async(engine, "y")->wait();  // the world lives
    wrong += count_wrong(tensor.values(), 2);
  });
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::StartsWith("Error: ") && Catch::Contains("float32 [10] Sum") &&
                         Catch::Contains("float32 [10] on a GPU Sum"));
  CHECK(wrong == 0);
}

TEST_CASE("engine on devices: without one a tensor there is refused") {
  std::string said;
  run_engines(1, [&](int rank, Engine& engine) {
    ProgramStream stream(rank);
    DeviceTensor tensor(rank, stream, 10, 1);
    said = error_of([&] { tensor.sum_async(engine, "x"); });
  });
  CHECK_THAT(said, Catch::StartsWith("Error: no GPU is used here"));
}

TEST_CASE("engine on devices: buckets, and a synchronous sum between them") {
  const auto hosts = GENERATE(values<Hosts>({{1}, {2}, {4}, {2, 1}}));
  CAPTURE(hosts);
  constexpr int kBuckets = 5, kSteps = 4;
  std::atomic<int> wrong{0};
  run_on_devices(hosts, [&](int rank, Engine& engine) {
    const auto ranks = static_cast<float>(engine.world().size);
    BucketListSpec spec;
    spec.name = "sgd";
    spec.buckets.assign(kBuckets, {DataType::kFloat32, 3000});
    spec.parameters = kBuckets;
    spec.layout = "five";
    spec.reduction.op = ReduceOp::kSum;
    spec.device = rank;
    const auto list = engine.make_bucket_list(spec);
    ProgramStream stream(rank);
    for (int step = 0; step < kSteps; ++step) {
      const Home home = step == 2 && rank == 0 ? Home::kSpare : Home::kHome;
      for (int i = 0; i < kBuckets; ++i) {
        // Hooks fire in another order on each rank, with a statistic's sum among them.
        const int bucket = (i + rank) % kBuckets;
        if (i == 2) {
          DeviceTensor statistic(rank, stream, 7, 1);
          statistic.sum_async(engine, "statistic")->wait();
          wrong += count_wrong(statistic.values(), ranks);
        }
        if (home == Home::kSpare && !list->take_spare(bucket)) throw std::runtime_error("no spare");
        stream.write(list->memory(bucket, home),
                     std::vector<float>(3000, static_cast<float>(rank + bucket + step)));
        list->ready(bucket, home, stream.get());
      }
      const StepVerdict verdict = list->finish({.poison = "", .used = {0b10101}});
      wrong += verdict.used[0] != 0b10101;
      list->join(stream.get());
      for (int bucket = 0; bucket < kBuckets; ++bucket)
        wrong += count_wrong(stream.read(list->memory(bucket, home), 3000),
                             ranks * static_cast<float>(bucket + step) + ranks * (ranks - 1) / 2);
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("engine on devices: a rank's end breaks every wait within a second, by name") {
  InProcessWorld world({3});
  std::array<std::string, 3> said;
  std::array<double, 3> seconds{};
  std::atomic<int> come{0};
  run_engines(
      world,
      [&](int rank, Engine& engine) {
        engine.use_device(standin_backend(rank));
        ProgramStream stream(rank);
        DeviceTensor tensor(rank, stream, 1000, 1);
        tensor.sum_async(engine, "x")->wait();
        if (rank == 2) {
          until("the others", [&] { return come == 2; });
          return;  // without shutdown()
        }
        const auto work = tensor.sum_async(engine, "y");
        ++come;
        const TimePoint begin = Clock::now();
        said[static_cast<size_t>(rank)] = error_of([&] { work->wait(); });
        seconds[static_cast<size_t>(rank)] =
            std::chrono::duration<double>(Clock::now() - begin).count();
      },
      {}, false);
  for (const int rank : {0, 1}) {
    CHECK_THAT(said[static_cast<size_t>(rank)],
               Catch::StartsWith("CommFailure: ") && Catch::Contains("rank 2"));
    CHECK(seconds[static_cast<size_t>(rank)] < 1);
  }
}

TEST_CASE("engine on devices: what is under way on a device is aborted when a rank dies") {
  InProcessWorld world({3});
  std::array<std::string, 3> said;
  std::array<double, 3> seconds{};
  std::atomic<int> come{0};
  run_engines(
      world,
      [&](int rank, Engine& engine) {
        engine.use_device(standin_backend(rank));
        ProgramStream stream(rank);
        DeviceTensor tensor(rank, stream, 1000, 1);
        tensor.sum_async(engine, "x")->wait();
        stream.drain();
        const Setting slow("slow_us", "60000000");
        const auto work = tensor.sum_async(engine, "y");
        work->wait();  // launched
        ++come;
        until("the others", [&] { return come == 3; });
        if (rank == 2) return;  // without shutdown()
        const TimePoint begin = Clock::now();
        until("an end", [&] { return work->done(); });
        seconds[static_cast<size_t>(rank)] =
            std::chrono::duration<double>(Clock::now() - begin).count();
        said[static_cast<size_t>(rank)] = error_of([&] { work->wait(); });
      },
      {}, false);
  for (const int rank : {0, 1}) {
    CHECK_THAT(said[static_cast<size_t>(rank)],
               Catch::StartsWith("CommFailure: ") && Catch::Contains("rank 2"));
    CHECK(seconds[static_cast<size_t>(rank)] < 1);
  }
}

TEST_CASE("engine on devices: an asynchronous error of NCCL ends the epoch by its own words") {
  const Setting dead("fault_rank", "2");
  InProcessWorld world({3});
  std::array<std::string, 3> said;
  std::atomic<bool> launched{false};
  run_engines(
      world,
      [&](int rank, Engine& engine) {
        engine.use_device(standin_backend(rank));
        ProgramStream stream(rank);
        DeviceTensor tensor(rank, stream, 1000, 1);
        tensor.sum_async(engine, "x")->wait();
        stream.drain();
        hvd_standin_set("async_error_after", "2");
        const auto work = tensor.sum_async(engine, "y");
        said[static_cast<size_t>(rank)] = error_of([&] {
          work->wait();
          until("an end", [&] { return work->done(); });
          work->wait();
        });
      },
      {}, false);
  hvd_standin_set("async_error_after", nullptr);
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::StartsWith("CommFailure: ") && Catch::Contains("rank 2") &&
                         Catch::Contains("NCCL failed in ") &&
                         Catch::Contains("unhandled cuda error"));
}

TEST_CASE("engine on devices: NCCL that cannot be made is a named error on all ranks") {
  const Setting rank("fault_rank", "1"), result("init_result_nccl", "2");
  std::array<std::string, 3> said;
  run_on_devices(
      {3},
      [&](int me, Engine& engine) {
        ProgramStream stream(me);
        DeviceTensor tensor(me, stream, 1000, 1);
        said[static_cast<size_t>(me)] = error_of([&] { tensor.sum_async(engine, "x")->wait(); });
      },
      {}, false);
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::StartsWith("CommFailure: ") && Catch::Contains("rank 1") &&
                         Catch::Contains("connecting the ranks' GPUs"));
}

TEST_CASE("engine on devices: a death while NCCL connects aborts it") {
  const Setting hangs("init_hangs", "1");
  InProcessWorld world({3});
  std::array<std::string, 3> said;
  run_engines(
      world,
      [&](int rank, Engine& engine) {
        engine.use_device(standin_backend(rank));
        ProgramStream stream(rank);
        DeviceTensor tensor(rank, stream, 1000, 1);
        const auto work = tensor.sum_async(engine, "x");
        if (rank == 2) {
          until("the connecting", [&] { return hvd_standin_count("communicators", -1) >= 3; });
          return;
        }
        said[static_cast<size_t>(rank)] = error_of([&] { work->wait(); });
      },
      {}, false);
  for (const int rank : {0, 1})
    CHECK_THAT(said[static_cast<size_t>(rank)],
               Catch::StartsWith("CommFailure: ") && Catch::Contains("rank 2"));
}

TEST_CASE("engine on devices: a bucket that there is no room for is told, with its size") {
  std::array<std::string, 2> said;
  run_on_devices(
      {2},
      [&](int rank, Engine& engine) {
        BucketListSpec spec;
        spec.name = "sgd";
        spec.buckets = {{DataType::kFloat32, 1000}, {DataType::kFloat32, size_t{1} << 40}};
        spec.parameters = 2;
        spec.layout = "two";
        spec.device = rank;
        said[static_cast<size_t>(rank)] = error_of([&] { engine.make_bucket_list(spec); });
      },
      {}, false);
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::StartsWith("Error: bucket 1 of \"sgd\": GPU ") &&
                         Catch::Contains(" has no room for 4398046511104 bytes more ("));
}
