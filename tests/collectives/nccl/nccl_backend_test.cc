// What calls of the backend leave of a program's thread and of the graphs that it captures.
#include "collectives/nccl/nccl_backend.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/deadline.h"
#include "tests/collectives/nccl/device_ranks.h"
#include "tests/collectives/nccl/standin_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/until.h"

namespace hvd {
namespace {

struct Call {
  const char* name;
  std::function<void(DeviceBackend&, CUstream, void* event)> make;
};

const std::vector<Call>& calls() {
  static const std::vector<Call> all{
      {"allocate", [](DeviceBackend& b, CUstream, void*) { b.allocate(1000); }},
      {"allocate without room", [](DeviceBackend& b, CUstream,
                                   void*) { CHECK_THROWS_AS(b.allocate(size_t{1} << 50), Error); }},
      {"allocate_plain", [](DeviceBackend& b, CUstream, void*) { b.allocate_plain(1000); }},
      {"take_event and give_back",
       [](DeviceBackend& b, CUstream, void*) {
         std::vector<void*> events;
         for (int k = 0; k < 3; ++k) events.push_back(b.take_event());
         for (void* one : events) b.give_back(one);
       }},
      {"record", [](DeviceBackend& b, CUstream stream, void* event) { b.record(event, stream); }},
      {"wait", [](DeviceBackend& b, CUstream stream, void* event) { b.wait(stream, event); }},
      {"cast",
       [](DeviceBackend& b, CUstream stream, void*) {
         const auto memory = b.allocate(80);
         const std::vector<Cast> casts{
             {{memory.get(), 10, DataType::kFloat32}, {memory.get() + 40, 10, DataType::kFloat32}}};
         b.cast(casts, 2, stream);
       }},
  };
  return all;
}

CUcontext current_context() {
  CUcontext context = nullptr;
  expect(cuCtxGetCurrent(&context), "cuCtxGetCurrent");
  return context;
}

CUstreamCaptureMode exchanged(CUstreamCaptureMode mode) {
  expect(cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
  return mode;
}

// As a program's, of device 0.
class ProgramStream {
 public:
  ProgramStream() {
    const CudaDevice::Current current(standin_device(0));
    expect(cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0), "a stream");
  }
  ~ProgramStream() {
    const CudaDevice::Current current(standin_device(0));
    cuStreamDestroy(stream_);
  }
  ProgramStream(const ProgramStream&) = delete;
  ProgramStream& operator=(const ProgramStream&) = delete;

  CUstream get() const { return stream_; }

 private:
  CUstream stream_ = nullptr;
};

std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code() == ErrorCode::kUnsupported ? error.what() : "another code";
  }
  return "";
}

void begin_capture(CUstream stream) {
  const CudaDevice::Current current(standin_device(0));
  expect(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
}

CUresult end_capture(CUstream stream) {
  const CudaDevice::Current current(standin_device(0));
  CUgraph graph = nullptr;
  return cuStreamEndCapture(stream, &graph);
}

}  // namespace

TEST_CASE("nccl backend: a program's thread has its device and capture mode after every call") {
  const bool has_one = GENERATE(true, false);
  CAPTURE(has_one);
  DeviceBackend& backend = standin_backend(0);
  const ProgramStream stream;
  CUcontext own = nullptr;
  if (has_one) {
    const CudaDevice::Current current(standin_device(1));
    own = current_context();
  }
  expect(cuCtxSetCurrent(own), "cuCtxSetCurrent");
  const CUstreamCaptureMode before = exchanged(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  void* const event = backend.take_event();
  for (const Call& call : calls()) {
    CAPTURE(call.name);
    call.make(backend, stream.get(), event);
    CHECK(current_context() == own);
    CHECK(cuCtxPopCurrent(nullptr) == CUDA_ERROR_INVALID_CONTEXT);  // nothing is left on the stack
    CHECK(exchanged(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  }
  backend.give_back(event);
  exchanged(before);
  expect(cuCtxSetCurrent(nullptr), "cuCtxSetCurrent");
}

// What is for other ranks comes before the program's own, and is behind nothing of its default
// stream but by events.
TEST_CASE("nccl backend: its stream is of the highest priority, and waits for no default stream") {
  int lowest = 0, highest = 0;
  {
    const CudaDevice::Current current(standin_device(0));
    expect(cuCtxGetStreamPriorityRange(&lowest, &highest), "cuCtxGetStreamPriorityRange");
  }
  REQUIRE(highest < lowest);
  const std::string name = "streams of flags " + std::to_string(CU_STREAM_NON_BLOCKING) +
                           " and priority " + std::to_string(highest);
  const long long before = hvd_standin_count(name.c_str(), 0);
  const auto backend = make_standin_backend(0);
  CHECK(hvd_standin_count(name.c_str(), 0) == before + 1);
}

TEST_CASE("nccl backend: a captured stream neither records nor waits, and stays as it is") {
  DeviceBackend& backend = standin_backend(0);
  const ProgramStream stream;
  void* const event = backend.take_event();
  begin_capture(stream.get());
  const std::string why =
      "this stream is being captured into a CUDA graph, in which collectives cannot be; call them "
      "before or after the capture";
  CHECK(refusal_of([&] { backend.record(event, stream.get()); }) == why);
  CHECK(refusal_of([&] { backend.wait(stream.get(), event); }) == why);
  CHECK(end_capture(stream.get()) == CUDA_SUCCESS);
  backend.record(event, stream.get());
  backend.wait(stream.get(), event);
  {
    const CudaDevice::Current current(standin_device(0));
    Device::drain(stream.get());
  }
  backend.give_back(event);
}

TEST_CASE("nccl backend: memory that is let go of during a capture is freed after it") {
  DeviceBackend& backend = standin_backend(0);
  const ProgramStream stream;
  const size_t before = settled_use(0);
  const bool plain = GENERATE(true, false);
  CAPTURE(plain);
  auto memory = plain ? backend.allocate_plain(1000) : backend.allocate(1000);
  begin_capture(stream.get());
  memory.reset();
  const Deadline later = Deadline::in(std::chrono::milliseconds(100));
  until("it had time enough", [&] { return later.passed(); });
  CHECK(hvd_standin_used(0) == before + 1000);
  end_capture(stream.get());  // which the wait for the device has ended, and the program sees
  CHECK(comes_about([&] { return hvd_standin_used(0) == before; }));
}

}  // namespace hvd
