// The public API in a process without a launcher: a world of one where every call works.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "hvd/hvd.h"
#include "tests/support/catch.h"

namespace {

// What ends with the call that it is given to is no place for an operation that goes on.
template <class Range>
concept GoesOn = requires(Range&& data) {
  hvd::allreduce_async_(std::forward<Range>(data));
  hvd::broadcast_async_(std::forward<Range>(data), 0);
};
template <class Range>
concept ReturnsDone = requires(Range&& data) {
  hvd::allreduce_(std::forward<Range>(data));
  hvd::broadcast_(std::forward<Range>(data), 0);
};
static_assert(GoesOn<std::vector<float>&> && GoesOn<float (&)[3]> && GoesOn<std::span<float>>);
static_assert(GoesOn<hvd::ArenaBuffer<float>> && GoesOn<hvd::ArenaBuffer<float>&>);
static_assert(GoesOn<const hvd::ArenaBuffer<float>&>);
static_assert(!GoesOn<std::vector<float>> && !GoesOn<std::array<float, 3>>);
static_assert(ReturnsDone<std::vector<float>> && !ReturnsDone<const std::vector<float>&>);

// Every test begins and ends without a Context.
struct World {
  World() { hvd::init(); }
  ~World() { hvd::shutdown(); }
};

}  // namespace

TEST_CASE("api: before init() every call says so, and shutdown() is nothing") {
  CHECK_FALSE(hvd::is_initialized());
  CHECK_THROWS_WITH(hvd::rank(), Catch::Contains("call hvd::init() first"));
  std::vector<float> x(1);
  CHECK_THROWS_WITH(hvd::allreduce_(x), Catch::Contains("call hvd::init() first"));
  CHECK_THROWS_AS(hvd::barrier(), hvd::Error);
  CHECK_NOTHROW(hvd::shutdown());
}

TEST_CASE("api: alone, a program is rank 0 of 1") {
  World world;
  CHECK(hvd::is_initialized());
  CHECK_NOTHROW(hvd::init());
  CHECK(hvd::rank() == 0);
  CHECK(hvd::size() == 1);
  CHECK(hvd::local_rank() == 0);
  CHECK(hvd::local_size() == 1);
  CHECK(hvd::cross_rank() == 0);
  CHECK(hvd::cross_size() == 1);
}

TEST_CASE("api: alone, every collective is the identity, factors applied") {
  World world;
  std::vector<float> x{1, 2, 3};
  hvd::allreduce_(std::span(x), {.op = hvd::ReduceOp::kSum, .prescale = 2, .postscale = 3});
  CHECK(x == std::vector<float>{6, 12, 18});
  CHECK(hvd::allreduce(x) == x);
  CHECK(hvd::allreduce_async(x, {.name = "x"}).wait() == x);
  CHECK(hvd::broadcast(x, 0) == x);
  CHECK(hvd::broadcast_async(x, 0, {.name = "x"}).wait() == x);
  CHECK(hvd::allgather(x) == x);
  CHECK(hvd::allgather_async(std::span<const float>(x)).wait() == x);
  const auto work = hvd::allreduce_async_(x);
  work->wait();
  CHECK(work->done());
  CHECK(x == std::vector<float>{6, 12, 18});
  std::array<bool, 2> flags{true, false};
  hvd::allreduce_(flags, {.op = hvd::ReduceOp::kMin});
  CHECK(flags == std::array<bool, 2>{true, false});
  CHECK(hvd::allgather(flags) == std::vector<uint8_t>{1, 0});
  CHECK(hvd::allgather_async(flags).wait() == std::vector<uint8_t>{1, 0});
  std::array<hvd::bfloat16, 3> halves{hvd::bfloat16(1), hvd::bfloat16(2), hvd::bfloat16(3)};
  hvd::allreduce_(halves, {.postscale = 0.5});
  CHECK(float(halves[2]) == 1.5f);
  CHECK_NOTHROW(hvd::barrier());
  std::vector<double> nothing;
  CHECK_NOTHROW(hvd::allreduce_(nothing));
}

TEST_CASE("api: a result that nobody keeps comes by value, of one that is kept by reference") {
  World world;
  const std::vector<float> x{1, 2, 3};
  float sum = 0;
  for (const float one : hvd::allreduce_async(x, {.name = "x"}).wait()) sum += one;
  CHECK(sum == 6);
  static_assert(std::is_same_v<decltype(hvd::allgather_async(x).wait()), std::vector<float>>);

  hvd::Result<float> result = hvd::allgather_async(x);
  result.wait()[1] = 7;
  hvd::Result<float> copy = result;
  const std::vector<float> taken = std::move(result).wait();
  CHECK(taken == std::vector<float>{1, 7, 3});
  CHECK(copy.wait() == std::vector<float>{1, 7, 3});  // what a copy keeps is not taken away
}

TEST_CASE("api: alone, bytes go and come back") {
  World world;
  const std::vector<std::byte> bytes{std::byte{1}, std::byte{2}};
  CHECK(hvd::broadcast_bytes(bytes, 0) == bytes);
  CHECK(hvd::allgather_bytes(bytes) == std::vector<std::vector<std::byte>>{bytes});
  CHECK(hvd::broadcast_bytes({}).empty());
}

TEST_CASE("api: an arena buffer is zeros, and outlives its world") {
  hvd::ArenaBuffer<float> buffer;
  {
    World world;
    buffer = hvd::arena_buffer<float>(1000);
    REQUIRE(buffer.size() == 1000);
    for (const float one : buffer) REQUIRE(one == 0);
    buffer[7] = 5;
    hvd::allreduce_(buffer, {.op = hvd::ReduceOp::kSum, .postscale = 2});
    CHECK(buffer[7] == 10);
    CHECK(hvd::arena_buffer<double>(0).size() == 0);
  }
  CHECK(buffer[7] == 10);
  buffer[8] = 1;
  CHECK(std::span<float>(buffer)[8] == 1);
}

TEST_CASE("api: what makes no sense is named") {
  World world;
  std::vector<float> x(2);
  CHECK_THROWS_WITH(hvd::broadcast_(x, 1), Catch::Contains("root 1 is no rank"));
  CHECK_THROWS_WITH(hvd::arena_buffer<float>(size_t{1} << 62),
                    Catch::Contains("4611686018427387904 elements of 4 bytes"));
  CHECK_THROWS_WITH(hvd::arena_buffer<double>(~size_t{0}), Catch::Contains("more than any memory"));
  CHECK_THROWS_WITH(hvd::arena_buffer<float>(size_t{1} << 46),
                    Catch::Contains("bytes is outside the limit of ") &&
                        Catch::Contains("(twice this machine's memory)"));
  CHECK_THROWS_WITH(hvd::broadcast_(x, -1), Catch::Contains("root -1"));
  CHECK_THROWS_WITH(hvd::allreduce_(x, {.op = hvd::ReduceOp::kAdasum}), Catch::Contains("Adasum"));
  std::array<bool, 1> flag{};
  CHECK_THROWS_WITH(hvd::allreduce_(flag), Catch::Contains("Average of bool"));
}

TEST_CASE("api: other threads name their operations and leave init, shutdown and memory alone") {
  World world;
  std::string unnamed, unnamed_async, memory, end;
  std::vector<float> x{4};
  std::thread other([&] {
    const auto text_of = [](const auto& call) -> std::string {
      try {
        call();
      } catch (const hvd::Error& error) {
        return error.what();
      }
      return "it did not throw";
    };
    unnamed = text_of([&] { hvd::allreduce_(x); });
    unnamed_async = text_of([&] { hvd::allreduce_async_(x); });
    memory = text_of([&] { hvd::arena_buffer<float>(1); });
    end = text_of([&] { hvd::shutdown(); });
    hvd::allreduce_(x, {.name = "named", .postscale = 2});
  });
  other.join();
  CHECK(x[0] == 8);
  CHECK_THAT(unnamed, Catch::Contains("give it a name"));
  CHECK_THAT(unnamed_async, Catch::Contains("give it a name"));
  CHECK_THAT(memory, Catch::Contains("the thread that called hvd::init()"));
  CHECK_THAT(end, Catch::Contains("the thread that called hvd::init()"));
}

TEST_CASE("api: init() and shutdown() take turns a hundred times") {
  for (int i = 0; i < 100; ++i) {
    World world;
    std::vector<int64_t> x{i};
    hvd::allreduce_(x, {.op = hvd::ReduceOp::kSum});
    REQUIRE(x[0] == i);
  }
  CHECK_FALSE(hvd::is_initialized());
}

TEST_CASE("api: an arena buffer that was moved from is empty, its memory another's") {
  World world;
  auto one = hvd::arena_buffer<float>(10);
  const float* data = one.data();
  hvd::ArenaBuffer<float> other = std::move(one);
  CHECK(other.data() == data);
  CHECK(other.size() == 10);
  // NOLINTBEGIN(bugprone-use-after-move): that is asked here
  CHECK(one.data() == nullptr);
  CHECK(one.size() == 0);
  CHECK(one.memory() == nullptr);
  one = std::move(other);
  CHECK(one.data() == data);
  CHECK(std::span<float>(other).empty());
  // NOLINTEND(bugprone-use-after-move)
  hvd::ArenaBuffer<float> copy = one;
  CHECK(copy.data() == one.data());
}

TEST_CASE("api: alone; memory beyond ulimit -f is an error, and not the program's end") {
  World world;
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit little{1'000'000, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &little) == 0);  // SIGXFSZ ends the program, as by default
  std::string said;
  try {
    hvd::arena_buffer<float>(1'000'000);
  } catch (const hvd::Error& error) {
    said = error.what();
  }
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK_THAT(said, Catch::Contains("bytes cannot be made: ftruncate beyond ulimit -f"));
}

TEST_CASE("api: a forked child is no rank, and the rank goes on") {
  World world;
  const pid_t child = fork();
  if (child == 0) {
    int wrong = 0;
    wrong += hvd::is_initialized();
    try {
      hvd::rank();
      ++wrong;
    } catch (const hvd::Error& error) {
      wrong += std::string(error.what()).find("forked") == std::string::npos;
    }
    try {
      hvd::init();
      ++wrong;
    } catch (const hvd::Error&) {
    }
    hvd::shutdown();
    _exit(wrong);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  std::vector<float> x{1};
  hvd::allreduce_(x);
  CHECK(x[0] == 1);
}

TEST_CASE("api: under another launcher's variables init() throws and names one") {
  setenv("OMPI_COMM_WORLD_SIZE", "3", 1);
  CHECK_THROWS_WITH(hvd::init(), Catch::Contains("OMPI_COMM_WORLD_SIZE=3"));
  CHECK_FALSE(hvd::is_initialized());
  unsetenv("OMPI_COMM_WORLD_SIZE");
  World world;
  CHECK(hvd::size() == 1);
}

TEST_CASE("api: what is built is told truthfully") {
  CHECK_FALSE(hvd::mpi_built());
  CHECK_FALSE(hvd::gloo_built());
  CHECK((hvd::nccl_built() != 0) == bool{HVD_BUILT_WITH_NCCL});
  CHECK(hvd::cuda_built() == bool{HVD_BUILT_WITH_NCCL});
}
