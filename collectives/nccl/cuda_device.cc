#include "collectives/nccl/cuda_device.h"

namespace hvd {

CudaDevice::CudaDevice(const CudaDriver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {
  const std::string name = "GPU " + std::to_string(ordinal);
  driver_.check(driver_.cuDeviceGet(&device_, ordinal), "there is no " + name + " here");
  driver_.check(driver_.cuDevicePrimaryCtxRetain(&context_, device_),
                name + " cannot be used by this process");
  try {
    const Current current(*this);
    int lowest = 0, highest = 0;
    driver_.check(driver_.cuCtxGetStreamPriorityRange(&lowest, &highest),
                  name + " does not tell its priorities");
    driver_.check(driver_.cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, highest),
                  "no stream can be had on " + name);
    kernels_.emplace(driver_);
  } catch (const Error&) {
    driver_.cuDevicePrimaryCtxRelease(device_);
    throw;
  }
}

CudaDevice::~CudaDevice() {
  if (driver_.cuCtxPushCurrent(context_) == CUDA_SUCCESS) {
    {
      MutexLock lock(mutex_);
      for (const CUevent event : spare_) driver_.cuEventDestroy(event);
    }
    driver_.cuStreamDestroy(stream_);
    kernels_.reset();
    driver_.cuCtxPopCurrent(&context_);
  }
  driver_.cuDevicePrimaryCtxRelease(device_);
}

std::string CudaDevice::name() const {
  char text[256] = "";
  driver_.check(driver_.cuDeviceGetName(text, sizeof text, device_),
                "a GPU does not tell its name");
  return text;
}

CudaDevice::Current::Current(const CudaDevice& device) : driver_(device.driver_) {
  driver_.check(driver_.cuCtxPushCurrent(device.context_),
                "GPU " + std::to_string(device.ordinal_) + " cannot be used by this thread");
  driver_.cuThreadExchangeStreamCaptureMode(&mode_);
}

CudaDevice::Current::~Current() {
  driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  CUcontext before = nullptr;
  driver_.cuCtxPopCurrent(&before);
}

CudaDevice::Event CudaDevice::take_event() {
  {
    MutexLock lock(mutex_);
    if (!spare_.empty()) {
      const CUevent event = spare_.back();
      spare_.pop_back();
      return {event, {this}};
    }
  }
  const Current current(*this);
  CUevent event = nullptr;
  driver_.check(driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "no event can be had");
  return {event, {this}};
}

bool CudaDevice::is_busy() const noexcept {
  if (driver_.cuCtxPushCurrent(context_) != CUDA_SUCCESS) return false;
  const CUresult result = driver_.cuStreamQuery(stream_);
  CUcontext before = nullptr;
  driver_.cuCtxPopCurrent(&before);
  return result == CUDA_ERROR_NOT_READY;
}

// A forked child has no device, and finds the mutex as it was.
void CudaDevice::give_back(CUevent event) {
  if (process_.in_child()) return;
  MutexLock lock(mutex_);
  spare_.push_back(event);
}

void CudaDevice::record(CUevent event, CUstream stream) const {
  const Current current(*this);
  driver_.check(driver_.cuEventRecord(event, stream), "an event cannot be recorded");
}

void CudaDevice::wait(CUstream stream, CUevent event) const {
  const Current current(*this);
  driver_.check(driver_.cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_DEFAULT),
                "a stream cannot wait for an event");
}

void CudaDevice::copy(void* to, const void* from, size_t bytes) const {
  const Current current(*this);
  driver_.check(driver_.cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to),
                                      reinterpret_cast<CUdeviceptr>(from), bytes, stream_),
                "device memory cannot be copied");
}

void CudaDevice::check_not_captured(CUstream stream) const {
  const Current current(*this);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  driver_.check(driver_.cuStreamIsCapturing(stream, &status), "a stream cannot be used");
  if (status != CU_STREAM_CAPTURE_STATUS_NONE)
    throw Error(ErrorCode::kUnsupported,
                "this stream is being captured into a CUDA graph, in which collectives cannot be; "
                "call them before or after the capture");
}

bool CudaDevice::is_done(CUevent event) const {
  const Current current(*this);
  const CUresult result = driver_.cuEventQuery(event);
  if (result == CUDA_ERROR_NOT_READY) return false;
  driver_.check(result, "the work on GPU " + std::to_string(ordinal_) + " has failed");
  return true;
}

}  // namespace hvd
