// Who says, and how often, that there are GPUs.
#include "runtime/torch/unused_gpus.h"

#include "tests/support/catch.h"

using namespace hvd;

TEST_CASE("unused GPUs: one rank of a host says so, once, and only where there are any") {
  UnusedGpus first, second, none;
  CHECK(first.words(8, 0, "it rains") ==
        "this machine has 8 GPUs, but it rains and trains on the CPU");
  CHECK(first.words(8, 0, "it rains").empty());
  CHECK(second.words(8, 1, "it rains").empty());
  CHECK(none.words(0, 0, "it rains").empty());
  CHECK_THAT(none.words(1, 0, "it rains"), Catch::StartsWith("this machine has 1 GPU, but "));
}

TEST_CASE("unused GPUs: what is in the way is said, the nearest first") {
  CHECK(why_no_gpu(false, false, "x", {}) == "this build of hvd has no part for them");
  CHECK_THAT(why_no_gpu(true, false, "x", {}), Catch::EndsWith("CUDA part (torch_cuda)"));
  CHECK(why_no_gpu(true, true, "no device", "7") ==
        "LibTorch finds none that it can use (no device, with CUDA_VISIBLE_DEVICES=7)");
  CHECK_THAT(why_no_gpu(true, true, "", {}), Catch::EndsWith("built for a newer driver)"));
}

TEST_CASE("unused GPUs: who hides them wants none") {
  for (const char* hidden : {"", "-1", "NoDevFiles"}) CHECK(hides_gpus(hidden));
  for (const char* seen : {"0", "0,1", "GPU-1"}) CHECK_FALSE(hides_gpus(seen));
  CHECK_FALSE(hides_gpus({}));
}
