#include "runtime/torch/device_stream.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "hvd/error.h"

namespace hvd {

// The third kind is for devices that are added to LibTorch from outside.
void check_device(const at::Tensor& tensor, const std::string& title) {
  const c10::Device device = tensor.device();
  if (device.is_cpu() || device.is_cuda() || device.is_privateuseone()) return;
  throw Error(ErrorCode::kUnsupported,
              title + " is on " + device.str() + "; only the CPU and CUDA devices are supported");
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

void queue_behind(const c10::Stream& later, const c10::Stream& earlier) {
  c10::Event event(later.device_type());
  event.record(earlier);
  event.block(later);
}

}  // namespace hvd
