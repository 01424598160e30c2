// Each call of NCCL that may fail on one rank: what all ranks are told then.
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/collectives/nccl/engine_devices.h"
#include "tests/collectives/nccl/replaced_nccl.h"
#include "tests/collectives/nccl/standin.h"
#include "tests/support/catch.h"
#include "tests/support/until.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

constexpr int kRanks = 3;
constexpr double kSoon = 4;  // seconds: far from all that is waited for

// One operation of all ranks, from its submission to its end.
void end_of(const std::shared_ptr<Work>& work) {
  work->wait();
  until("an end", [&] { return work->done(); });
  work->wait();
}

void sum(const DeviceRank& r, const std::string& name) {
  DeviceTensor tensor(r.rank, r.stream, 1000, 1);
  end_of(tensor.sum_async(r.engine, name));
}

std::shared_ptr<Work> submit(const DeviceRank& r, std::unique_ptr<Submission> submission,
                             const std::shared_ptr<std::byte>& memory) {
  const auto events = std::make_shared<DeviceEvents>(*r.engine.device());
  events->begin_behind(r.stream.get());
  events->give_to(submission->operation);
  submission->keep_alive =
      std::make_shared<std::pair<std::shared_ptr<DeviceEvents>, std::shared_ptr<std::byte>>>(
          events, memory);
  return r.engine.submit(std::move(submission));
}

void broadcast(const DeviceRank& r) {
  const auto memory = r.engine.device()->allocate(4000);
  auto submission = std::make_unique<Submission>();
  submission->name = "b";
  submission->operation.kind = OperationKind::kBroadcast;
  submission->operation.result = {memory.get(), 1000, DataType::kFloat32};
  end_of(submit(r, std::move(submission), memory));
}

// Of parts as long as these.
void allgather(const DeviceRank& r, const std::array<size_t, kRanks>& counts) {
  const auto memory = r.engine.device()->allocate(4000);
  auto submission = std::make_unique<Submission>();
  submission->name = "g";
  Operation& operation = submission->operation;
  operation.kind = OperationKind::kAllgather;
  operation.input = {memory.get(), counts[static_cast<size_t>(r.rank)], DataType::kFloat32};
  operation.result.type = DataType::kFloat32;
  operation.allocate = [at = memory.get() + 2000](std::span<const uint64_t>) { return at; };
  end_of(submit(r, std::move(submission), memory));
}

void one(const DeviceRank& r) { sum(r, "x"); }
void two(const DeviceRank& r) { sum(r, "x"), sum(r, "y"); }
void even(const DeviceRank& r) { allgather(r, {10, 10, 10}); }
void uneven(const DeviceRank& r) { allgather(r, {10, 20, 30}); }

// What each rank is told where rank 1's calls, or rank 0's, are others.
struct Told {
  std::array<std::string, kRanks> said;
  std::array<double, kRanks> seconds{};
};

using Body = std::function<void(const DeviceRank&)>;

Told told_of(const Body& body, const std::function<void(NcclLibrary&)>& replace,
             const NcclLimits& limits = {}, bool connects_before = false) {
  std::array<std::unique_ptr<ReplacedNccl>, kRanks> backends;
  for (int rank = 0; rank < kRanks; ++rank)
    backends[static_cast<size_t>(rank)] =
        std::make_unique<ReplacedNccl>(rank, rank == 1 ? replace : nullptr, limits);
  Told told;
  std::atomic<int> ended{0};
  run_engines(
      Hosts{kRanks},
      [&](int rank, Engine& engine) {
        const auto at = static_cast<size_t>(rank);
        engine.use_device(*backends[at]);
        ProgramStream stream(rank);
        const DeviceRank r{rank, engine, stream};
        if (connects_before) sum(r, "before");
        {
          const BusyStopwatch stopwatch(told.seconds[at]);
          told.said[at] = error_of([&] { body(r); });
        }
        ++ended;
        until("all are told", [&] { return ended == kRanks; });
      },
      {}, false);
  return told;
}

void check(const Told& told, const std::string& rank, const std::string& what,
           const std::string& why) {
  for (const std::string& text : told.said)
    CHECK_THAT(text, Catch::StartsWith("CommFailure: ") &&
                         Catch::Contains(rank + ": NCCL failed in " + what) &&
                         Catch::Contains(why));
  for (const double each : told.seconds) CHECK(each < kSoon);
}

struct Case {
  std::string call;  // as the stand-in's setting fail_call has it
  void (*body)(const DeviceRank&);
  std::string what, rank;
};

}  // namespace

TEST_CASE("failed calls: one rank's is an error on all, by its name and by what it was in") {
  const auto each = GENERATE(values<Case>({
      {"ncclGetUniqueId:1", one, "making a unique id", "rank 0"},
      {"ncclCommInitRankConfig:1", one, "connecting the ranks' GPUs", "rank 1"},
      {"ncclCommGetAsyncError:1", one, "connecting the ranks' GPUs", "rank 1"},
      {"ncclAllReduce:1", one, "allreduce \"x\"", "rank 1"},
      {"ncclAllReduce:2", two, "allreduce \"y\"", "rank 1"},
      {"ncclBroadcast:1", broadcast, "broadcast \"b\"", "rank 1"},
      {"ncclAllGather:1", even, "allgather \"g\"", "rank 1"},
      {"ncclBroadcast:1", uneven, "allgather \"g\"", "rank 1"},
      {"ncclBroadcast:3", uneven, "allgather \"g\"", "rank 1"},
  }));
  CAPTURE(each.call);
  const Setting fails("fail_call", (each.call + ":1").c_str());
  const Setting rank("fault_rank", each.rank == "rank 1" ? "1" : nullptr);
  check(told_of(each.body, nullptr), each.rank, each.what, "unhandled cuda error");
}

// What the communicator itself knows nothing of.
TEST_CASE("failed calls: a group that does not begin, or end, or lacks a part") {
  struct Group {
    const char* title;
    void (*replace)(NcclLibrary&);
  };
  const auto each = GENERATE(values<Group>({
      {"begin", [](NcclLibrary& nccl) { nccl.ncclGroupStart = [] { return ncclInternalError; }; }},
      {"part",
       [](NcclLibrary& nccl) {
         nccl.ncclBroadcast = [](const void*, void*, size_t, ncclDataType_t, int, ncclComm_t,
                                 cudaStream_t) { return ncclInternalError; };
       }},
      {"one part",
       [](NcclLibrary& nccl) {
         nccl.ncclBroadcast = [](const void* from, void* to, size_t count, ncclDataType_t type,
                                 int root, ncclComm_t communicator, cudaStream_t stream) {
           return root == 1 ? ncclInternalError
                            : standin_nccl().ncclBroadcast(from, to, count, type, root,
                                                           communicator, stream);
         };
       }},
      {"end",
       [](NcclLibrary& nccl) {
         // Nothing of it is launched, so that no rank's ends.
         nccl.ncclBroadcast = [](const void*, void*, size_t, ncclDataType_t, int, ncclComm_t,
                                 cudaStream_t) { return ncclSuccess; };
         nccl.ncclGroupEnd = [] {
           standin_nccl().ncclGroupEnd();
           return ncclInternalError;
         };
       }},
  }));
  CAPTURE(each.title);
  check(told_of(uneven, each.replace), "rank 1", "allgather \"g\"", "internal error");
}

// Nothing is lost by then: a communicator that cannot be left is aborted.
TEST_CASE("failed calls: shutdown() returns without an error, whatever fails in leaving") {
  const std::string call = GENERATE("ncclCommFinalize:1:1", "ncclCommFinalize:1:6",
                                    "ncclCommDestroy:1:1", "ncclCommGetAsyncError:1:6");
  CAPTURE(call);
  const Setting rank("fault_rank", "1");
  const long long aborts = hvd_standin_count("aborts", -1);
  std::atomic<int> summed{0}, know{0};
  const Told told = told_of(
      [&](const DeviceRank& r) {
        sum(r, "x");
        ++summed;
        until("all are here", [&] { return summed == kRanks; });
        if (r.rank == 1) hvd_standin_set("fail_call", call.c_str());
        ++know;
        until("all know", [&] { return know == kRanks; });
        r.engine.shutdown();
      },
      nullptr, {.leave = 100ms});
  hvd_standin_set("fail_call", nullptr);
  for (const std::string& text : told.said) CHECK(text.empty());
  for (const double each : told.seconds) CHECK(each < kSoon);
  // Who has all behind him but the end of it has nothing left to abort.
  const long long wanted = call.starts_with("ncclCommDestroy") ? 0 : kRanks;
  CHECK(hvd_standin_count("aborts", -1) == aborts + wanted);
}

// Its process goes on: no word of a death comes.
TEST_CASE("failed calls: a lost connection while they connect, without a death and with one") {
  const bool dies = GENERATE(true, false);
  CAPTURE(dies);
  const Setting fails("init_result_nccl", "6"), rank("fault_rank", "1");
  const long long before = hvd_standin_count("errors_told", 1);
  const std::array limits{NcclLimits{.word_of_death = 50ms}, NcclLimits{.word_of_death = 60s}};
  const Told told = told_of(
      [&](const DeviceRank& r) {
        DeviceTensor tensor(r.rank, r.stream, 1000, 1);
        const auto work = tensor.sum_async(r.engine, "x");
        if (dies && r.rank == 2) {
          until("the error", [&] { return hvd_standin_count("errors_told", 1) > before; });
          r.engine.abort("a test's end of it");
        }
        end_of(work);
      },
      nullptr, limits[dies ? 1 : 0]);
  if (!dies) return check(told, "rank 1", "connecting the ranks' GPUs", "remote process exited");
  for (const std::string& text : told.said)
    CHECK_THAT(text, Catch::StartsWith("CommFailure: ") && Catch::Contains("a test's end of it") &&
                         !Catch::Contains("NCCL failed"));
}

namespace {

std::atomic<int> called{0};

void count_sums(NcclLibrary& nccl) {
  nccl.ncclAllReduce = [](const void* from, void* to, size_t count, ncclDataType_t type,
                          ncclRedOp_t op, ncclComm_t communicator, cudaStream_t stream) {
    const ncclResult_t result =
        standin_nccl().ncclAllReduce(from, to, count, type, op, communicator, stream);
    ++called;
    return result;
  };
}

// Ranks whose first sum connects them, of which rank 2's call never ends.
std::array<std::string, kRanks> said_in_a_first_sum(
    const std::function<void(InProcessWorld& world, Engine& last)>& end, EngineOptions options) {
  const Setting connects("first_collective_connects", "1"), hangs("launch_hangs", "1");
  const Setting rank("fault_rank", "2");
  called = 0;
  std::array<std::unique_ptr<ReplacedNccl>, kRanks> backends;
  for (int one = 0; one < kRanks; ++one)
    backends[static_cast<size_t>(one)] = std::make_unique<ReplacedNccl>(one, count_sums);
  InProcessWorld world({kRanks});
  std::array<std::string, kRanks> said;
  std::atomic<int> told{0};
  run_engines(
      world,
      [&](int number, Engine& engine) {
        engine.use_device(*backends[static_cast<size_t>(number)]);
        ProgramStream stream(number);
        DeviceTensor tensor(number, stream, 1000, 1);
        const auto work = tensor.sum_async(engine, "x");
        if (number == 2) {
          until("all have called NCCL", [&] { return called == kRanks; });
          end(world, engine);
        }
        said[static_cast<size_t>(number)] = error_of([&] { work->wait(); });
        ++told;
        until("all are told", [&] { return told == kRanks; });
      },
      std::move(options), false);
  return said;
}

}  // namespace

TEST_CASE("failed calls: a death, and an abort, while NCCL connects within a sum's own call") {
  const bool dies = GENERATE(true, false);
  CAPTURE(dies);
  const auto said = said_in_a_first_sum(
      [dies](InProcessWorld& world, Engine& last) {
        if (dies)
          world.declare_dead(2);
        else
          last.abort("the test ends it");
      },
      {});
  for (const size_t number : {0, 1})
    CHECK_THAT(said[number], Catch::StartsWith("CommFailure: ") && Catch::Contains("rank 2") &&
                                 Catch::Contains(dies ? "" : "the test ends it"));
}

TEST_CASE("failed calls: a sum whose call does not end is waited for as one that was launched") {
  const auto said =
      said_in_a_first_sum([](InProcessWorld&, Engine&) {}, {.collective_timeout = 1s});
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::StartsWith("CommFailure: ") &&
                         Catch::Contains("waited 1 s for NCCL, which names no rank, in ") &&
                         Catch::Contains("\"x\""));
}

}  // namespace hvd
