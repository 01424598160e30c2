#include "runtime/torch/device_stream.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <mutex>
#include <unordered_map>

#include "hvd/error.h"

namespace hvd {

namespace {

// Tests add a device of this name to LibTorch from outside; a vendor's is nothing for NCCL.
bool is_stand_in(c10::Device device) {
  return device.is_privateuseone() && c10::get_privateuse1_backend() == "standin";
}

}  // namespace

void check_device(const at::Tensor& tensor, const std::string& title) {
  const c10::Device device = tensor.device();
  if (device.is_cpu() || device.is_cuda() || is_stand_in(device)) return;
  throw Error(ErrorCode::kUnsupported,
              title + " is on " + device.str() + "; only the CPU and CUDA devices are supported");
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

c10::Stream quiet_stream(c10::Device device) {
  static std::mutex mutex;
  static auto& streams = *new std::unordered_map<c10::Device, c10::Stream>;  // never unmade
  const std::lock_guard lock(mutex);
  const auto known = streams.find(device);
  if (known != streams.end()) return known->second;
  const c10::impl::VirtualGuardImpl guard(device.type());
  return streams.emplace(device, guard.getStreamFromGlobalPool(device)).first->second;
}

void queue_behind(const c10::Stream& later, const c10::Stream& earlier) {
  c10::Event event(later.device_type());
  event.record(earlier);
  event.block(later);
}

void record_stream(const at::Tensor& tensor, const c10::Stream& stream) {
  try {
    tensor.record_stream(stream);
  } catch (const c10::Error&) {
    // cudaMallocAsync's allocator fails at what is not its own, which others pass over.
  }
}

// What is wrong with the device is heard of by who asks it for memory next.
void empty_cache(c10::Device device) {
  try {
    auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
    if (allocator != nullptr && allocator->initialized()) allocator->emptyCache();
  } catch (const c10::Error&) {
  }
}

}  // namespace hvd
