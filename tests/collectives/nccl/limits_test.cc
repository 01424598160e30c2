// For how long NCCL and the device are waited for, and what is done then.
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/nccl/nccl_backend.h"
#include "collectives/nccl/waited_for.h"
#include "tests/collectives/nccl/engine_devices.h"
#include "tests/collectives/nccl/standin.h"
#include "tests/support/catch.h"
#include "tests/support/until.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

// Far from what is waited for unless a test says otherwise.
constexpr double kSoon = 4;

// A sum that every rank launches and none sees done, if it was not the one to connect by already.
void sum_without_end(const DeviceRank& r) {
  DeviceTensor tensor(r.rank, r.stream, 1000, 1);
  tensor.sum_async(r.engine, "x")->wait();
  r.stream.drain();
  hvd_standin_set("slow_us", "60000000");
  const auto work = tensor.sum_async(r.engine, "y");
  until("an end", [&] { return work->done(); });
  work->wait();
}

void connect(const DeviceRank& r) {
  DeviceTensor(r.rank, r.stream, 1000, 1).sum_async(r.engine, "x")->wait();
}

// The same of an engine whose device the test made.
void connect_engine(Engine& engine, DeviceBackend& device, int number) {
  engine.use_device(device);
  ProgramStream stream(number);
  DeviceTensor tensor(number, stream, 1000, 1);
  tensor.sum_async(engine, "x")->wait();
  tensor.values();
}

// What ranks told the user, in any order.
struct Warnings {
  EngineOptions into(EngineOptions options) {
    options.warn = [this](const std::string& text) {
      const std::lock_guard lock(mutex);
      all += text + "\n";
    };
    return options;
  }
  std::mutex mutex;
  std::string all;
};

}  // namespace

TEST_CASE("limits: a rank that NCCL does not let go of is aborted, and its shutdown() returns") {
  const Setting hangs("finalize_hangs", "1"), rank("fault_rank", "1");
  const std::array backends{make_standin_backend(0, {.leave = 50ms}),
                            make_standin_backend(1, {.leave = 50ms})};
  const long long before = hvd_standin_count("aborts", -1);
  std::array<double, 2> seconds{};
  run_engines(2, [&](int number, Engine& engine) {
    connect_engine(engine, *backends[static_cast<size_t>(number)], number);
    const BusyStopwatch stopwatch(seconds[static_cast<size_t>(number)]);
    engine.shutdown();
  });
  CHECK(hvd_standin_count("aborts", -1) == before + 2);  // the other one waits for it
  for (const double each : seconds) CHECK(each < kSoon);
}

TEST_CASE("limits: who goes on does not hold up a rank that shuts down, and hears of it at once") {
  const std::array backends{make_standin_backend(0, {.leave = 60s}),
                            make_standin_backend(1, {.leave = 60s})};
  std::array<double, 2> seconds{};
  std::string said;
  run_engines(
      Hosts{2},
      [&](int number, Engine& engine) {
        connect_engine(engine, *backends[static_cast<size_t>(number)], number);
        ProgramStream stream(number);
        DeviceTensor tensor(number, stream, 1000, 1);
        const BusyStopwatch stopwatch(seconds[static_cast<size_t>(number)]);
        if (number == 1) return engine.shutdown();
        said = error_of([&] { tensor.sum_async(engine, "y")->wait(); });
        engine.shutdown();
      },
      {}, false);
  CHECK_THAT(said, Catch::Contains("rank 1 called shutdown() while other ranks went on"));
  for (const double each : seconds) CHECK(each < kSoon);
}

TEST_CASE("limits: memory under a kernel without an end is waited for, and then there is no room") {
  constexpr size_t kAll = size_t{8} << 30;
  const auto backend = make_standin_backend(0, {.free = 50ms});
  const size_t before = settled_use(0);
  ProgramStream stream(0);
  Hold hold;
  hold.launch(0, stream.get());
  backend->allocate(1000).reset();
  double seconds = 0;
  std::string said;
  {
    const Stopwatch stopwatch(seconds);
    said = error_of([&] { backend->allocate(kAll); });
  }
  CHECK_THAT(said, Catch::StartsWith("Error: GPU 0 has no room for 8589934592 bytes more ("));
  CHECK(seconds >= 0.05);
  CHECK(seconds < kSoon);
  CHECK(hvd_standin_used(0) == before + 1000);
  hold.let_go();
  CHECK(comes_about([&] { return hvd_standin_used(0) == before; }));
}

TEST_CASE("limits: memory that is let go of while the process ends is left to its end") {
  const auto opened = make_standin_backend(0, {.exit = 50ms});
  auto* const backend = dynamic_cast<NcclBackend*>(opened.get());
  REQUIRE(backend != nullptr);
  const size_t before = settled_use(0);
  ProgramStream stream(0);
  Hold hold;
  hold.launch(0, stream.get());
  const auto later = backend->allocate(10);
  backend->allocate(1000).reset();
  double seconds = 0;
  {
    const Stopwatch stopwatch(seconds);
    backend->end_with_process();
  }
  CHECK(seconds < kSoon);
  hold.let_go();
  backend->end_with_process();  // its thread has nothing more to do
  CHECK(hvd_standin_used(0) == before + 1010);
}

TEST_CASE("limits: time in which this process was stopped is no wait") {
  WaitedFor waited;
  TimePoint now = Clock::now();
  waited.begin(now);
  CHECK(waited.look(now += 50ms) == 50ms);
  CHECK(waited.look(now += 1h) == 150ms);
  CHECK(waited.look(now += 10ms) == 160ms);
  waited.begin(now);
  CHECK(waited.look(now) == 0ms);
}

TEST_CASE("limits: more ranks than one unique id serves connect by several") {
  constexpr int kRanks = 5;
  const int ids = standin_nccl().ncclCommInitRankScalable != nullptr ? 3 : 1;  // it needs that call
  std::vector<std::unique_ptr<DeviceBackend>> backends;
  for (int rank = 0; rank < kRanks; ++rank)
    backends.push_back(make_standin_backend(rank, {.ranks_per_unique_id = 2}));
  const auto before = hvd_standin_count("unique_ids", -1);
  std::array<std::vector<float>, kRanks> sums;
  run_engines(Hosts{kRanks}, [&](int rank, Engine& engine) {
    const auto at = static_cast<size_t>(rank);
    engine.use_device(*backends[at]);
    ProgramStream stream(rank);
    DeviceTensor tensor(rank, stream, 1000, static_cast<float>(rank));
    tensor.sum_async(engine, "x")->wait();
    sums[at] = tensor.values();
  });
  for (const auto& sum : sums) CHECK(sum == std::vector<float>(1000, 10));
  CHECK(hvd_standin_count("unique_ids", -1) == before + kRanks * ids);
}

TEST_CASE("limits: an operation of NCCL's own that is not made at once is an error, by name") {
  const Setting in_progress("fail_call", "ncclRedOpCreatePreMulSum:1:7"), rank("fault_rank", "1");
  std::array<double, 2> seconds{};
  const auto said = errors_on_devices(2, [&](const DeviceRank& r) {
    DeviceTensor tensor(r.rank, r.stream, 1000, 1);
    const BusyStopwatch stopwatch(seconds[static_cast<size_t>(r.rank)]);
    const auto work =
        tensor.allreduce_async(r.engine, "x", {.op = ReduceOp::kSum, .prescale = 0.5});
    until("an end", [&] { return work->done(); });
    work->wait();
  });
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::StartsWith("CommFailure: ") && Catch::Contains("rank 1") &&
                         Catch::Contains("NCCL failed in allreduce \"x\"") &&
                         Catch::Contains("still under way"));
  for (const double each : seconds) CHECK(each < kSoon);
}

TEST_CASE("limits: GPUs that NCCL does not connect in time end the epoch, by that step") {
  const Setting hangs("init_hangs", "1"), rank("fault_rank", "1");
  const auto said = errors_on_devices(
      2,
      [](const DeviceRank& r) {
        const auto work = DeviceTensor(r.rank, r.stream, 1000, 1).sum_async(r.engine, "x");
        until("an end", [&] { return work->done(); });  // in no wait that has a time of its own
        work->wait();
      },
      {.start_timeout = 2s});
  for (const std::string& text : said)
    CHECK_THAT(text,
               Catch::StartsWith("CommFailure: ") &&
                   Catch::Contains(
                       "waited 2 s for NCCL, which names no rank, in connecting the ranks' GPUs"));
}

TEST_CASE("limits: who waits in vain for GPUs to be connected is told so, too") {
  const Setting hangs("init_hangs", "1"), rank("fault_rank", "1");
  const auto said = errors_on_devices(2, connect, {.collective_timeout = 1s});
  for (const std::string& text : said)
    CHECK_THAT(text,
               Catch::StartsWith("CommFailure: ") &&
                   Catch::Contains("waited 1 s for NCCL, which names no rank, in \"x\": connecting "
                                   "the ranks' GPUs"));
}

TEST_CASE("limits: a sum that was launched and does not end is one that is waited for") {
  const auto said = errors_on_devices(2, sum_without_end, {.collective_timeout = 1s});
  hvd_standin_set("slow_us", nullptr);
  for (const std::string& text : said)
    CHECK_THAT(text,
               Catch::StartsWith("CommFailure: ") &&
                   Catch::Contains("waited 1 s for NCCL, which names no rank, in allreduce \""));
}

TEST_CASE("limits: what the program itself computes before a sum is not") {
  std::atomic<int> wrong{0}, looked{0};
  Hold hold;
  run_on_devices({2},
                 [&](const DeviceRank& r) {
                   connect(r);
                   hold.launch(r.rank, r.stream.get());
                   DeviceTensor tensor(r.rank, r.stream, 1000, 1);
                   const auto work = tensor.sum_async(r.engine, "y");
                   work->wait();
                   const Deadline later = Deadline::in(1500ms);
                   until("three times the timeout", [&] { return later.passed(); });
                   wrong += work->done();
                   if (++looked == 2) hold.let_go();
                   wrong += count_wrong(tensor.values(), 2);
                 },
                 {.collective_timeout = 500ms});
  CHECK(wrong == 0);
}

TEST_CASE("limits: each rank says what it is in the midst of when it stalls there") {
  Warnings warnings;
  const bool connects = GENERATE(true, false);
  const Setting hangs("init_hangs", connects ? "1" : "0"), rank("fault_rank", "1");
  const auto said =
      errors_on_devices(2, connects ? connect : sum_without_end,
                        warnings.into({.stall_warning = 300ms, .stall_shutdown = 2s}));
  hvd_standin_set("slow_us", nullptr);
  const std::string step = connects ? "connecting the ranks' GPUs" : "allreduce \"";
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::StartsWith("CommFailure: ") &&
                         Catch::Contains("gave up after the stall check's shutdown time") &&
                         Catch::Contains(step));
  for (const char* one : {"rank 0, ", "rank 1, "})
    CHECK_THAT(warnings.all, Catch::Contains("not known:\n" + (one + step)));
}

// Rank 1's NCCL says what it says of a broken connection.
TEST_CASE("limits: NCCL's word of a lost connection waits for the agents' word of a death") {
  const bool dies = GENERATE(true, false);
  CAPTURE(dies);
  const NcclLimits limits{.word_of_death = dies ? 60s : 50ms};
  const std::array backends{make_standin_backend(0, limits), make_standin_backend(1, limits),
                            make_standin_backend(2, limits)};
  const Setting lost("async_error", "6"), rank("fault_rank", "1");
  std::array<std::string, 3> said;
  std::atomic<int> told{0};
  const long long before = hvd_standin_count("errors_told", 1);
  run_engines(
      Hosts{3},
      [&](int number, Engine& engine) {
        connect_engine(engine, *backends[static_cast<size_t>(number)], number);
        hvd_standin_set("async_error_after", "2");
        ProgramStream stream(number);
        DeviceTensor tensor(number, stream, 1000, 1);
        const auto work = tensor.sum_async(engine, "y");
        if (number == 2) {
          return until("the others", [&] {
            return dies ? hvd_standin_count("errors_told", 1) > before : told == 2;
          });
        }
        said[static_cast<size_t>(number)] = error_of([&] {
          work->wait();
          until("an end", [&] { return work->done(); });
          work->wait();
        });
        ++told;
      },
      {}, false);
  hvd_standin_set("async_error_after", nullptr);
  for (const size_t number : {0, 1})
    CHECK_THAT(said[number],
               Catch::StartsWith("CommFailure: ") &&
                   Catch::Contains(dies ? "rank 2: ended" : "rank 1: NCCL failed in ") &&
                   Catch::Contains(dies ? "" : "remote process exited"));
}
