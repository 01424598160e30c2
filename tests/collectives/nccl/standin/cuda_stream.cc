#include "tests/collectives/nccl/standin/cuda_stream.h"

#include <algorithm>
#include <chrono>
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
  bool valid = true, ended = false;
};

// What a record marks: a place in a stream. Waiters hold on to it, as the event may be recorded
// anew (CUDA Driver API, cuEventRecord: "…subsequent calls … will then examine … the new state").
struct Mark {
  bool reached = false;
  std::chrono::steady_clock::time_point when;  // it was
};

}  // namespace
}  // namespace hvd

// Streams and events are kept when they are destroyed, so that a later use is seen.
struct CUstream_st {
  CUcontext context = nullptr;
  unsigned flags = 0;
  int priority = 0;
  std::deque<std::function<void()>> work;
  std::shared_ptr<hvd::Mark> last;  // the end of all that it was given
  bool running = false, destroyed = false;
  std::shared_ptr<hvd::Capture> capture;  // it is a part of
};

struct CUevent_st {
  CUcontext context = nullptr;
  std::shared_ptr<hvd::Mark> mark;
  bool timed = true, destroyed = false;
  std::shared_ptr<hvd::Capture> capture;  // it was recorded last in
};

namespace hvd {
namespace {

constexpr int kLeastPriority = 0, kGreatestPriority = -5;

struct Streams {
  std::mutex mutex;
  Condition changed;
  std::map<CUstream, std::unique_ptr<CUstream_st>> all;
  std::map<CUcontext, CUstream> defaults;
  std::map<CUevent, std::unique_ptr<CUevent_st>> events;
};

Streams& streams() {
  static Streams& only = *new Streams;
  return only;
}

thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

void wake_waiters(const std::string&) {
  const std::lock_guard lock(streams().mutex);
  streams().changed.notify_all();
}
const bool listens [[maybe_unused]] = (listen_to_changes(wake_waiters), true);

bool is_lost(CUcontext context) { return failure_of(context) != CUDA_SUCCESS; }

// On the host, with the lock of the streams: until it is so, or the device is lost.
template <class Condition>
CUresult wait_until(std::unique_lock<std::mutex>& lock, CUcontext context, Condition is_so) {
  streams().changed.wait(lock, [&] { return is_so() || is_lost(context); });
  return failure_of(context);
}

void run_dry(CUstream stream) {
  Streams& all = streams();
  std::unique_lock lock(all.mutex);
  while (!stream->work.empty()) {
    all.changed.wait(lock, [&] { return !is_lost(stream->context); });
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

CUstream add_stream(CUcontext context, unsigned flags) {
  auto stream = std::make_unique<CUstream_st>();
  stream->context = context;
  stream->flags = flags;
  const CUstream name = stream.get();
  streams().all[name] = std::move(stream);
  return name;
}

// "…a resource handle passed to the API call was not valid" (CUDA Driver API,
// CUDA_ERROR_INVALID_HANDLE); of one that was destroyed it is undefined what comes.
CUresult check_there(CUevent event, const char* call) {
  {
    const std::lock_guard lock(streams().mutex);
    const auto found = streams().events.find(event);
    if (found != streams().events.end() && !event->destroyed) return CUDA_SUCCESS;
  }
  violate(std::string(call) + " of an event that is not there, or was destroyed");
  return CUDA_ERROR_INVALID_HANDLE;
}

CUresult find_event(CUevent event, const char* call) {
  const CUresult result = check_there(event, call);
  return result == CUDA_SUCCESS ? enter(event->context, call) : result;
}

// As with CUDA these ask for some current context, whichever it is.
CUresult find_both(CUstream& stream, CUevent event, const char* call) {
  if (const CUresult result = find_stream_for_work(stream, call); result != CUDA_SUCCESS)
    return result;
  return check_there(event, call);
}

void reach(const std::shared_ptr<Mark>& mark) {
  const std::lock_guard lock(streams().mutex);
  mark->reached = true;
  mark->when = std::chrono::steady_clock::now();
  streams().changed.notify_all();
}

void wait_for(const std::shared_ptr<Mark>& mark) {
  std::unique_lock lock(streams().mutex);
  streams().changed.wait(lock, [&] { return mark->reached; });
}

CUresult invalidate(const std::shared_ptr<Capture>& capture, CUresult result) {
  capture->valid = false;
  return result;
}

bool is_default(CUstream stream) {
  const auto found = streams().defaults.find(stream->context);
  return found != streams().defaults.end() && found->second == stream;
}

// Do they wait for each other without an event?
bool wait_for_each_other(CUstream one, CUstream other) {
  if (one->context != other->context || one == other) return false;
  return (is_default(one) && (other->flags & CU_STREAM_NON_BLOCKING) == 0) ||
         (is_default(other) && (one->flags & CU_STREAM_NON_BLOCKING) == 0);
}

// CUDA C++ Programming Guide, "Stream Capture Invalidation": no use of a stream whose capture is
// invalid; "Prohibited and Unhandled Operations": nor of the default stream while one is captured
// that it would wait for.
CUresult check_capture(CUstream stream) {
  if (stream->capture != nullptr && !stream->capture->valid)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (is_default(stream))
    for (const auto& [other, owner] : streams().all)
      if (other->capture != nullptr && wait_for_each_other(stream, other))
        return invalidate(other->capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  return CUDA_SUCCESS;
}

}  // namespace

// As check_there().
CUresult find_stream(CUstream& stream, const char* call) {
  const CUcontext current = current_context();
  if (process_ends()) return CUDA_ERROR_DEINITIALIZED;
  if (current == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  bool is_there = true;
  {
    const std::lock_guard lock(streams().mutex);
    if (stream == nullptr || stream == CU_STREAM_LEGACY) {
      CUstream& own = streams().defaults[current];
      if (own == nullptr) own = add_stream(current, CU_STREAM_DEFAULT);
      stream = own;
    }
    const auto found = streams().all.find(stream);
    is_there = found != streams().all.end() && !stream->destroyed;
  }
  if (is_there) return enter(stream->context, call);
  violate(std::string(call) + " of a stream that is not there, or was destroyed");
  return CUDA_ERROR_INVALID_HANDLE;
}

CUresult find_stream_for_work(CUstream& stream, const char* call) {
  if (const CUresult result = find_stream(stream, call); result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(streams().mutex);
  return check_capture(stream);
}

// A part of a graph is not done, but kept for it.
void enqueue(CUstream stream, std::function<void()> work) {
  const std::lock_guard lock(streams().mutex);
  if (stream->capture != nullptr) return;
  std::vector<std::shared_ptr<Mark>> before;
  for (const auto& [other, owner] : streams().all)
    if (other->last != nullptr && !other->last->reached && wait_for_each_other(stream, other))
      before.push_back(other->last);
  stream->last = std::make_shared<Mark>();
  stream->work.push_back([before, work = std::move(work), done = stream->last]() mutable {
    for (const auto& mark : before) wait_for(mark);
    work();
    work = nullptr;
    reach(done);
  });
  if (!std::exchange(stream->running, true)) run_in_background([stream] { run_dry(stream); });
}

void wait_while_held(const std::string& kernel) {
  std::unique_lock lock(streams().mutex);
  streams().changed.wait(lock, [&] { return setting("held_kernel") != kernel; });
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
    return invalidate(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  return CUDA_SUCCESS;
}

CUresult synchronize(CUcontext context) {
  std::unique_lock lock(streams().mutex);
  return wait_until(lock, context, [&] {
    for (const auto& [stream, owner] : streams().all)
      if (stream->context == context && stream->running) return false;
    return true;
  });
}

void forget_streams_of(CUcontext context) {
  const std::lock_guard lock(streams().mutex);
  for (const auto& [stream, owner] : streams().all) stream->destroyed |= stream->context == context;
  for (const auto& [event, owner] : streams().events) event->destroyed |= event->context == context;
  streams().defaults.erase(context);
}

}  // namespace hvd

using namespace hvd;

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  CUcontext context = nullptr;
  if (const CUresult result = enter_current(context, "cuCtxGetStreamPriorityRange");
      result != CUDA_SUCCESS)
    return result;
  *least = kLeastPriority;
  *greatest = kGreatestPriority;
  return CUDA_SUCCESS;
}

// A priority outside of the range is taken as the next one in it (CUDA Driver API).
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  CUcontext context = nullptr;
  if (const CUresult result = enter_current(context, "cuStreamCreateWithPriority");
      result != CUDA_SUCCESS)
    return result;
  if (flags != CU_STREAM_DEFAULT && flags != CU_STREAM_NON_BLOCKING)
    return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(streams().mutex);
  *stream = add_stream(context, flags);
  (*stream)->priority = std::clamp(priority, kGreatestPriority, kLeastPriority);
  count("streams of flags " + std::to_string(flags) + " and priority " +
            std::to_string((*stream)->priority),
        context->ordinal);
  return CUDA_SUCCESS;
}

CUresult cuStreamGetFlags(CUstream stream, unsigned* flags) {
  if (const CUresult result = find_stream(stream, "cuStreamGetFlags"); result != CUDA_SUCCESS)
    return result;
  *flags = stream->flags;
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
  CUcontext context = nullptr;
  if (const CUresult result = enter_current(context, "cuCtxSynchronize"); result != CUDA_SUCCESS)
    return result;
  {
    const std::lock_guard lock(streams().mutex);
    for (const auto& [stream, owner] : streams().all)
      if (stream->context == context && stream->capture != nullptr)
        return invalidate(stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  count("drains", context->ordinal);
  return synchronize(context);
}

CUresult cuStreamSynchronize(CUstream stream) {
  if (const CUresult result = check_no_capture(); result != CUDA_SUCCESS) return result;
  if (const CUresult result = find_stream(stream, "cuStreamSynchronize"); result != CUDA_SUCCESS)
    return result;
  count("host_waits", context_of(stream)->ordinal);
  std::unique_lock lock(streams().mutex);
  return wait_until(lock, stream->context, [&] { return stream->work.empty(); });
}

// An event that was never recorded has passed, as cuEventQuery() tells. "…a dependency would have
// been created which crosses the capture sequence boundary" (cuda.h,
// CUDA_ERROR_STREAM_CAPTURE_ISOLATION); "…a merge of two independent capture sequences" (…_MERGE).
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  if (const CUresult result = find_both(stream, event, "cuStreamWaitEvent"); result != CUDA_SUCCESS)
    return result;
  std::shared_ptr<Mark> mark;
  {
    const std::lock_guard lock(streams().mutex);
    mark = event->mark;
    if (mark == nullptr) return CUDA_SUCCESS;
    if (stream->capture != nullptr && event->capture == nullptr)
      return invalidate(stream->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    if (event->capture != nullptr) {
      if (event->capture->ended) return CUDA_ERROR_CAPTURED_EVENT;
      if (stream->capture != nullptr && stream->capture != event->capture) {
        invalidate(stream->capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
        return invalidate(event->capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
      }
      stream->capture = event->capture;
      return CUDA_SUCCESS;
    }
  }
  enqueue(stream, [mark] { wait_for(mark); });
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  CUcontext context = nullptr;
  if (const CUresult result = enter_current(context, "cuEventCreate"); result != CUDA_SUCCESS)
    return result;
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
  const auto mark = std::make_shared<Mark>();
  {
    const std::lock_guard lock(streams().mutex);
    event->mark = mark;
    event->capture = stream->capture;
  }
  enqueue(stream, [mark] { reach(mark); });
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
  std::unique_lock lock(streams().mutex);
  const std::shared_ptr<Mark> mark = event->mark;
  return wait_until(lock, event->context, [&] { return mark == nullptr || mark->reached; });
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
  capture->ended = true;
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
