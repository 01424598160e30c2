// A device of LibTorch's over the stand-in of CUDA: its streams, events, and work in them.
//
// LibTorch's private device number k is GPU k of the stand-in. Its default stream is the driver's,
// whose handle is null, as with CUDA; what else there is was made for whoever asked, and stays.
// Memory is in memory.h, operators in operators.h.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>
#include <vector>

namespace hvd {

// Of the calling thread.
c10::Stream current_standin_stream(c10::Device device);
c10::Stream new_standin_stream(c10::Device device);

// Runs `work` when the stream comes to it; until then what is at these addresses may not be freed.
void launch(const c10::Stream& stream, std::vector<const void*> touched,
            std::function<void()> work);
// Copies within the device, as soon as the stream comes to it.
void copy_within(const c10::Stream& stream, void* to, const void* from, size_t bytes);
// The host waits; the stand-in counts it (host_waits), and so does this.
void wait_for(const c10::Stream& stream);
// How often LibTorch's own work has made the host wait for that device.
long long own_waits(int ordinal);

}  // namespace hvd
