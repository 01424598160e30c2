// The guard, by which c10 and autograd reach streams and events; and what a device needs beside it.
#include "tests/runtime/torch/device/streams.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "tests/collectives/nccl/device_ranks.h"
#include "tests/collectives/nccl/standin.h"
#include "tests/collectives/nccl/standin/cuda_memory.h"
#include "tests/runtime/torch/device/memory.h"

namespace hvd {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr int kMostDevices = 64;

thread_local c10::DeviceIndex current_device = 0;
thread_local std::map<c10::DeviceIndex, c10::StreamId> current_streams;

struct Made {
  std::mutex mutex;
  std::map<c10::DeviceIndex, std::vector<CUstream>> streams;  // stream k + 1 is the k-th
  std::map<c10::DeviceIndex, CUfunction> kernels;
  std::array<std::atomic<long long>, kMostDevices> waits{};
};

Made& made() {
  static Made& only = *new Made;  // threads may outlive every static
  return only;
}

void check(CUresult result) { standin_driver().check(result, "LibTorch's device"); }

CudaDevice::Current use(c10::DeviceIndex ordinal) {
  return CudaDevice::Current(standin_device(ordinal));
}

c10::Stream named(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, {kType, device}, id);
}

CUstream native(const c10::Stream& stream) {
  if (stream.id() == 0) return nullptr;
  const std::lock_guard lock(made().mutex);
  return made().streams[stream.device_index()][static_cast<size_t>(stream.id()) - 1];
}

c10::DeviceIndex number_of(c10::Device device) {
  return device.has_index() ? device.index() : current_device;
}

// The one kernel there is: it runs what the host gave it.
void run_job(const unsigned*, const unsigned*, void** arguments) {
  const std::unique_ptr<std::function<void()>> job(
      *static_cast<std::function<void()>**>(arguments[0]));
  (*job)();
}

CUfunction kernel_of(c10::DeviceIndex ordinal) {
  const std::lock_guard lock(made().mutex);
  CUfunction& kernel = made().kernels[ordinal];
  if (kernel != nullptr) return kernel;
  const size_t size = sizeof(void*);
  hvd_standin_kernel("job", 1, &size, run_job);
  CUmodule module = nullptr;
  check(cuModuleLoadData(&module, "image"));
  check(cuModuleGetFunction(&kernel, module, "job"));
  return kernel;
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kType, std::exchange(current_device, device.index())};
  }
  c10::Device getDevice() const override { return {kType, current_device}; }
  void setDevice(c10::Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { setDevice(device); }
  c10::DeviceIndex deviceCount() const noexcept override {
    int count = 0;
    standin_driver().cuDeviceGetCount(&count);
    return static_cast<c10::DeviceIndex>(count);
  }

  c10::Stream getStream(c10::Device device) const override {
    return named(number_of(device), current_streams[number_of(device)]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return named(number_of(device), 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    const c10::DeviceIndex number = number_of(device);
    const auto context = use(number);
    CUstream stream = nullptr;
    check(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
    const std::lock_guard lock(made().mutex);
    auto& all = made().streams[number];
    all.push_back(stream);
    return named(number, static_cast<c10::StreamId>(all.size()));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::DeviceIndex number = stream.device_index();
    return named(number, std::exchange(current_streams[number], stream.id()));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return native(stream); }
  bool queryStream(const c10::Stream& stream) const override {
    const auto context = use(stream.device_index());
    return cuStreamQuery(native(stream)) == CUDA_SUCCESS;
  }
  void synchronizeStream(const c10::Stream& stream) const override { wait_for(stream); }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    const auto context = use(stream.device_index());
    auto native_event = static_cast<CUevent>(*event);
    if (native_event == nullptr) check(cuEventCreate(&native_event, CU_EVENT_DISABLE_TIMING));
    *event = native_event;
    check(cuEventRecord(native_event, native(stream)));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const auto context = use(stream.device_index());
    check(cuStreamWaitEvent(native(stream), static_cast<CUevent>(event), 0));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || cuEventQuery(static_cast<CUevent>(event)) == CUDA_SUCCESS;
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    if (event != nullptr) cuEventDestroy(static_cast<CUevent>(event));
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    record_use(memory, stream);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};

// From then on autograd asks for the streams of this device, as it does for CUDA's.
const bool registered = [] {
  c10::register_privateuse1_backend("standin");
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

c10::Stream current_standin_stream(c10::Device device) { return Guard().getStream(device); }
c10::Stream new_standin_stream(c10::Device device) { return Guard().getNewStream(device, 0); }

void launch(const c10::Stream& stream, std::vector<const void*> touched,
            std::function<void()> work) {
  for (const void* one : touched) hold_device_bytes(one);
  auto* job = new std::function<void()>([work = std::move(work), touched = std::move(touched)] {
    work();
    for (const void* one : touched) let_go_of_device_bytes(one);
  });
  const auto context = use(stream.device_index());
  void* arguments[] = {&job};
  check(cuLaunchKernel(kernel_of(stream.device_index()), 1, 1, 1, 1, 1, 1, 0, native(stream),
                       arguments, nullptr));
}

void copy_within(const c10::Stream& stream, void* to, const void* from, size_t bytes) {
  const auto context = use(stream.device_index());
  check(cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes,
                      native(stream)));
}

void wait_for(const c10::Stream& stream) {
  ++made().waits[static_cast<size_t>(stream.device_index())];
  const auto context = use(stream.device_index());
  check(cuStreamSynchronize(native(stream)));
}

long long own_waits(int ordinal) { return made().waits[static_cast<size_t>(ordinal)]; }

}  // namespace hvd
