// Sums a vector over all ranks: hvdrun -np 4 ./allreduce
#include <hvd/hvd.h>

#include <cstdio>
#include <span>
#include <vector>

int main() {
  try {
    hvd::init();
    std::vector<float> x(1'000'000, float(hvd::rank() + 1));
    hvd::allreduce_(std::span(x), {.op = hvd::ReduceOp::kSum});
    if (hvd::rank() == 0) std::printf("%d ranks: %g\n", hvd::size(), double(x[0]));
    hvd::shutdown();
  } catch (const hvd::Error& error) {
    std::fprintf(stderr, "allreduce: %s\n", error.what());
    return 1;
  }
}
