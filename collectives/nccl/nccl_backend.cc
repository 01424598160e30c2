#include "collectives/nccl/nccl_backend.h"

#include <build_mark.h>

#include <cstdlib>

#include "collectives/nccl/nccl_communicator.h"
#include "collectives/nccl/nccl_environment.h"

namespace hvd {

namespace {

// Before NCCL is looked for.
const std::string& checked(const std::string& library) {
  check_nccl_environment();
  return library;
}

}  // namespace

NcclBackend::NcclBackend(const DeviceOptions& options, const NcclLimits& limits)
    : limits_(limits),
      driver_(CudaDriver::load(checked(options.cuda_library))),
      nccl_(NcclLibrary::load(options.nccl_library)),
      device_(driver_, options.ordinal),
      description_("NCCL " + nccl_version_text(nccl_.version) + " on GPU " +
                   std::to_string(options.ordinal) + ", " + device_.name()) {}

std::unique_ptr<Communicator> NcclBackend::make_communicator(Peers& peers, const std::string& name,
                                                             Communicator& control) {
  return std::make_unique<NcclCommunicator>(peers, device_, nccl_, name, control, limits_);
}

void NcclBackend::cast(std::span<const Cast> casts, double factor, void* stream) {
  const CudaDevice::Current current(device_);
  device_.kernels().cast(casts, factor, static_cast<CUstream>(stream));
}

}  // namespace hvd

// The version of NCCL that this was compiled for.
extern "C" HVD_API int hvd_nccl_version() { return NCCL_VERSION_CODE; }

// The build whose classes these are: what libhvd compares with its own.
extern "C" HVD_API const char* hvd_nccl_build() { return HVD_BUILD_MARK_NAME; }

// Why CUDA cannot be used here; empty: it can. The words live until the thread asks again.
extern "C" HVD_API const char* hvd_cuda_failure(const char* library) {
  thread_local std::string why;
  try {
    hvd::CudaDriver::load(library);
    why.clear();
  } catch (const hvd::Error& error) {
    why = error.what();
  }
  return why.c_str();
}

// What a process that has opened the plug-in calls. The backend lives as long as the process, and
// hears of its end before CUDA and NCCL do, which have been loaded before.
extern "C" HVD_API hvd::DeviceBackend* hvd_open_nccl(const hvd::DeviceOptions* options) {
  auto* const backend = new hvd::NcclBackend(*options);
  on_exit([](int, void* opened) { static_cast<hvd::NcclBackend*>(opened)->end_with_process(); },
          backend);
  return backend;
}
