// Streams that do their work later, each in its own order and in none with the others; events.
#pragma once

#include <functional>

#include "tests/collectives/nccl/standin/cuda_device.h"

namespace hvd {

// Whether the stream is there; a violation where it was destroyed. `call` is for the text. Null and
// CU_STREAM_LEGACY are the default stream of the thread's context, which here waits for no other.
HVD_STANDIN_API CUresult find_stream(CUstream& stream, const char* call);
// Work of a stream that was found. It begins when all before it has ended, or later.
HVD_STANDIN_API void enqueue(CUstream stream, std::function<void()> work);
// The device whose stream it is.
HVD_STANDIN_API CUcontext context_of(CUstream stream);
// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, which ends a capture, where this thread may make no call
// that is unsafe beside one.
CUresult check_no_capture();
// Waits until the context's streams have nothing to do.
void synchronize(CUcontext context);

}  // namespace hvd
