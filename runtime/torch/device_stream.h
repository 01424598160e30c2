// Streams of whatever device a tensor is on, by what c10 offers for every kind of device: nothing
// of CUDA is linked.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <string>

namespace hvd {

// Throws kUnsupported, naming the tensor by `title`, where hvd knows no way to that device.
void check_device(const at::Tensor& tensor, const std::string& title);

// In which the calling thread queues what it does on this device, not the CPU.
c10::Stream current_stream(c10::Device device);

// One of the device's pool, always the same, in which programs queue little or nothing: memory that
// is had in it is mostly nobody's.
c10::Stream quiet_stream(c10::Device device);

// What comes into `later` from now on begins once what is in `earlier` by now has been done.
void queue_behind(const c10::Stream& later, const c10::Stream& earlier);

// The tensor's memory is used in `stream` by now, too: nobody gets it before, once it is let go of.
// Memory of LibTorch's allocator; other memory is left alone.
void record_stream(const at::Tensor& tensor, const c10::Stream& stream);

// LibTorch keeps what tensors let go of for the next ones: gives that back to the device. It waits
// for what the device does.
void empty_cache(c10::Device device);

}  // namespace hvd
