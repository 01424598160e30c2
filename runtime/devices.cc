#include "runtime/devices.h"

#include <build_mark.h>
#include <dlfcn.h>
#include <unistd.h>

#include <string_view>

#include "runtime/base/dynamic_library.h"
#include "runtime/base/error.h"
#include "runtime/base/mutex.h"

namespace hvd {
namespace {

// By the way of the library, or of the program, that this is in.
std::string plug_in_path() {
  Dl_info found{};
  if (dladdr(reinterpret_cast<const void*>(&open_device), &found) == 0 || !found.dli_fname)
    return "libhvd_nccl.so";
  const std::string here = found.dli_fname;
  return here.substr(0, here.rfind('/') + 1) + "libhvd_nccl.so";
}

struct Opened {
  Mutex mutex;
  DeviceBackend* device GUARDED_BY(mutex) = nullptr;
  int ordinal GUARDED_BY(mutex) = 0;
};

Opened& opened() {
  static Opened* const instance = new Opened;  // threads may outlive every static
  return *instance;
}

// Throws kUnsupported: it is another build's, whose classes are not this one's.
DynamicLibrary plug_in() {
  DynamicLibrary opened(plug_in_path(), "hvd's part for GPUs");
  const char* (*build)() = nullptr;
  opened.find_if_there("hvd_nccl_build", build);
  if (!build || std::string_view(build()) != HVD_BUILD_MARK_NAME)
    throw Error(ErrorCode::kUnsupported, opened.path() +
                                             " and libhvd are of different builds; "
                                             "install both from one");
  return opened;
}

bool has_plug_in() { return access(plug_in_path().c_str(), R_OK) == 0; }

int find_version() noexcept {
  try {
    if (!has_plug_in()) return 0;
    int (*version)() = nullptr;
    plug_in().find("hvd_nccl_version", version);
    return version();
  } catch (const std::exception&) {
    return 0;
  }
}

}  // namespace

// Opening it opens nothing of CUDA or NCCL.
int device_plug_in_version() noexcept {
  static const int version = find_version();
  return version;
}

std::string why_no_cuda(const std::string& library) {
  if (device_plug_in_version() == 0) return "";
  const char* (*failure)(const char*) = nullptr;
  plug_in().find("hvd_cuda_failure", failure);
  return failure(library.c_str());
}

DeviceBackend& open_device(const DeviceOptions& options) {
  Opened& all = opened();
  MutexLock lock(all.mutex);
  if (all.device == nullptr) {
    if (!has_plug_in())
      throw Error(ErrorCode::kUnsupported,
                  "this build of hvd has no part for GPUs (HVD_WITH_CUDA was OFF, or no CUDA was "
                  "found); move the tensor to the CPU, or build with CUDA");
    const DynamicLibrary found = plug_in();
    DeviceBackend* (*open)(const DeviceOptions*) = nullptr;
    found.find("hvd_open_nccl", open);
    all.device = open(&options);
    all.ordinal = options.ordinal;
  }
  if (all.ordinal != options.ordinal)
    throw Error(ErrorCode::kUnsupported,
                "this rank uses GPU " + std::to_string(all.ordinal) + ", and cannot use GPU " +
                    std::to_string(options.ordinal) + " as well; start one rank for each GPU");
  return *all.device;
}

}  // namespace hvd
