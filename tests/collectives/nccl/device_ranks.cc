#include "tests/collectives/nccl/device_ranks.h"

#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>

#include "collectives/nccl/nccl_backend.h"
#include "collectives/nccl/nccl_communicator.h"
#include "tests/collectives/nccl/staged_communicator.h"
#include "tests/collectives/nccl/standin.h"

namespace hvd {

const CudaDriver& standin_driver() {
  static const CudaDriver driver = [] {
    hvd_standin_set("devices", "8");
    return CudaDriver::load(HVD_CUDA_STANDIN);
  }();
  return driver;
}

namespace {

// Tests are run over the one without the newer calls, too.
std::string nccl_path() {
  const char* other = std::getenv("HVD_TEST_NCCL");
  return other != nullptr ? other : HVD_NCCL_STANDIN;
}

}  // namespace

const NcclLibrary& standin_nccl() {
  static const NcclLibrary nccl = (standin_driver(), NcclLibrary::load(nccl_path()));
  return nccl;
}

CudaDevice& standin_device(int rank) {
  static std::mutex mutex;
  static auto& devices = *new std::map<int, std::unique_ptr<CudaDevice>>;  // never unmade
  const std::lock_guard lock(mutex);
  auto& device = devices[rank];
  if (!device) device = std::make_unique<CudaDevice>(standin_driver(), rank);
  return *device;
}

DeviceBackend& standin_backend(int rank) {
  static std::mutex mutex;
  static auto& backends = *new std::map<int, std::unique_ptr<DeviceBackend>>;  // never unmade
  const std::lock_guard lock(mutex);
  auto& backend = backends[rank];
  if (!backend) backend = make_standin_backend(rank);
  return *backend;
}

std::unique_ptr<DeviceBackend> make_standin_backend(int rank, const NcclLimits& limits) {
  standin_nccl();
  return std::make_unique<NcclBackend>(
      DeviceOptions{.ordinal = rank, .cuda_library = HVD_CUDA_STANDIN, .nccl_library = nccl_path()},
      limits);
}

size_t settled_use(int rank) {
  try {
    standin_backend(rank).allocate(std::numeric_limits<size_t>::max() / 4);
  } catch (const Error&) {  // there is no room, also not when all is back
  }
  return hvd_standin_used(rank);
}

CommunicatorFactory staged_nccl_factory(uint32_t number) {
  return [number](Rank& rank) -> std::unique_ptr<Communicator> {
    if (number == 0) {
      add_words(rank, communicator_bytes(true));
    } else {
      rank.add_segment(communicator_bytes(true));
    }
    auto control = make_communicator(*rank.peers, rank.arena,
                                     {.segment = number, .offset = 0, .seed = 1 + number});
    CudaDevice& device = standin_device(rank.rank);
    auto inner = std::make_unique<NcclCommunicator>(*rank.peers, device, standin_nccl(),
                                                    "test " + std::to_string(number), *control);
    return std::make_unique<StagedCommunicator>(device, std::move(control), std::move(inner));
  };
}

}  // namespace hvd
