#include "collectives/nccl/cuda_driver.h"

namespace hvd {
namespace {

// CUDA 12, the oldest that LibTorch's packages are still built for.
constexpr int kOldestDriver = 12000;

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

#define HVD_STRING(name) #name
#define HVD_CALL(name) driver.handle_.find(HVD_STRING(name), driver.name);

CudaDriver CudaDriver::load(const std::string& path) {
  CudaDriver driver;
  driver.handle_ =
      DynamicLibrary(path.empty() ? "libcuda.so.1" : path, "the CUDA driver",
                     "install the GPU's driver, or name its library by HVD_CUDA_LIBRARY");
  HVD_CUDA_CALLS(HVD_CALL)
  int version = 0;
  driver.check(driver.cuInit(0), "CUDA cannot be used here");
  driver.check(driver.cuDriverGetVersion(&version), "the CUDA driver does not tell its version");
  if (version < kOldestDriver)
    throw Error(ErrorCode::kUnavailable, "the CUDA driver is for CUDA " + version_text(version) +
                                             ", too old; " + version_text(kOldestDriver) +
                                             " is needed: update the GPU's driver");
  return driver;
}

#undef HVD_CALL
#undef HVD_STRING

std::string CudaDriver::text_of(CUresult result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr)
    return "CUDA error " + std::to_string(static_cast<int>(result));
  if (cuGetErrorString(result, &text) != CUDA_SUCCESS || text == nullptr) return name;
  return std::string(text) + " (" + name + ")";
}

void CudaDriver::check(CUresult result, const std::string& what) const {
  if (result == CUDA_SUCCESS) [[likely]]
    return;
  throw Error(ErrorCode::kUnavailable, what + ": " + text_of(result));
}

}  // namespace hvd
