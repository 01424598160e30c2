// That ranks on a device of LibTorch's over the stand-ins learn as one process does, and that it is
// seen where they do not.
#include "tests/gpu_check/loss_curve.h"

#include "hvd/hvd.h"
#include "hvd/torch.h"
#include "tests/runtime/torch/device/job.h"

// Last: LibTorch has a CHECK of its own, which ends the program.
#include "tests/support/catch.h"

using namespace hvd;

TEST_CASE("loss curve: that of one process, bit for bit") {
  const Job job;
  CHECK_THAT(check_loss_curve(device()),
             Catch::StartsWith("20 losses, from ") &&
                 Catch::EndsWith(": those of one process, bit for bit\n"));
}

TEST_CASE("loss curve: a sum in fewer bits is seen") {
  const Job job;
  CHECK_THROWS_WITH(check_loss_curve(device(), {.compression = Compression::kFp16}),
                    Catch::StartsWith("they part in step "));
}
