// What is said where there is no driver, and no NCCL or not the right one.
#include "collectives/nccl/cuda_driver.h"
#include "collectives/nccl/nccl_library.h"
#include "tests/support/catch.h"

namespace hvd {
namespace {

template <class Load>
std::string refusal_of(const Load& load) {
  try {
    load();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kUnavailable);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("nccl load: a library that is not there is named") {
  CHECK_THAT(refusal_of([] { CudaDriver::load("/gone/libcuda.so.1"); }),
             Catch::StartsWith("the CUDA driver cannot be loaded: /gone/libcuda.so.1: ") &&
                 Catch::EndsWith("; install the GPU's driver, or name its library by "
                                 "HVD_CUDA_LIBRARY"));
  CHECK_THAT(refusal_of([] { NcclLibrary::load("/gone/libnccl.so.2"); }),
             Catch::StartsWith("NCCL cannot be loaded: /gone/libnccl.so.2: ") &&
                 Catch::Contains("; install NCCL 2.19.0 or newer") &&
                 Catch::Contains("-x HVD_NCCL_LIBRARY=PATH where"));
}

TEST_CASE("nccl load: another library is told as such") {
  CHECK_THAT(refusal_of([] { CudaDriver::load("libm.so.6"); }),
             Catch::Contains("libm.so.6 lacks cuInit; it is too old, or another library"));
  CHECK_THAT(refusal_of([] { NcclLibrary::load("libm.so.6"); }),
             Catch::Contains("libm.so.6 lacks ncclGetVersion"));
}

TEST_CASE("nccl load: versions are told as NCCL numbers them") {
  CHECK(nccl_version_text(22809) == "2.28.9");
  CHECK(nccl_version_text(21903) == "2.19.3");
}

}  // namespace hvd
