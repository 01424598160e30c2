// A rank's GPU that is lost, at each step: all ranks hear of it in CUDA's words, and the process
// goes on.
#include <array>
#include <atomic>
#include <functional>
#include <string>

#include "tests/collectives/nccl/engine_devices.h"
#include "tests/collectives/nccl/standin.h"
#include "tests/support/catch.h"
#include "tests/support/until.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

constexpr int kRanks = 3;
constexpr double kSoon = 4;  // seconds: far from all that is waited for
constexpr const char* kWords = "unspecified launch failure";

// Ranks that have connected; what `body` throws on each. The device is back when all have ended,
// but for the ends of what lies on it.
struct Scene {
  using Body = std::function<void(const DeviceRank&, DeviceTensor&)>;

  explicit Scene(const Body& body) {
    run_engines(
        Hosts{kRanks}, [&](int rank, Engine& engine) { run(rank, engine, body); }, {}, false);
  }

  std::array<std::string, kRanks> said;
  std::array<double, kRanks> seconds{};

 private:
  void run(int rank, Engine& engine, const Body& body) {
    const auto at = static_cast<size_t>(rank);
    engine.use_device(standin_backend(rank));
    ProgramStream stream(rank);
    DeviceTensor tensor(rank, stream, 1000, 1);
    tensor.sum_async(engine, "x")->wait();
    stream.drain();
    ++connected_;
    until("all have connected", [&] { return connected_ == kRanks; });
    {
      const BusyStopwatch stopwatch(seconds[at]);
      said[at] = error_of([&] { body({rank, engine, stream}, tensor); });
    }
    if (++told_ == kRanks) hvd_standin_set("lost_device", nullptr);
    until("all are told", [&] { return told_ == kRanks; });
    hvd_standin_set("lost_device", nullptr);
  }

  std::atomic<int> connected_{0}, told_{0};
};

void end_of(const std::shared_ptr<Work>& work) {
  work->wait();
  until("an end", [&] { return work->done(); });
  work->wait();
}

// Work of all ranks after it.
void check_that_all_goes_on() {
  std::atomic<int> wrong{0};
  run_on_devices({kRanks}, [&](const DeviceRank& r) {
    DeviceTensor tensor(r.rank, r.stream, 1000, 1);
    tensor.sum_async(r.engine, "x")->wait();
    wrong += count_wrong(tensor.values(), kRanks);
  });
  CHECK(wrong == 0);
}

// By the call that failed, or by a look at what the device was given before.
void check_all_hear_of_it(const Scene& scene, const std::string& what) {
  for (const std::string& text : scene.said) {
    CHECK_THAT(text, Catch::StartsWith("CommFailure: ") && Catch::Contains("rank 1") &&
                         Catch::Contains(kWords));
    CHECK_THAT(text, Catch::Contains(what) || Catch::Contains("the work on GPU 1 has failed: "));
  }
  for (const double each : scene.seconds) CHECK(each < kSoon);
  check_that_all_goes_on();
}

}  // namespace

// Without it no rank's sum ends.
TEST_CASE("lost device: by the calls of a launch") {
  struct Where {
    const char *lost, *what;
  };
  const auto where = GENERATE(values<Where>({
      {"1:cuStreamWaitEvent:1", "a stream cannot wait for an event: "},
      {"1:ncclAllReduce:1", "NCCL failed in allreduce \"y\""},
      {"1:cuLaunchKernel:1", "a tensor cannot be scaled: "},
  }));
  CAPTURE(where.lost);
  const Scene scene([&](const DeviceRank& r, DeviceTensor& tensor) {
    if (r.rank == 1) hvd_standin_set("lost_device", where.lost);
    end_of(tensor.allreduce_async(r.engine, "y", {ReduceOp::kProduct, 3, 1}));
  });
  check_all_hear_of_it(scene, where.what);
}

TEST_CASE("lost device: with a sum that was launched") {
  std::atomic<int> launched{0};
  const Scene scene([&](const DeviceRank& r, DeviceTensor& tensor) {
    hvd_standin_set("slow_us", "60000000");  // it is read when "y" is done
    const auto work = tensor.sum_async(r.engine, "y");
    work->wait();
    ++launched;
    until("all have launched it", [&] { return launched == kRanks; });
    if (r.rank == 1) hvd_standin_set("lost_device", "1");
    end_of(work);
  });
  hvd_standin_set("slow_us", nullptr);
  check_all_hear_of_it(scene, "the work on GPU 1 has failed: ");
}

// What was launched is not waited for on it: the abort ends, and so does what is behind it.
TEST_CASE("lost device: in the abort") {
  const long long aborts = hvd_standin_count("aborts", -1);
  std::atomic<int> launched{0};
  const Scene scene([&](const DeviceRank& r, DeviceTensor& tensor) {
    hvd_standin_set("slow_us", "60000000");
    const auto work = tensor.sum_async(r.engine, "y");
    work->wait();
    ++launched;
    until("all have launched it", [&] { return launched == kRanks; });
    if (r.rank == 1) {
      hvd_standin_set("lost_device", "1:ncclCommAbort:1");
      r.engine.abort("the test ends it");
    }
    end_of(work);
  });
  hvd_standin_set("slow_us", nullptr);
  for (const std::string& text : scene.said)
    CHECK_THAT(text, Catch::StartsWith("CommFailure: ") && Catch::Contains("the test ends it"));
  for (const double each : scene.seconds) CHECK(each < kSoon);
  CHECK(hvd_standin_count("aborts", -1) == aborts + kRanks);
  check_that_all_goes_on();
}

TEST_CASE("lost device: while memory for buckets is taken") {
  const Scene scene([&](const DeviceRank& r, DeviceTensor&) {
    if (r.rank == 1) hvd_standin_set("lost_device", "1:ncclMemAlloc:1");
    r.engine.make_bucket_list(list_of(r, 1));
  });
  CHECK_THAT(scene.said[1], Catch::StartsWith("Error: "));
  for (const size_t rank : {0, 2})
    CHECK_THAT(scene.said[rank], Catch::StartsWith("CommFailure: ") && Catch::Contains("rank 1 "));
  for (const std::string& text : scene.said)
    CHECK_THAT(text, Catch::Contains("GPU 1 has no room for 12032 bytes more: unhandled cuda") &&
                         Catch::Contains(kWords));
  for (const double each : scene.seconds) CHECK(each < kSoon);
  check_that_all_goes_on();
}

// What is freed then stays where it was; the thread that frees goes on with the next.
TEST_CASE("lost device: while memory is freed") {
  const std::string call = GENERATE("cuCtxSynchronize", "cuMemFree", "ncclMemFree");
  CAPTURE(call);
  constexpr int kOrdinal = 7;
  const auto backend = make_standin_backend(kOrdinal, {.free = 50ms});
  CudaDevice& device = standin_device(kOrdinal);
  const CudaDevice::Event event = device.take_event();
  const auto allocate = [&] {
    return call == "ncclMemFree" ? backend->allocate(1000) : backend->allocate_plain(1000);
  };
  auto memory = allocate();
  const size_t before = settled_use(kOrdinal);
  const std::string lost = std::to_string(kOrdinal) + ":" + call + ":1";
  {
    const Setting setting("lost_device", lost.c_str());
    memory.reset();
    until("it is lost", [&] { return !error_of([&] { device.is_done(event.get()); }).empty(); });
    CHECK_THAT(error_of([&] { allocate(); }),
               Catch::StartsWith("Error: GPU 7 has no room for 1000 bytes more: ") &&
                   Catch::Contains(call == "ncclMemFree" ? "unhandled cuda error" : kWords));
  }
  memory = allocate();
  CHECK(hvd_standin_used(kOrdinal) == before + 1000);
  memory.reset();
  CHECK(comes_about([&] { return hvd_standin_used(kOrdinal) == before; }));
}

}  // namespace hvd
