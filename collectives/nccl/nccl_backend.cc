#include "collectives/nccl/nccl_backend.h"

#include "collectives/nccl/nccl_communicator.h"
#include "runtime/base/env.h"

namespace hvd {

namespace {

// Ids of NCCL's are given to ranks over links that know each other; by this variable whoever
// connects first would be taken for a rank.
const std::string& without_comm_id(const std::string& library) {
  if (!env::get("NCCL_COMM_ID")) return library;
  throw Error(ErrorCode::kInvalidArgument,
              "NCCL_COMM_ID is set, by which ranks would meet where nothing tells them from "
              "strangers; unset it: hvdrun's ranks do without");
}

}  // namespace

NcclBackend::NcclBackend(const DeviceOptions& options)
    : driver_(CudaDriver::load(without_comm_id(options.cuda_library))),
      nccl_(NcclLibrary::load(options.nccl_library)),
      device_(driver_, options.ordinal),
      description_("NCCL " + nccl_version_text(nccl_.version) + " on GPU " +
                   std::to_string(options.ordinal) + ", " + device_.name()) {}

std::unique_ptr<Communicator> NcclBackend::make_communicator(Peers& peers, const std::string& name,
                                                             Communicator& control) {
  return std::make_unique<NcclCommunicator>(peers, device_, nccl_, name, control);
}

}  // namespace hvd

// The version of NCCL that this was compiled for.
extern "C" HVD_API int hvd_nccl_version() { return NCCL_VERSION_CODE; }

// What a process that has opened the plug-in calls. Its layout is that of one build of libhvd.
extern "C" HVD_API hvd::DeviceBackend* hvd_open_nccl(const hvd::DeviceOptions* options) {
  return new hvd::NcclBackend(*options);
}
