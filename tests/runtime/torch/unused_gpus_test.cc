// Who says, and how often, that there are GPUs.
#include "runtime/torch/unused_gpus.h"

#include "tests/support/catch.h"

using namespace hvd;

TEST_CASE("unused GPUs: one rank of a host says so, once, and only where there are any") {
  UnusedGpus first, second, none;
  CHECK(first.words(8, 0, false) == "this machine has 8 GPUs, but this build trains on the CPU");
  CHECK(first.words(8, 0, false).empty());
  UnusedGpus linked_without;
  CHECK_THAT(linked_without.words(8, 0, true),
             Catch::EndsWith("(torch_cuda) and trains on the CPU"));
  CHECK(second.words(8, 1, false).empty());
  CHECK(none.words(0, 0, false).empty());
  CHECK(none.words(1, 0, false) == "this machine has 1 GPU, but this build trains on the CPU");
}
