// That copies of gradients are counted, on a device of LibTorch's over the stand-ins.
#include "tests/gpu_check/gradient_copies.h"

#include "hvd/hvd.h"
#include "hvd/torch.h"
#include "tests/runtime/torch/device/job.h"

// Last: LibTorch has a CHECK of its own, which ends the program.
#include "tests/support/catch.h"

using namespace hvd;

TEST_CASE("gradient copies: one in for each gradient and none out, none for those that are kept") {
  const Job job;
  CHECK(check_gradient_copies(device()) ==
        "32 gradients: copied in 32 by 3 operations, out 0; kept for a step, in 0, out 0\n");
}

TEST_CASE(
    "gradient copies: what is exchanged in another type is seen to be copied there and back") {
  const Job job;
  CHECK_THROWS_WITH(check_gradient_copies(device(), {.compression = Compression::kFp16}),
                    Catch::Contains("gradients were copied out"));
}
