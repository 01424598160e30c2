// Memory that cannot be registered, or ranks that go while it is: what all do then.
#include <atomic>
#include <string>
#include <thread>

#include "tests/collectives/nccl/replaced_nccl.h"
#include "tests/collectives/nccl/windowed_lists.h"
#include "tests/support/catch.h"
#include "tests/support/until.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

// Every rank's windows fail, once each.
void fail_windows(NcclLibrary& nccl) {
  nccl.ncclCommWindowRegister = [](ncclComm_t, void*, size_t, ncclWindow_t*, int) {
    return ncclSystemError;
  };
}

// What ranks are told that make a list, each beside something else of theirs.
template <class Beside>
std::array<std::string, 3> said_in_a_list(
    const std::array<std::unique_ptr<DeviceBackend>, 3>& backends, Beside beside) {
  std::array<std::string, 3> said;
  std::atomic<int> told{0};
  run_engines(
      Hosts{3},
      [&](int own, Engine& engine) {
        engine.use_device(*backends[static_cast<size_t>(own)]);
        ProgramStream stream(own);
        const DeviceRank r{own, engine, stream};
        DeviceTensor tensor(own, stream, 1000, 1);
        tensor.sum_async(engine, "x")->wait();
        stream.drain();
        said[static_cast<size_t>(own)] = error_of([&] {
          const auto kept = beside(r, tensor);
          engine.make_bucket_list(list_of(r, kBuckets));
        });
        ++told;
        until("all are told", [&] { return told == 3; });
      },
      {}, false);
  return said;
}

// Two lists are made, one after the other, then the first is stepped once and the second from then
// on: the counts of each step, whose sums are right.
std::vector<Counts> steps_of_two_lists(const Hosts& hosts, const Backends& backends,
                                       Warnings& warnings, int steps) {
  StepCounts seen(3);
  std::atomic<int> wrong{0};
  run_engines(
      hosts,
      [&](int own, Engine& engine) {
        engine.use_device(*backends.of[static_cast<size_t>(own)]);
        ProgramStream stream(own);
        const DeviceRank r{own, engine, stream};
        const auto first = engine.make_bucket_list(list_of(r, kBuckets, "first"));
        const auto second = engine.make_bucket_list(list_of(r, kBuckets, "second"));
        seen.next(r);
        for (int k = 0; k < steps; ++k) {
          wrong += step(r, *(k == 0 ? first : second), Home::kHome, k);
          seen.next(r);
        }
      },
      warnings.heard());
  CHECK(wrong == 0);
  seen.steps.erase(seen.steps.begin());
  return seen.steps;
}

}  // namespace

TEST_CASE("engine registering: memory that one rank cannot register is plain on all") {
  const Setting none("no_windows", "1"), fails("registration_fails", "1");
  const Setting rank("fault_rank", GENERATE("-1", "1"));
  StepCounts seen(3);
  const auto steps = run_steps_with_a_spare(seen);
  CHECK(steps == std::vector(4, seen.plain()));  // and a spare is nobody else's business
}

// The second list's registering fails where the first one's has not.
TEST_CASE("engine registering: a failure in the midst of registering means plain memory on all") {
  const std::string call = GENERATE("ncclCommWindowRegister", "window");
  const int number = GENERATE(1, 2);
  CAPTURE(call, number);
  const Setting fails("fail_call", (call + ":" + std::to_string(number) + ":2").c_str());
  const Setting rank("fault_rank", "1");
  const auto hosts = number == 2 ? Hosts{2, 1} : Hosts{3};
  const Backends backends;
  const long long aborts = hvd_standin_count("aborts", -1);
  const long long communicators = hvd_standin_count("communicators", -1);
  Warnings warnings;
  CHECK(steps_of_two_lists(hosts, backends, warnings, 3) == std::vector(3, StepCounts(3).plain()));
  CHECK(hvd_standin_count("communicators", -1) == communicators + 6);
  CHECK(hvd_standin_count("aborts", -1) == aborts + 3);
  const std::vector<std::string> said = warnings.texts();
  REQUIRE(said.size() == 1);
  CHECK_THAT(said[0], Catch::StartsWith("GPU memory is not registered with NCCL ") &&
                          Catch::Contains("NCCL_WIN_ENABLE=0 does without"));
}

TEST_CASE("engine registering: what failed in registering is named, and the next epoch registers") {
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

TEST_CASE("engine registering: a rank dies while all connect anew") {
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

TEST_CASE("engine registering: a rank that aborts, or dies, while they are registered") {
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

TEST_CASE(
    "engine registering: a sum without an end before what failed ends the epoch, and is named") {
  const Setting fails("fail_call", "window:1:2"), rank("fault_rank", "1");
  const Backends backends;
  std::atomic<int> launched{0};
  const auto said = said_in_a_list(backends.of, [&](const DeviceRank& r, DeviceTensor& tensor) {
    hvd_standin_set("slow_us", "60000000");  // it is read when the sum is done
    auto work = tensor.sum_async(r.engine, "y");
    work->wait();
    ++launched;
    until("all have launched it", [&] { return launched == 3; });
    return work;
  });
  hvd_standin_set("slow_us", nullptr);
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::StartsWith("CommFailure: ") &&
                         Catch::Contains("NCCL has waited 200 ms in what was launched before: ") &&
                         Catch::Contains("register \"sgd.list."));
}

TEST_CASE(
    "engine registering: what another thread submits before all connect anew ends the epoch") {
  const Setting fails("fail_call", "ncclCommWindowRegister:1:2"), rank("fault_rank", "1");
  const long long windows = hvd_standin_count("windows", -1);
  const Backends backends(60s);
  const auto said = said_in_a_list(backends.of, [&](const DeviceRank& r, DeviceTensor& tensor) {
    return std::jthread([&] {
      comes_about([&] { return hvd_standin_count("windows", -1) == windows + 2; });
      error_of([&] { tensor.sum_async(r.engine, "beside")->wait(); });
    });
  });
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::StartsWith("CommFailure: ") &&
                         Catch::Contains("rank 1: NCCL failed in register \"sgd.list."));
}

TEST_CASE("engine registering: all connect anew once what was launched before has been done") {
  std::array<std::unique_ptr<DeviceBackend>, 3> backends;
  for (int one = 0; one < 3; ++one)
    backends[static_cast<size_t>(one)] =
        std::make_unique<ReplacedNccl>(one, fail_windows, NcclLimits{.registering = 60s});
  const long long aborts = hvd_standin_count("aborts", -1);
  std::atomic<int> launched{0}, early{0}, wrong{0};
  Hold hold;
  std::jthread later;
  const auto said = said_in_a_list(backends, [&](const DeviceRank& r, DeviceTensor& tensor) {
    hold.launch(r.rank, r.stream.get());
    auto work = tensor.sum_async(r.engine, "y");
    work->wait();
    if (++launched == 3)
      later = std::jthread([&] {
        const Deadline soon = Deadline::in(300ms);
        until("they had time enough", [&] { return soon.passed(); });
        early += hvd_standin_count("aborts", -1) != aborts;
        hold.let_go();
      });
    struct Check {
      DeviceTensor& tensor;
      std::atomic<int>& wrong;
      ~Check() { wrong += count_wrong(tensor.values(), 9); }
    };
    return std::make_unique<Check>(tensor, wrong);
  });
  for (const std::string& text : said) CHECK(text.empty());
  CHECK(early == 0);
  CHECK(wrong == 0);
  CHECK(hvd_standin_count("aborts", -1) == aborts + 6);  // and those of ranks that end
}

TEST_CASE(
    "engine registering: where NCCL registers nothing buckets are plain, which is said once") {
  const Setting none("no_windows", "1"), nothing("registers_nothing", "1");
  const Backends backends;
  Warnings warnings;
  CHECK(steps_of_two_lists({3}, backends, warnings, 2) == std::vector(2, StepCounts(3).plain()));
  REQUIRE(warnings.texts().size() == 1);
  CHECK_THAT(warnings.texts()[0],
             Catch::StartsWith("GPU memory is not registered with NCCL, so that NCCL copies ") &&
                 Catch::EndsWith("NCCL does not register memory here"));
}

// In leaving nothing of a list is lost, whatever a rank's call of NCCL's says.
TEST_CASE("engine registering: a window that cannot be given back ends the epoch, or nothing") {
  const bool leaves = GENERATE(true, false);
  CAPTURE(leaves);
  const Setting rank("fault_rank", "1");
  const std::array backends{make_standin_backend(0, {.leave = 100ms}),
                            make_standin_backend(1, {.leave = 100ms}),
                            make_standin_backend(2, {.leave = 100ms})};
  std::array<std::string, 3> said;
  std::atomic<int> made{0}, told{0};
  run_engines(
      Hosts{3},
      [&](int own, Engine& engine) {
        engine.use_device(*backends[static_cast<size_t>(own)]);
        ProgramStream stream(own);
        const DeviceRank r{own, engine, stream};
        auto list = engine.make_bucket_list(list_of(r, kBuckets, "first"));
        if (own == 1) hvd_standin_set("fail_call", "ncclCommWindowDeregister:1:1");
        ++made;
        until("all have one", [&] { return made == 3; });
        said[static_cast<size_t>(own)] = error_of([&] {
          if (leaves) return engine.shutdown();
          list.reset();
          for (int k = 0; k < 1000; ++k)  // with the first one after all have let go of it
            engine.make_bucket_list(list_of(r, kBuckets, "list " + std::to_string(k)));
        });
        ++told;
        until("all are told", [&] { return told == 3; });
      },
      {}, false);
  hvd_standin_set("fail_call", nullptr);
  for (const std::string& text : said) {
    if (leaves)
      CHECK(text.empty());
    else
      CHECK_THAT(text, Catch::StartsWith("CommFailure: ") &&
                           Catch::Contains("rank 1: NCCL failed in deregister \""));
  }
}
