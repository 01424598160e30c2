// How long a rank's end stays unnoticed inside an allreduce: death_rounds.h says how.
#include "hvd/hvd.h"
#include "tests/benchmark/death_rounds.h"

namespace {

constexpr size_t kElements = size_t{256} << 10;  // some 100 us a call: most moments are inside one

std::function<void()> reduce() {
  return [data = hvd::arena_buffer<float>(kElements)]() mutable {
    hvd::allreduce_(data, {.op = hvd::ReduceOp::kMax});
  };
}

}  // namespace

int main(int argc, char** argv) { return hvd::measure_deaths(argc, argv, reduce); }
