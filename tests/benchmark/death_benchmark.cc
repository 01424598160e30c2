// How long a rank's end stays unnoticed inside an allreduce, and in other calls that wait:
// death_rounds.h says how.
#include <array>

#include "hvd/hvd.h"
#include "tests/benchmark/death_rounds.h"

namespace {

constexpr size_t kElements = size_t{256} << 10;  // some 100 us a call: most moments are inside one

std::function<void()> reduce() {
  return [data = hvd::arena_buffer<float>(kElements)]() mutable {
    hvd::allreduce_(data, {.op = hvd::ReduceOp::kMax});
  };
}

std::function<void()> wait() {
  return [] {
    hvd::allreduce_async(std::array{1.0f}, {.name = "later", .op = hvd::ReduceOp::kSum}).wait();
  };
}

std::function<void()> take_memory() {
  return [] { hvd::arena_buffer<float>(1024); };
}

std::function<void()> begin_anew() {
  return [] {
    hvd::shutdown();
    hvd::init();
  };
}

constexpr hvd::DeathWork kWorks[] = {{"allreduce", reduce},
                                     {"wait", wait},
                                     {"arena_buffer", take_memory},
                                     {"init", begin_anew, true}};

}  // namespace

int main(int argc, char** argv) { return hvd::measure_deaths(argc, argv, kWorks); }
