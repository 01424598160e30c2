// The CUDA driver's calls, found when a device is to be used: nothing of CUDA is linked.
//
// The driver, not the runtime: there is one on each machine, whatever runtime the program or its
// framework brings, and streams, events and memory of all of them are the driver's. Every call may
// be made from any thread whose current context is the device's (CUDA Driver API,
// "Multithreading").
#pragma once

#include <cuda.h>

#include <string>

#include "hvd/error.h"
#include "runtime/base/dynamic_library.h"

namespace hvd {

// As <cuda.h> spells them, so that each name stands for the version of the call that it was
// compiled for (cuMemAlloc_v2).
// clang-format off
#define HVD_CUDA_CALLS(X) \
  X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuGetErrorString) X(cuDeviceGetCount) \
  X(cuDeviceGet) X(cuDeviceGetName) X(cuDeviceGetUuid) X(cuDeviceGetPCIBusId) \
  X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuCtxPushCurrent) X(cuCtxPopCurrent) \
  X(cuCtxSynchronize) X(cuCtxGetStreamPriorityRange) X(cuStreamCreateWithPriority) X(cuStreamDestroy) \
  X(cuStreamQuery) X(cuStreamWaitEvent) X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) \
  X(cuEventQuery) X(cuMemAlloc) X(cuMemFree) X(cuMemGetInfo) X(cuMemcpyAsync) \
  X(cuMemsetD8Async) X(cuPointerGetAttribute) X(cuModuleLoadData) X(cuModuleUnload) \
  X(cuModuleGetFunction) X(cuLaunchKernel) X(cuStreamIsCapturing) \
  X(cuThreadExchangeStreamCaptureMode)
// clang-format on

struct CudaDriver {
#define HVD_CALL(name) decltype(&::name) name = nullptr;
  HVD_CUDA_CALLS(HVD_CALL)
#undef HVD_CALL

  // Throws kUnavailable: there is no driver, it is too old for a call, or it knows no device.
  // `path` empty: libcuda.so.1.
  static CudaDriver load(const std::string& path);
  // "out of memory (CUDA_ERROR_OUT_OF_MEMORY)"
  std::string text_of(CUresult result) const;
  // Throws kUnavailable, with `what` was tried and the driver's words, unless it succeeded.
  void check(CUresult result, const std::string& what) const;

 private:
  DynamicLibrary handle_;
};

}  // namespace hvd
