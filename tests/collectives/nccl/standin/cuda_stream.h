// Streams that do their work later, each in its own order and in none with the others; events.
#pragma once

#include <functional>
#include <string>

#include "tests/collectives/nccl/standin/cuda_device.h"

namespace hvd {

// Whether the stream is there, and its device; a violation where it was destroyed. `call` is made
// by this. Null and CU_STREAM_LEGACY are the default stream of the thread's context.
HVD_STANDIN_API CUresult find_stream(CUstream& stream, const char* call);
// The same of one that is given work.
HVD_STANDIN_API CUresult find_stream_for_work(CUstream& stream, const char* call);
// Work of a stream that was found. It begins when all before it has ended, or later; the default
// stream's when all has that its context's blocking streams were given before, and theirs after
// the default stream's (CUDA Runtime API, "Stream synchronization behavior"). Nothing begins on a
// device that is lost.
HVD_STANDIN_API void enqueue(CUstream stream, std::function<void()> work);
// The device whose stream it is.
HVD_STANDIN_API CUcontext context_of(CUstream stream);
// A kernel, for as long as the setting says.
void wait_while_held(const std::string& kernel);
// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, which ends a capture, where this thread may make no call
// that is unsafe beside one.
CUresult check_no_capture();
// Waits until the context's streams have nothing to do, or its device is lost.
CUresult synchronize(CUcontext context);
void forget_streams_of(CUcontext context);

}  // namespace hvd
