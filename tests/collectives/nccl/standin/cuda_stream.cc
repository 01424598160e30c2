#include "tests/collectives/nccl/standin/cuda_stream.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace hvd {
namespace {

// Of a graph, from cuStreamBeginCapture() to cuStreamEndCapture().
struct Capture {
  CUstreamCaptureMode mode;
  std::thread::id thread;
  bool valid = true;
};

}  // namespace
}  // namespace hvd

// Streams and events are kept when they are destroyed, so that a later use is seen.
struct CUstream_st {
  CUcontext context = nullptr;
  int priority = 0;
  std::deque<std::function<void()>> work;
  bool running = false, destroyed = false;
  std::shared_ptr<hvd::Capture> capture;  // it is a part of
};

namespace hvd {
namespace {

// What a record marks: a place in a stream. Waiters hold on to it, as the event may be recorded
// anew (CUDA Driver API, cuEventRecord: "…subsequent calls … will then examine … the new state").
struct Mark {
  bool reached = false;
  std::chrono::steady_clock::time_point when;  // it was
};

}  // namespace
}  // namespace hvd

struct CUevent_st {
  CUcontext context = nullptr;
  std::shared_ptr<hvd::Mark> mark;
  bool timed = true, destroyed = false;
  std::shared_ptr<hvd::Capture> capture;  // it was recorded last in
};

namespace hvd {
namespace {

struct Streams {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<CUstream, std::unique_ptr<CUstream_st>> all;
  std::map<CUcontext, CUstream> defaults;
  std::map<CUevent, std::unique_ptr<CUevent_st>> events;
};

Streams& streams() {
  static Streams& only = *new Streams;
  return only;
}

thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

void run_dry(CUstream stream) {
  Streams& all = streams();
  std::unique_lock lock(all.mutex);
  while (!stream->work.empty()) {
    auto work = std::move(stream->work.front());
    lock.unlock();
    pass_time(random_below(2) * random_below(setting("delay_us", 100) + 1));
    work();
    work = nullptr;
    lock.lock();
    stream->work.pop_front();
    all.changed.notify_all();
  }
  stream->running = false;
  all.changed.notify_all();
}

CUstream add_stream(CUcontext context) {
  auto stream = std::make_unique<CUstream_st>();
  stream->context = context;
  const CUstream name = stream.get();
  streams().all[name] = std::move(stream);
  return name;
}

CUresult find_event(CUevent event, const char* call) {
  {
    const std::lock_guard lock(streams().mutex);
    const auto found = streams().events.find(event);
    if (found != streams().events.end() && !event->destroyed) return CUDA_SUCCESS;
  }
  violate(std::string(call) + " of an event that is not there, or was destroyed");
  return CUDA_ERROR_INVALID_HANDLE;
}

// As with CUDA these ask for some current context, whichever it is.
CUresult find_both(CUstream& stream, CUevent event, const char* call) {
  if (const CUresult result = find_stream(stream, call); result != CUDA_SUCCESS) return result;
  return find_event(event, call);
}

void wait_for(const std::shared_ptr<Mark>& mark) {
  std::unique_lock lock(streams().mutex);
  streams().changed.wait(lock, [&] { return mark->reached; });
}

}  // namespace

CUresult find_stream(CUstream& stream, const char* call) {
  const CUcontext current = current_context();
  if (current == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  {
    const std::lock_guard lock(streams().mutex);
    if (stream == nullptr || stream == CU_STREAM_LEGACY) {
      CUstream& own = streams().defaults[current];
      if (own == nullptr) own = add_stream(current);
      stream = own;
      return CUDA_SUCCESS;
    }
    const auto found = streams().all.find(stream);
    if (found != streams().all.end() && !stream->destroyed) return CUDA_SUCCESS;
  }
  violate(std::string(call) + " of a stream that is not there, or was destroyed");
  return CUDA_ERROR_INVALID_HANDLE;
}

// A part of a graph is not done, but kept for it.
void enqueue(CUstream stream, std::function<void()> work) {
  const std::lock_guard lock(streams().mutex);
  if (stream->capture != nullptr) return;
  stream->work.push_back(std::move(work));
  if (!std::exchange(stream->running, true)) run_in_background([stream] { run_dry(stream); });
}

CUcontext context_of(CUstream stream) { return stream->context; }

// CUDA Driver API, cuThreadExchangeStreamCaptureMode.
CUresult check_no_capture() {
  if (capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  const std::lock_guard lock(streams().mutex);
  for (const auto& [stream, owner] : streams().all) {
    const auto& capture = stream->capture;
    if (capture == nullptr || capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
    const bool both_global = capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                             capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!both_global && capture->thread != std::this_thread::get_id()) continue;
    capture->valid = false;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return CUDA_SUCCESS;
}

void synchronize(CUcontext context) {
  std::unique_lock lock(streams().mutex);
  streams().changed.wait(lock, [&] {
    for (const auto& [stream, owner] : streams().all)
      if (stream->context == context && stream->running) return false;
    return true;
  });
}

}  // namespace hvd

using namespace hvd;

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  if (current_context() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *least = 0;
  *greatest = -5;
  return CUDA_SUCCESS;
}

// A priority outside of the range is taken as the next one in it (CUDA Driver API).
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned, int priority) {
  int least = 0, greatest = 0;
  if (const CUresult result = cuCtxGetStreamPriorityRange(&least, &greatest);
      result != CUDA_SUCCESS)
    return result;
  const std::lock_guard lock(streams().mutex);
  *stream = add_stream(current_context());
  (*stream)->priority = std::clamp(priority, greatest, least);
  return CUDA_SUCCESS;
}

CUresult cuStreamGetPriority(CUstream stream, int* priority) {
  if (const CUresult result = find_stream(stream, "cuStreamGetPriority"); result != CUDA_SUCCESS)
    return result;
  *priority = stream->priority;
  return CUDA_SUCCESS;
}

// What is in it is still done (CUDA Driver API, cuStreamDestroy).
CUresult cuStreamDestroy(CUstream stream) {
  if (stream == nullptr || stream == CU_STREAM_LEGACY) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = find_stream(stream, "cuStreamDestroy"); result != CUDA_SUCCESS)
    return result;
  const std::lock_guard lock(streams().mutex);
  stream->destroyed = true;
  return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream stream) {
  if (const CUresult result = check_no_capture(); result != CUDA_SUCCESS) return result;
  if (const CUresult result = find_stream(stream, "cuStreamQuery"); result != CUDA_SUCCESS)
    return result;
  const std::lock_guard lock(streams().mutex);
  return stream->work.empty() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

// CUDA C++ Programming Guide, "Prohibited and Unhandled Operations": in whichever mode, not while a
// stream of it is captured.
CUresult cuCtxSynchronize() {
  const CUcontext context = current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  {
    const std::lock_guard lock(streams().mutex);
    for (const auto& [stream, owner] : streams().all) {
      if (stream->context != context || stream->capture == nullptr) continue;
      stream->capture->valid = false;
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  count("drains", context->ordinal);
  synchronize(context);
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
  if (const CUresult result = check_no_capture(); result != CUDA_SUCCESS) return result;
  if (const CUresult result = find_stream(stream, "cuStreamSynchronize"); result != CUDA_SUCCESS)
    return result;
  count("host_waits", context_of(stream)->ordinal);
  std::unique_lock lock(streams().mutex);
  streams().changed.wait(lock, [&] { return stream->work.empty(); });
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  if (const CUresult result = find_both(stream, event, "cuStreamWaitEvent"); result != CUDA_SUCCESS)
    return result;
  std::shared_ptr<Mark> mark;
  {
    const std::lock_guard lock(streams().mutex);
    mark = event->mark;
    if (event->capture != nullptr) stream->capture = event->capture;
  }
  if (mark != nullptr) enqueue(stream, [mark] { wait_for(mark); });
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  const CUcontext context = current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  auto made = std::make_unique<CUevent_st>();
  made->context = context;
  made->timed = (flags & CU_EVENT_DISABLE_TIMING) == 0;
  *event = made.get();
  const std::lock_guard lock(streams().mutex);
  streams().events[*event] = std::move(made);
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
  if (const CUresult result = find_event(event, "cuEventDestroy"); result != CUDA_SUCCESS)
    return result;
  const std::lock_guard lock(streams().mutex);
  event->destroyed = true;
  return CUDA_SUCCESS;
}

// "event and stream must be from the same context" (CUDA Driver API, cuEventRecord).
CUresult cuEventRecord(CUevent event, CUstream stream) {
  if (const CUresult result = find_both(stream, event, "cuEventRecord"); result != CUDA_SUCCESS)
    return result;
  if (event->context != context_of(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (setting("lost_device", -1) == context_of(stream)->ordinal) return CUDA_ERROR_LAUNCH_FAILED;
  const auto mark = std::make_shared<Mark>();
  {
    const std::lock_guard lock(streams().mutex);
    event->mark = mark;
    event->capture = stream->capture;
  }
  enqueue(stream, [mark] {
    const std::lock_guard lock(streams().mutex);
    mark->reached = true;
    mark->when = std::chrono::steady_clock::now();
    streams().changed.notify_all();
  });
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  if (const CUresult result = check_no_capture(); result != CUDA_SUCCESS) return result;
  if (const CUresult result = find_event(event, "cuEventQuery"); result != CUDA_SUCCESS)
    return result;
  const std::lock_guard lock(streams().mutex);
  if (event->capture != nullptr) return CUDA_ERROR_CAPTURED_EVENT;
  return event->mark == nullptr || event->mark->reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
  if (const CUresult result = check_no_capture(); result != CUDA_SUCCESS) return result;
  if (const CUresult result = find_event(event, "cuEventSynchronize"); result != CUDA_SUCCESS)
    return result;
  count("host_waits", event->context->ordinal);
  std::shared_ptr<Mark> mark;
  {
    const std::lock_guard lock(streams().mutex);
    mark = event->mark;
  }
  if (mark != nullptr) wait_for(mark);
  return CUDA_SUCCESS;
}

// "If either event has not been recorded on the same device context, or was created with
// CU_EVENT_DISABLE_TIMING: CUDA_ERROR_INVALID_HANDLE; if … both … but one … has not completed:
// CUDA_ERROR_NOT_READY" (CUDA Driver API, cuEventElapsedTime, in short).
CUresult cuEventElapsedTime(float* ms, CUevent begin, CUevent end) {
  for (const CUevent event : {begin, end})
    if (const CUresult result = find_event(event, "cuEventElapsedTime"); result != CUDA_SUCCESS)
      return result;
  const std::lock_guard lock(streams().mutex);
  if (!begin->timed || !end->timed || !begin->mark || !end->mark || begin->context != end->context)
    return CUDA_ERROR_INVALID_HANDLE;
  if (!begin->mark->reached || !end->mark->reached) return CUDA_ERROR_NOT_READY;
  *ms = std::chrono::duration<float, std::milli>(end->mark->when - begin->mark->when).count();
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  if (const CUresult result = find_stream(stream, "cuStreamBeginCapture"); result != CUDA_SUCCESS)
    return result;
  const std::lock_guard lock(streams().mutex);
  if (stream->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  stream->capture = std::make_shared<Capture>(Capture{mode, std::this_thread::get_id()});
  return CUDA_SUCCESS;
}

// There are no graphs here: the result says whether there would be one.
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  if (const CUresult result = find_stream(stream, "cuStreamEndCapture"); result != CUDA_SUCCESS)
    return result;
  *graph = nullptr;
  const std::lock_guard lock(streams().mutex);
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  for (const auto& [each, owner] : streams().all)
    if (each->capture == capture) each->capture = nullptr;
  return capture->valid ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  if (const CUresult result = find_stream(stream, "cuStreamIsCapturing"); result != CUDA_SUCCESS)
    return result;
  const std::lock_guard lock(streams().mutex);
  *status = stream->capture == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE
            : stream->capture->valid   ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                       : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  return CUDA_SUCCESS;
}
