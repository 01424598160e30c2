// Memory that cannot be registered, or ranks that go while it is: what all do then.
#include <atomic>
#include <string>
#include <thread>

#include "tests/collectives/nccl/windowed_lists.h"
#include "tests/support/catch.h"
#include "tests/support/until.h"

using namespace hvd;

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
