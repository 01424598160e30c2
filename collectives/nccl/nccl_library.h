// NCCL's calls, found when a device is to be used: libnccl is never linked.
//
// Which thread may call what when is the communicator's business; NCCL itself takes one call at a
// time for each communicator, and none beside ncclCommAbort().
#pragma once

#include <nccl.h>

#include <string>

#include "hvd/error.h"
#include "runtime/base/dynamic_library.h"

namespace hvd {

// Since 2.19 or before: non-blocking communicators.
// clang-format off
#define HVD_NCCL_CALLS(X) \
  X(ncclGetVersion) X(ncclGetErrorString) X(ncclGetLastError) X(ncclGetUniqueId) \
  X(ncclCommInitRankConfig) X(ncclCommFinalize) X(ncclCommDestroy) \
  X(ncclCommAbort) X(ncclCommGetAsyncError) X(ncclAllReduce) X(ncclBroadcast) X(ncclAllGather) \
  X(ncclGroupStart) X(ncclGroupEnd) X(ncclMemAlloc) X(ncclMemFree) \
  X(ncclRedOpCreatePreMulSum) X(ncclRedOpDestroy) X(ncclCommSplit)
// Since 2.18, and null where they are missing since 2.19, 2.23, 2.27.
#define HVD_NEW_NCCL_CALLS(X) \
  X(ncclCommRegister) X(ncclCommDeregister) X(ncclCommInitRankScalable) X(ncclCommWindowRegister) \
  X(ncclCommWindowDeregister)
// clang-format on

struct NcclLibrary {
#define HVD_CALL(name) decltype(&::name) name = nullptr;
  HVD_NCCL_CALLS(HVD_CALL)
  HVD_NEW_NCCL_CALLS(HVD_CALL)
#undef HVD_CALL
  int version = 0;  // 22809 is 2.28.9

  static constexpr int kOldest = 21900;

  // The copy that this process has loaded already (its framework's), else `path`, or libnccl.so.2
  // where that is empty. Throws kUnavailable: there is none, it is older than kOldest, or the
  // process has several.
  static NcclLibrary load(const std::string& path);
  // What NCCL has noted last, of anything in this process (src/init.cc, ncclGetLastError).
  std::string last_words(ncclComm_t communicator) const;
  // "unhandled cuda error (run with NCCL_DEBUG=INFO for details): …": with NCCL's last words, and
  // whether they may be those from before.
  std::string text_of(ncclResult_t result, ncclComm_t communicator,
                      const std::string& before = {}) const;

 private:
  DynamicLibrary handle_;
};

// "2.28.9"
std::string nccl_version_text(int version);

}  // namespace hvd
