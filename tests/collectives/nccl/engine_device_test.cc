// An Engine whose ranks, threads here, have a device each: order, buckets, mistakes, ends. Over an
// NCCL whose windows are not used.
#include <stdlib.h>

#include <array>
#include <atomic>

#include "tests/collectives/nccl/engine_devices.h"
#include "tests/collectives/nccl/standin.h"
#include "tests/support/catch.h"
#include "tests/support/until.h"

using namespace hvd;
using Home = BucketList::Home;

namespace {

const int kVersion = setenv("HVD_STANDIN_NCCL_VERSION", "22903", 0);

// All ranks' ends, of which that rank is the cause.
void check_ended_by(const std::vector<std::string>& said, const std::string& rank,
                    const std::string& why = "") {
  for (const std::string& text : said)
    CHECK_THAT(text,
               Catch::StartsWith("CommFailure: ") && Catch::Contains(rank) && Catch::Contains(why));
}

std::vector<std::string> without_last(std::vector<std::string> said) {
  said.pop_back();
  return said;
}

}  // namespace

TEST_CASE("engine on devices: sums, ordered by events alone") {
  const auto hosts = GENERATE(values<Hosts>({{1}, {2}, {3}, {1, 1}, {2, 2}}));
  CAPTURE(hosts);
  const Setting slow("delay_us", "2000");
  std::atomic<int> wrong{0};
  run_on_devices(hosts, [&](const DeviceRank& r) {
    for (int round = 0; round < 3; ++round) {
      std::vector<std::unique_ptr<DeviceTensor>> tensors;
      std::vector<std::shared_ptr<Work>> works;
      for (int k = 0; k < 4; ++k) {
        tensors.push_back(
            std::make_unique<DeviceTensor>(r.rank, r.stream, 1000, static_cast<float>(r.rank + k)));
        works.push_back(tensors.back()->sum_async(r.engine, "tensor " + std::to_string(k)));
      }
      for (int k = 0; k < 4; ++k) {
        works[static_cast<size_t>(k)]->wait();
        const float wanted = r.ranks() * static_cast<float>(k) + r.ranks() * (r.ranks() - 1) / 2;
        wrong += count_wrong(tensors[static_cast<size_t>(k)]->values(), wanted);
      }
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("engine on devices: who submits in another order gets the log's") {
  std::atomic<int> wrong{0};
  run_on_devices({4}, [&](const DeviceRank& r) {
    for (int round = 0; round < 10; ++round) {
      std::array<std::unique_ptr<DeviceTensor>, 6> tensors;
      std::array<std::shared_ptr<Work>, 6> works;
      for (size_t i = 0; i < 6; ++i) {
        const size_t k = (i + static_cast<size_t>(r.rank)) % 6;
        tensors[k] =
            std::make_unique<DeviceTensor>(r.rank, r.stream, 100 + k, static_cast<float>(k));
        works[k] = tensors[k]->sum_async(r.engine, "tensor " + std::to_string(k));
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

TEST_CASE("engine on devices: memory is in no window of an NCCL that could not abort a sum there") {
  if (standin_nccl().version >= 22907) return;  // run over one that can, too
  const long long windows = hvd_standin_count("windows", -1);
  const long long registered = hvd_standin_count("registered_collectives", -1);
  const long long kernels = hvd_standin_count("kernels", -1);
  const auto said = errors_on_devices(3, [&](const DeviceRank& r) {
    BucketListSpec spec = list_of(r, 1);
    spec.reduction.op = ReduceOp::kAverage;
    const auto list = r.engine.make_bucket_list(spec);
    for (int number = 0; number < 2; ++number) {
      if (r.rank == 2 && number == 1) return r.engine.abort("the test ends it");
      r.stream.write(list->memory(0, Home::kHome), std::vector<float>(3000, 1));
      list->ready(0, Home::kHome, r.stream.get());
      list->finish({});
      list->join(r.stream.get());
      r.stream.drain();
    }
  });
  for (const int rank : {0, 1})
    CHECK_THAT(said[static_cast<size_t>(rank)],
               Catch::StartsWith("CommFailure: ") && Catch::Contains("the test ends it"));
  CHECK(hvd_standin_count("windows", -1) == windows);
  CHECK(hvd_standin_count("registered_collectives", -1) >= registered + 3);
  CHECK(hvd_standin_count("kernels", -1) == kernels);  // NCCL itself averages there
}

TEST_CASE("engine on devices: tensors on CPU and device, on one rank and another, are an error") {
  std::array<std::string, 2> said;
  std::atomic<int> wrong{0};
  run_on_devices({2}, [&](const DeviceRank& r) {
    DeviceTensor tensor(r.rank, r.stream, 10, 1);
    std::vector<float> on_cpu(10, 1);
    said[static_cast<size_t>(r.rank)] = error_of([&] {
      if (r.rank == 0)
        sum_async(r.engine, on_cpu, "x")->wait();
      else
        tensor.sum_async(r.engine, "x")->wait();
    });
    tensor.sum_async(r.engine, "y")->wait();  // the world lives
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
  run_on_devices(hosts, [&](const DeviceRank& r) {
    const auto list = r.engine.make_bucket_list(list_of(r, kBuckets));
    for (int step = 0; step < kSteps; ++step) {
      const Home home = step == 2 && r.rank == 0 ? Home::kSpare : Home::kHome;
      for (int i = 0; i < kBuckets; ++i) {
        // Hooks fire in another order on each rank, with a statistic's sum among them.
        const int bucket = (i + r.rank) % kBuckets;
        if (i == 2) {
          DeviceTensor statistic(r.rank, r.stream, 7, 1);
          statistic.sum_async(r.engine, "statistic")->wait();
          wrong += count_wrong(statistic.values(), r.ranks());
        }
        if (home == Home::kSpare && !list->take_spare(bucket)) throw std::runtime_error("no spare");
        r.stream.write(list->memory(bucket, home),
                       std::vector<float>(3000, static_cast<float>(r.rank + bucket + step)));
        list->ready(bucket, home, r.stream.get());
      }
      const StepVerdict verdict = list->finish({.poison = "", .used = {0b10101}});
      wrong += verdict.used[0] != 0b10101;
      list->join(r.stream.get());
      for (int bucket = 0; bucket < kBuckets; ++bucket)
        wrong += count_wrong(
            r.stream.read(list->memory(bucket, home), 3000),
            r.ranks() * static_cast<float>(bucket + step) + r.ranks() * (r.ranks() - 1) / 2);
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("engine on devices: a rank's end breaks every wait within a second, by name") {
  std::array<double, 3> seconds{};
  std::atomic<int> come{0};
  const auto said = errors_on_devices(3, [&](const DeviceRank& r) {
    DeviceTensor tensor(r.rank, r.stream, 1000, 1);
    tensor.sum_async(r.engine, "x")->wait();
    if (r.rank == 2) return until("the others", [&] { return come == 2; });
    const auto work = tensor.sum_async(r.engine, "y");
    ++come;
    const BusyStopwatch stopwatch(seconds[static_cast<size_t>(r.rank)]);
    work->wait();
  });
  check_ended_by(without_last(said), "rank 2");
  for (const double each : seconds) CHECK(each < 1);
}

TEST_CASE("engine on devices: what is under way on a device is aborted when a rank dies") {
  std::array<double, 3> seconds{};
  std::atomic<int> come{0};
  const auto said = errors_on_devices(3, [&](const DeviceRank& r) {
    DeviceTensor tensor(r.rank, r.stream, 1000, 1);
    tensor.sum_async(r.engine, "x")->wait();
    r.stream.drain();
    hvd_standin_set("slow_us", "60000000");  // until all have ended: it is read when "y" is done
    const auto work = tensor.sum_async(r.engine, "y");
    work->wait();  // launched
    ++come;
    until("the others", [&] { return come == 3; });
    if (r.rank == 2) return;
    const BusyStopwatch stopwatch(seconds[static_cast<size_t>(r.rank)]);
    until("an end", [&] { return work->done(); });
    work->wait();
  });
  hvd_standin_set("slow_us", nullptr);
  check_ended_by(without_last(said), "rank 2");
  for (const double each : seconds) CHECK(each < 1);
}

TEST_CASE("engine on devices: an asynchronous error of NCCL ends the epoch by its own words") {
  const Setting dead("fault_rank", "2");
  const auto said = errors_on_devices(3, [&](const DeviceRank& r) {
    DeviceTensor tensor(r.rank, r.stream, 1000, 1);
    tensor.sum_async(r.engine, "x")->wait();
    r.stream.drain();
    hvd_standin_set("async_error_after", "2");
    const auto work = tensor.sum_async(r.engine, "y");
    work->wait();
    until("an end", [&] { return work->done(); });
    work->wait();
  });
  hvd_standin_set("async_error_after", nullptr);
  check_ended_by(said, "rank 2", "NCCL failed in ");
  check_ended_by(said, "rank 2", "unhandled cuda error");
}

// Once the rank is silent where it fails, once another one is.
TEST_CASE("engine on devices: an error behind a step ends all, also who waits for a stream") {
  const size_t silent = GENERATE(1, 2);
  CAPTURE(silent);
  const Setting dead("fault_rank", "2"), second_step("async_error_after", "3");
  std::array<double, 3> seconds{};
  std::array<std::string, 3> said;
  std::atomic<int> stepped{0}, told{0};
  Hold hold;
  errors_on_devices(3, [&](const DeviceRank& r) {
    const auto rank = static_cast<size_t>(r.rank);
    const auto list = r.engine.make_bucket_list(list_of(r, 2));
    for (int step = 0; step < 2; ++step) {
      if (step == 1) hold.launch(r.rank, r.stream.get());
      for (int bucket = 0; bucket < 2; ++bucket) {
        r.stream.write(list->memory(bucket, Home::kHome), std::vector<float>(3000, 1));
        list->ready(bucket, Home::kHome, r.stream.get());
      }
      list->finish({});
      list->join(r.stream.get());
      if (step == 0) r.stream.drain();
    }
    if (++stepped == 3) hold.let_go();
    const BusyStopwatch stopwatch(seconds[rank]);
    if (rank == silent) {
      r.stream.drain();  // the sum that never comes is broken off here, too
      until("the others are told", [&] { return told == 2; });
    }
    said[rank] = error_of([&] { barrier(r.engine); });
    ++told;
  });
  CHECK(stepped == 3);
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::StartsWith("CommFailure: ") && Catch::Contains("rank 2") &&
                         Catch::Contains("NCCL failed in ") &&
                         Catch::Contains("unhandled cuda error"));
  for (const double each : seconds) CHECK(each < 1);
}

TEST_CASE("engine on devices: NCCL that cannot be made is a named error on all ranks") {
  const Setting rank("fault_rank", "1"), result("init_result_nccl", "2");
  const auto said = errors_on_devices(3, [&](const DeviceRank& r) {
    DeviceTensor tensor(r.rank, r.stream, 1000, 1);
    tensor.sum_async(r.engine, "x")->wait();
  });
  check_ended_by(said, "rank 1", "connecting the ranks' GPUs");
}

TEST_CASE("engine on devices: kernels that one cannot load are a named error on all ranks") {
  std::array<std::unique_ptr<DeviceBackend>, 2> backends;
  backends[0] = make_standin_backend(0);
  {
    const Setting old("architecture", "70");
    backends[1] = make_standin_backend(1);
  }
  std::array<std::string, 2> said;
  std::atomic<int> wrong{0};
  run_engines(
      2,
      [&](int rank, Engine& engine) {
        engine.use_device(*backends[static_cast<size_t>(rank)]);
        ProgramStream stream(rank);
        DeviceTensor tensor(rank, stream, 1000, 1);
        tensor.sum_async(engine, "x")->wait();  // goes without
        wrong += count_wrong(tensor.values(), 2);
        said[static_cast<size_t>(rank)] = error_of([&] {
          tensor.allreduce_async(engine, "y", {ReduceOp::kMax, 1, 3})->wait();
          tensor.sum_async(engine, "z")->wait();  // the other has launched "y"
        });
      },
      {}, false);
  CHECK(wrong == 0);
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::StartsWith("CommFailure: ") && Catch::Contains("rank 1") &&
                         Catch::Contains("hvd's kernels, compiled by CUDA "));
}

TEST_CASE("engine on devices: a tensor is scaled behind what fills it, before who reads it") {
  const Setting slow("delay_us", "2000");
  std::atomic<int> wrong{0};
  run_on_devices({2}, [&](const DeviceRank& self) {
    for (int round = 0; round < 3; ++round) {
      DeviceTensor tensor(self.rank, self.stream, 1000, static_cast<float>(self.rank + 1));
      tensor.allreduce_async(self.engine, "x", {ReduceOp::kProduct, 3, 0.5})->wait();
      wrong += count_wrong(tensor.values(), 9);
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("engine on devices: a death while NCCL connects aborts it") {
  const Setting hangs("init_hangs", "1");
  const long long before = hvd_standin_count("communicators", -1);
  const auto said = errors_on_devices(3, [&](const DeviceRank& r) {
    DeviceTensor tensor(r.rank, r.stream, 1000, 1);
    const auto work = tensor.sum_async(r.engine, "x");
    if (r.rank == 2)
      return until("the connecting",
                   [&] { return hvd_standin_count("communicators", -1) == before + 3; });
    work->wait();
  });
  check_ended_by(without_last(said), "rank 2");
}

TEST_CASE("engine on devices: a bucket that there is no room for is told, with its size") {
  const auto said = errors_on_devices(2, [&](const DeviceRank& r) {
    BucketListSpec spec = list_of(r, 2);
    spec.buckets[1].count = size_t{1} << 40;
    r.engine.make_bucket_list(spec);
  });
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::StartsWith("Error: buckets 0 to 1 of \"sgd\": GPU ") &&
                         Catch::Contains(" has no room for 4398046523136 bytes more ("));
}

TEST_CASE(
    "engine on devices: a graph that is captured meanwhile is not lost, and no sum is in it") {
  std::array<std::string, 2> said;
  std::atomic<int> wrong{0}, lost{0}, ended{0};
  run_on_devices({2}, [&](const DeviceRank& r) {
    ProgramStream captured(r.rank);
    DeviceTensor outside(r.rank, r.stream, 1000, 1), inside(r.rank, captured, 1000, 1);
    inside.values();
    r.stream.drain();
    {
      const CudaDevice::Current current(standin_device(r.rank));
      lost += cuStreamBeginCapture(captured.get(), CU_STREAM_CAPTURE_MODE_GLOBAL) != CUDA_SUCCESS;
    }
    const auto sum = outside.sum_async(r.engine, "outside");
    until("the sum", [&] { return sum->done(); });  // the engine's thread looks after it
    said[static_cast<size_t>(r.rank)] = error_of([&] { inside.sum_async(r.engine, "inside"); });
    ++ended;
    until("both have looked", [&] { return ended == 2; });
    {
      const CudaDevice::Current current(standin_device(r.rank));
      CUgraph graph = nullptr;
      lost += cuStreamEndCapture(captured.get(), &graph) != CUDA_SUCCESS;
    }
    wrong += count_wrong(outside.values(), 2);
    inside.sum_async(r.engine, "inside")->wait();  // the world lives
    wrong += count_wrong(inside.values(), 2);
  });
  CHECK(lost == 0);
  CHECK(wrong == 0);
  for (const std::string& text : said)
    CHECK(text ==
          "Error: this stream is being captured into a CUDA graph, in which collectives cannot be; "
          "call them before or after the capture");
}

// The other rank uses the name of its bucket for something else, before that bucket is ready.
TEST_CASE("engine on devices: a bucket that is refused ends the epoch of all by name") {
  const auto said = errors_on_devices(2, [&](const DeviceRank& r) {
    const auto list = r.engine.make_bucket_list(list_of(r, 1));
    std::array<std::array<float, 3>, 9> data{};
    std::vector<std::shared_ptr<Work>> others;
    for (size_t number = 0; r.rank == 1 && number < data.size(); ++number) {
      auto submission = std::make_unique<Submission>();
      submission->name = "sgd.list." + std::to_string(number) + ".bucket.0";
      submission->operation.kind = OperationKind::kAllreduce;
      submission->operation.result = {data[number].data(), 3, DataType::kFloat32};
      others.push_back(r.engine.submit(std::move(submission)));
    }
    r.stream.write(list->memory(0, BucketList::Home::kHome), std::vector<float>(3000, 1));
    if (r.rank == 1)
      until("the refusal", [&] {
        return std::ranges::any_of(others, [](const auto& work) { return work->done(); });
      });
    list->ready(0, BucketList::Home::kHome, r.stream.get());
    list->finish({});
  });
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::StartsWith("CommFailure: step 1 of ") &&
                         Catch::Contains("rank 0 cannot sum its gradients: ") &&
                         Catch::Contains(".bucket.0\" differs between ranks: "));
}
