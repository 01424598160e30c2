// That the stand-in of the CUDA driver does work later and in its order, and keeps its memory
// apart.
#include <algorithm>
#include <atomic>
#include <thread>

#include "tests/collectives/nccl/standin_ranks.h"
#include "tests/support/catch.h"

namespace hvd {
namespace {

// Kernels: one that is held until it is let go, one that writes, up to beyond the end.
void hold(const unsigned*, const unsigned*, void**) {}
void let_go() { hvd_standin_set("held_kernel", nullptr); }
void fill(const unsigned grid[3], const unsigned block[3], void** arguments) {
  auto* values =
      static_cast<unsigned char*>(hvd_standin_memory(*static_cast<void**>(arguments[0])));
  std::fill_n(values, grid[0] * block[0], *static_cast<unsigned char*>(arguments[1]));
}

CUfunction kernel(const char* name) {
  const size_t sizes[] = {sizeof(void*), 1};
  hvd_standin_kernel("hold", 0, sizes, hold);
  hvd_standin_kernel("fill", 2, sizes, fill);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  expect(cuModuleLoadData(&module, "image"), "cuModuleLoadData");
  expect(cuModuleGetFunction(&function, module, name), "cuModuleGetFunction");
  return function;
}

void launch_hold(CUstream stream) {
  hvd_standin_set("held_kernel", "hold");
  expect(cuLaunchKernel(kernel("hold"), 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr), "hold");
}

void launch_fill(CUdeviceptr to, unsigned char value, unsigned count, CUstream stream) {
  void* arguments[] = {&to, &value};
  expect(cuLaunchKernel(kernel("fill"), count, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr),
         "fill");
}

using Bytes = std::vector<unsigned char>;

}  // namespace

TEST_CASE("standin cuda: work reads what is there when it is run") {
  const Settings settings;
  const Device device(0);
  const DeviceArray<unsigned char> memory(4);
  Bytes source = {1, 2, 3, 4};
  launch_hold(device.stream());
  expect(cuMemcpyAsync(memory.address(), reinterpret_cast<CUdeviceptr>(source.data()), 4,
                       device.stream()),
         "cuMemcpyAsync");
  CHECK(cuStreamQuery(device.stream()) == CUDA_ERROR_NOT_READY);
  source = {5, 6, 7, 8};
  let_go();
  CHECK(memory.read(device.stream()) == Bytes{5, 6, 7, 8});
  CHECK(hvd_standin_count("copies_in", 0) == 1);
  CHECK(hvd_standin_count("bytes_in", 0) == 4);
  CHECK(hvd_standin_count("bytes_out", 0) == 4);
  CHECK(hvd_standin_count("host_waits", -1) == 0);
}

TEST_CASE("standin cuda: streams wait for each other by events alone") {
  const Settings settings{{"delay_us", "0"}};
  const Device device(0), other(0);
  const DeviceArray<unsigned char> memory(Bytes{1, 1}, device.stream());
  CUevent event = nullptr;
  expect(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  CHECK(cuEventQuery(event) == CUDA_SUCCESS);
  launch_hold(device.stream());
  CHECK(memory.read(other.stream()) == Bytes{1, 1});  // does not wait
  expect(cuMemsetD8Async(memory.address(), 9, 2, device.stream()), "cuMemsetD8Async");
  expect(cuEventRecord(event, device.stream()), "cuEventRecord");
  expect(cuStreamWaitEvent(other.stream(), event, 0), "cuStreamWaitEvent");
  // What waits goes on with the record it saw.
  expect(cuEventRecord(event, other.stream()), "cuEventRecord");
  until_quiet();
  CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  let_go();
  CHECK(memory.read(other.stream()) == Bytes{9, 9});
  CHECK(cuEventQuery(event) == CUDA_SUCCESS);
  CHECK(cuEventSynchronize(event) == CUDA_SUCCESS);
  CHECK(hvd_standin_count("host_waits", 0) == 1);
  expect(cuEventDestroy(event), "cuEventDestroy");
}

TEST_CASE("standin cuda: the time between two events, once both have passed") {
  const Settings settings;
  const Device device(0);
  CUevent begin = nullptr, end = nullptr, untimed = nullptr;
  float ms = -1;
  expect(cuEventCreate(&begin, CU_EVENT_DEFAULT), "cuEventCreate");
  expect(cuEventCreate(&end, CU_EVENT_DEFAULT), "cuEventCreate");
  expect(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  expect(cuEventRecord(begin, device.stream()), "cuEventRecord");
  expect(cuEventRecord(untimed, device.stream()), "cuEventRecord");
  CHECK(cuEventElapsedTime(&ms, begin, end) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuEventElapsedTime(&ms, begin, untimed) == CUDA_ERROR_INVALID_HANDLE);
  launch_hold(device.stream());
  expect(cuEventRecord(end, device.stream()), "cuEventRecord");
  CHECK(cuEventElapsedTime(&ms, begin, end) == CUDA_ERROR_NOT_READY);
  let_go();
  device.drain();
  CHECK(cuEventElapsedTime(&ms, begin, end) == CUDA_SUCCESS);
  CHECK(ms > 0);
}

TEST_CASE("standin cuda: streams have a priority within the range, and flags") {
  const Settings settings;
  const Device device(0);
  int least = 1, greatest = 1, priority = 1;
  unsigned flags = 0;
  expect(cuCtxGetStreamPriorityRange(&least, &greatest), "cuCtxGetStreamPriorityRange");
  CUstream stream = nullptr;
  expect(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, greatest - 1), "create");
  expect(cuStreamGetPriority(stream, &priority), "cuStreamGetPriority");
  CHECK((least == 0 && greatest == -5 && priority == greatest));
  expect(cuStreamGetFlags(stream, &flags), "cuStreamGetFlags");
  CHECK(flags == CU_STREAM_NON_BLOCKING);
  CHECK(hvd_standin_count("streams of flags 1 and priority -5", 0) == 1);
  expect(cuStreamDestroy(stream), "cuStreamDestroy");
  CHECK(cuStreamCreateWithPriority(&stream, 2, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("standin cuda: the default stream and blocking ones wait for each other") {
  const bool default_first = GENERATE(true, false);
  const Settings settings{{"delay_us", "0"}};
  const Device device(0);
  CUstream blocking = nullptr;
  expect(cuStreamCreateWithPriority(&blocking, CU_STREAM_DEFAULT, 0), "create");
  const DeviceArray<unsigned char> memory(Bytes{1}, device.stream()), other(1);
  launch_hold(default_first ? nullptr : blocking);
  CHECK(memory.read(device.stream()) == Bytes{1});  // which waits for neither
  expect(cuMemsetD8Async(memory.address(), 2, 1, default_first ? nullptr : blocking), "first");
  Bytes seen(1);
  expect(cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(seen.data()), memory.address(), 1,
                       default_first ? blocking : CU_STREAM_LEGACY),
         "second");
  until_quiet();
  CHECK(seen == Bytes{0});
  let_go();
  expect(cuCtxSynchronize(), "cuCtxSynchronize");
  CHECK(seen == Bytes{2});
  expect(cuStreamDestroy(blocking), "cuStreamDestroy");
}

TEST_CASE("standin cuda: pinned memory is copied as the host's") {
  const Settings settings;
  const Device device(0);
  void* pinned = nullptr;
  expect(cuMemHostAlloc(&pinned, 3, 0), "cuMemHostAlloc");
  const DeviceArray<unsigned char> memory(Bytes{1, 2, 3}, device.stream());
  expect(cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(pinned), memory.address(), 3, device.stream()),
         "cuMemcpyAsync");
  device.drain();
  CHECK(static_cast<unsigned char*>(pinned)[2] == 3);
  expect(cuMemFreeHost(pinned), "cuMemFreeHost");
}

TEST_CASE("standin cuda: an event is recorded in its own device's streams") {
  const Settings settings;
  const Device other(1);
  CUevent event = nullptr;
  expect(cuEventCreate(&event, 0), "cuEventCreate");
  const Device device(0);
  CHECK(cuEventRecord(event, device.stream()) == CUDA_ERROR_INVALID_HANDLE);
  expect(cuEventRecord(event, other.stream()), "cuEventRecord");
  CHECK(cuStreamWaitEvent(device.stream(), event, 0) == CUDA_SUCCESS);
  device.drain();
}

TEST_CASE("standin cuda: nothing without a current context") {
  const Settings settings;
  expect(cuInit(0), "cuInit");
  expect(cuCtxSetCurrent(nullptr), "cuCtxSetCurrent");
  CUdeviceptr pointer = 0;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  size_t available = 0, total = 0;
  CHECK(cuMemAlloc(&pointer, 1) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuStreamCreateWithPriority(&stream, 0, 0) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuEventCreate(&event, 0) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuMemGetInfo(&available, &total) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuStreamQuery(nullptr) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuMemcpyAsync(pointer, pointer, 1, nullptr) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("standin cuda: a context that was released is none") {
  const Settings settings;
  {
    const Device device(3);
  }
  CUdeviceptr pointer = 0;
  CHECK(cuMemAlloc(&pointer, 1) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("standin cuda: a context that is released for good loses all that was made in it") {
  const Settings settings{kNoted};
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUdeviceptr memory = 0;
  CUfunction function = nullptr;
  {
    const Device device(4);
    expect(cuStreamCreateWithPriority(&stream, 0, 0), "cuStreamCreateWithPriority");
    expect(cuEventCreate(&event, 0), "cuEventCreate");
    expect(cuMemAlloc(&memory, 1), "cuMemAlloc");
    function = kernel("hold");
    const Device more(4);
  }
  CHECK(hvd_standin_used(4) == 1);  // it was never freed
  const Device anew(4);
  size_t available = 0, total = 0;
  expect(cuMemGetInfo(&available, &total), "cuMemGetInfo");
  CHECK(available == total);
  CHECK(cuMemsetD8Async(memory, 0, 1, anew.stream()) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, anew.stream(), nullptr, nullptr) ==
        CUDA_ERROR_INVALID_HANDLE);
  CHECK(hvd_standin_violations() == 0);
  CHECK(cuStreamQuery(stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuEventQuery(event) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuMemFree(memory) == CUDA_ERROR_INVALID_VALUE);
  CHECK(hvd_standin_violations() == 3);
}

TEST_CASE("standin cuda: no call goes well on a device that is lost, until it is back") {
  const Settings settings{{"delay_us", "0"}};
  const Device other(1), device(0);
  const DeviceArray<unsigned char> memory(Bytes{1}, device.stream());
  const CUfunction function = kernel("hold");
  CUevent event = nullptr, made = nullptr;
  CUdeviceptr pointer = 0;
  CUstream stream = nullptr;
  size_t bytes = 0;
  unsigned kind = 0;
  expect(cuEventCreate(&event, 0), "cuEventCreate");
  expect(cuEventRecord(event, device.stream()), "cuEventRecord");
  launch_hold(device.stream());
  expect(cuMemsetD8Async(memory.address(), 2, 1, device.stream()), "cuMemsetD8Async");
  hvd_standin_set("lost_device", "0");
  let_go();
  for (const CUresult result :
       {cuEventRecord(event, device.stream()), cuEventQuery(event), cuEventSynchronize(event),
        cuEventCreate(&made, 0), cuEventDestroy(event), cuStreamQuery(device.stream()),
        cuStreamSynchronize(device.stream()), cuStreamWaitEvent(device.stream(), event, 0),
        cuStreamCreateWithPriority(&stream, 0, 0), cuStreamDestroy(device.stream()),
        cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, device.stream(), nullptr, nullptr),
        cuMemcpyAsync(memory.address(), memory.address(), 1, device.stream()),
        cuMemsetD8Async(memory.address(), 3, 1, device.stream()), cuMemAlloc(&pointer, 1),
        cuMemFree(memory.address()), cuMemGetInfo(&bytes, &bytes), cuCtxSynchronize(),
        cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory.address())})
    CHECK(result == CUDA_ERROR_LAUNCH_FAILED);
  CHECK(cuStreamQuery(other.stream()) == CUDA_SUCCESS);
  until_quiet();
  CHECK(*static_cast<unsigned char*>(hvd_standin_memory(memory.data())) == 1);
  hvd_standin_set("lost_device", nullptr);
  CHECK(memory.read(device.stream()) == Bytes{2});
}

TEST_CASE("standin cuda: a device is lost by the call that was told, under whoever waits for it") {
  const bool named = GENERATE(true, false);
  const Device device(0);
  launch_hold(device.stream());
  const Settings settings{{"lost_device", named ? "0:cuStreamQuery:2" : "0:3"}};
  std::atomic<int> seen = -1;
  CUcontext context = nullptr;
  expect(cuCtxGetCurrent(&context), "cuCtxGetCurrent");
  std::jthread waiter([&] {
    cuCtxSetCurrent(context);
    seen = cuCtxSynchronize();
  });
  until("it waits", [] { return hvd_standin_count("drains", 0) == 1; });
  CHECK(cuStreamQuery(device.stream()) == CUDA_ERROR_NOT_READY);
  CHECK(cuStreamQuery(device.stream()) == CUDA_ERROR_LAUNCH_FAILED);
  waiter.join();
  CHECK(seen == CUDA_ERROR_LAUNCH_FAILED);
  let_go();
}

TEST_CASE("standin cuda: a kernel that fails is told by all later calls of its context") {
  const Settings settings{{"kernel_fails", "fill"}};
  const Device other(1), device(0);
  const DeviceArray<unsigned char> memory(Bytes{1}, device.stream());
  launch_fill(memory.address(), 2, 1, device.stream());
  until("it has failed",
        [&] { return cuStreamQuery(device.stream()) == CUDA_ERROR_ILLEGAL_ADDRESS; });
  CHECK(cuMemsetD8Async(memory.address(), 3, 1, device.stream()) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuStreamQuery(other.stream()) == CUDA_SUCCESS);
  hvd_standin_set("kernel_fails", nullptr);
  CHECK(memory.read(device.stream()) == Bytes{1});
}

TEST_CASE("standin cuda: memory has an end, and knows whose it is") {
  const Settings settings{{"device_bytes", "1000"}};
  const Device device(2);
  CUdeviceptr first = 0, second = 0;
  CHECK(cuMemAlloc(&first, 1001) == CUDA_ERROR_OUT_OF_MEMORY);
  expect(cuMemAlloc(&first, 600), "cuMemAlloc");
  CHECK(cuMemAlloc(&second, 401) == CUDA_ERROR_OUT_OF_MEMORY);
  size_t available = 0, total = 0;
  expect(cuMemGetInfo(&available, &total), "cuMemGetInfo");
  CHECK((available == 400 && total == 1000));
  unsigned kind = 0;
  int ordinal = -1, on_host = 0;
  CHECK(cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, first + 599) ==
        CUDA_SUCCESS);
  CHECK(kind == CU_MEMORYTYPE_DEVICE);
  CHECK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, first) ==
        CUDA_SUCCESS);
  CHECK(ordinal == 2);
  CHECK(cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                              reinterpret_cast<CUdeviceptr>(&on_host)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemsetD8Async(first + 1, 0, 600, device.stream()) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyAsync(first + 1, reinterpret_cast<CUdeviceptr>(&kind), 600, device.stream()) ==
        CUDA_ERROR_INVALID_VALUE);
  expect(cuMemFree(first), "cuMemFree");
  CHECK(hvd_standin_used(2) == 0);
}

TEST_CASE("standin cuda: memory is freed once, and not written behind its end") {
  const Settings settings{kNoted};
  const Device device(0);
  CUdeviceptr pointer = 0;
  expect(cuMemAlloc(&pointer, 10), "cuMemAlloc");
  launch_fill(pointer, 7, 11, device.stream());
  expect(cuMemFree(pointer), "cuMemFree");  // waits for the kernel
  CHECK(cuMemFree(pointer) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(hvd_standin_violations() == 2);
  CHECK(std::string(hvd_standin_violation(0)) ==
        "device memory was written behind the end of an allocation of 10 bytes");
  CHECK(std::string(hvd_standin_violation(1)) ==
        "cuMemFree of what is no device memory, or was freed before");
  CHECK(hvd_standin_count("kernels", 0) == 1);
  CHECK(hvd_standin_count("host_waits", 0) == 1);
}

TEST_CASE("standin cuda: streams and events that are gone are not used") {
  const Settings settings{kNoted};
  CUstream stream = nullptr;
  CUevent event = nullptr;
  const Device device(0);
  expect(cuStreamCreateWithPriority(&stream, 0, 0), "cuStreamCreateWithPriority");
  expect(cuEventCreate(&event, 0), "cuEventCreate");
  expect(cuStreamDestroy(stream), "cuStreamDestroy");
  expect(cuEventDestroy(event), "cuEventDestroy");
  CHECK(cuEventRecord(event, device.stream()) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuStreamQuery(stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(hvd_standin_violations() == 2);
}

TEST_CASE("standin cuda: kernels are those that were given, with grids and blocks that fit") {
  const Settings settings{{"module_result", "209"}};
  const Device device(0);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CHECK(cuModuleLoadData(&module, "image") == CUDA_ERROR_NO_BINARY_FOR_GPU);
  hvd_standin_set("module_result", nullptr);
  expect(cuModuleLoadData(&module, "image"), "cuModuleLoadData");
  CHECK(cuModuleGetFunction(&function, module, "unknown") == CUDA_ERROR_NOT_FOUND);
  CHECK(cuModuleGetFunction(&function, module, "hvd_scale_int8") == CUDA_ERROR_NOT_FOUND);
  const unsigned misfits[][6] = {{1, 1, 1, 1025, 1, 1},     {1, 1, 1, 32, 64, 1},
                                 {1, 1, 1, 1, 1, 65},       {0, 1, 1, 1, 1, 1},
                                 {1u << 31, 1, 1, 1, 1, 1}, {1, 65536, 1, 1, 1, 1}};
  for (const auto& [x, y, z, bx, by, bz] : misfits)
    CHECK(cuLaunchKernel(kernel("hold"), x, y, z, bx, by, bz, 0, device.stream(), nullptr,
                         nullptr) == CUDA_ERROR_INVALID_VALUE);
  const size_t sizes[] = {4096, 1};
  char many[4096] = {};
  void* arguments[] = {many, many};
  hvd_standin_kernel("many", 2, sizes, hold);
  CHECK(cuLaunchKernel(kernel("many"), 1, 1, 1, 1, 1, 1, 0, device.stream(), arguments, nullptr) ==
        CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("standin cuda: a kernel is its module's, and that is its device's") {
  const Settings settings;
  const Device other(1), device(0);
  CUmodule module = nullptr;
  CUfunction function = kernel("hold");
  CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, other.stream(), nullptr, nullptr) ==
        CUDA_ERROR_INVALID_HANDLE);
  expect(cuModuleLoadData(&module, "image"), "cuModuleLoadData");
  expect(cuModuleGetFunction(&function, module, "hold"), "cuModuleGetFunction");
  expect(cuModuleUnload(module), "cuModuleUnload");
  CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, device.stream(), nullptr, nullptr) ==
        CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("standin cuda: what a thread may not call while another captures a graph ends that") {
  const Settings settings;
  const Device device(0);
  CUevent event = nullptr;
  expect(cuEventCreate(&event, 0), "cuEventCreate");
  const auto capture_beside = [&](CUstreamCaptureMode mode, CUresult wanted) {
    expect(cuStreamBeginCapture(device.stream(), CU_STREAM_CAPTURE_MODE_GLOBAL), "begin");
    run_ranks(1, [&](int, Device&) {
      cuThreadExchangeStreamCaptureMode(&mode);
      require(cuEventQuery(event) == wanted, "what the query tells");
    });
    CUgraph graph = nullptr;
    return cuStreamEndCapture(device.stream(), &graph);
  };
  CHECK(capture_beside(CU_STREAM_CAPTURE_MODE_GLOBAL, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) ==
        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(capture_beside(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CUDA_SUCCESS) == CUDA_SUCCESS);
  CHECK(capture_beside(CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_SUCCESS) == CUDA_SUCCESS);
}

TEST_CASE("standin cuda: a kernel is launched in a stream of the current device alone") {
  const Settings settings;
  const Device other(1);
  const CUfunction function = kernel("hold");
  const Device device(0);
  CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, other.stream(), nullptr, nullptr) ==
        CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("standin cuda: nothing crosses the boundary of a capture") {
  const Settings settings;
  const Device device(0);
  const CUstream stream = device.stream();
  CUstream others[2] = {};
  for (CUstream& each : others)
    expect(cuStreamCreateWithPriority(&each, CU_STREAM_DEFAULT, 0), "cuStreamCreateWithPriority");
  CUevent outside = nullptr, inside = nullptr, never = nullptr;
  for (CUevent* each : {&outside, &inside, &never}) expect(cuEventCreate(each, 0), "cuEventCreate");
  const auto begin = [](CUstream one) {
    expect(cuStreamBeginCapture(one, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
  };
  const auto end = [](CUstream one) {
    CUgraph graph = nullptr;
    return cuStreamEndCapture(one, &graph);
  };
  expect(cuEventRecord(outside, others[0]), "cuEventRecord");
  begin(stream);
  CHECK(cuStreamWaitEvent(stream, never, 0) == CUDA_SUCCESS);
  CHECK(cuStreamWaitEvent(stream, outside, 0) == CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  CHECK(cuEventRecord(inside, stream) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(end(stream) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

  for (const CUstream each : {stream, others[0]}) begin(each);
  expect(cuEventRecord(inside, others[0]), "cuEventRecord");
  CHECK(cuStreamWaitEvent(stream, inside, 0) == CUDA_ERROR_STREAM_CAPTURE_MERGE);
  for (const CUstream each : {stream, others[0]})
    CHECK(end(each) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(cuStreamWaitEvent(stream, inside, 0) == CUDA_ERROR_CAPTURED_EVENT);

  begin(stream);
  CHECK(cuEventRecord(outside, nullptr) == CUDA_SUCCESS);  // which waits for none of its kind
  begin(others[1]);
  CHECK(cuEventRecord(outside, nullptr) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CHECK(end(others[1]) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(end(stream) == CUDA_SUCCESS);
}

TEST_CASE(
    "standin cuda: who waits for a captured event is captured, and what it does is not done") {
  const Settings settings;
  const Device device(0);
  const CUstream stream = device.stream();
  CUstream other = nullptr;
  CUevent event = nullptr;
  expect(cuStreamCreateWithPriority(&other, 0, 0), "cuStreamCreateWithPriority");
  expect(cuEventCreate(&event, 0), "cuEventCreate");
  expect(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
  expect(cuEventRecord(event, stream), "cuEventRecord");
  CHECK(cuEventQuery(event) == CUDA_ERROR_CAPTURED_EVENT);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  expect(cuStreamIsCapturing(other, &status), "cuStreamIsCapturing");
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
  expect(cuStreamWaitEvent(other, event, 0), "cuStreamWaitEvent");
  expect(cuStreamIsCapturing(other, &status), "cuStreamIsCapturing");
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  expect(cuStreamIsCapturing(other, &status), "cuStreamIsCapturing");
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
  expect(cuStreamDestroy(other), "cuStreamDestroy");
}

}  // namespace hvd
