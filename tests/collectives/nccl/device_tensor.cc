#include "tests/collectives/nccl/device_tensor.h"

#include <sched.h>

namespace hvd {

ProgramStream::ProgramStream(int rank) : device_(standin_device(rank)) {
  const CudaDevice::Current current(device_);
  device_.driver().check(
      device_.driver().cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0),
      "the test's stream");
}

ProgramStream::~ProgramStream() {
  try {
    drain();
    const CudaDevice::Current current(device_);
    device_.driver().cuStreamDestroy(stream_);
  } catch (const Error&) {
    // the test has failed elsewhere
  }
}

void ProgramStream::write(void* to, std::vector<float> values) {
  written_.push_back(std::make_unique<std::vector<float>>(std::move(values)));
  const std::vector<float>& from = *written_.back();
  const CudaDevice::Current current(device_);
  device_.driver().check(device_.driver().cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to),
                                                        reinterpret_cast<CUdeviceptr>(from.data()),
                                                        from.size() * sizeof(float), stream_),
                         "the test's copy");
}

void ProgramStream::drain() {
  const CudaDevice::Event event = device_.take_event();
  device_.record(event.get(), stream_);
  while (!device_.is_done(event.get())) sched_yield();
  written_.clear();
}

std::vector<float> ProgramStream::read(const void* from, size_t count) {
  std::vector<float> values(count);
  {
    const CudaDevice::Current current(device_);
    device_.driver().check(device_.driver().cuMemcpyAsync(
                               reinterpret_cast<CUdeviceptr>(values.data()),
                               reinterpret_cast<CUdeviceptr>(from), count * sizeof(float), stream_),
                           "the test's copy");
  }
  drain();
  return values;
}

DeviceTensor::DeviceTensor(int rank, ProgramStream& stream, size_t count, float value)
    : stream_(stream),
      backend_(standin_backend(rank)),
      count_(count),
      memory_(backend_.allocate(count * sizeof(float))) {
  stream_.write(data(), std::vector<float>(count, value));
}

std::shared_ptr<Work> DeviceTensor::sum_async(Engine& engine, const std::string& name) {
  return allreduce_async(engine, name, {.op = ReduceOp::kSum});
}

std::shared_ptr<Work> DeviceTensor::allreduce_async(Engine& engine, const std::string& name,
                                                    const Reduction& reduction) {
  events_ = std::make_shared<DeviceEvents>(backend_);
  events_->begin_behind(stream_.get());
  auto submission = std::make_unique<Submission>();
  submission->name = name;
  submission->keep_alive =
      std::make_shared<std::pair<std::shared_ptr<DeviceEvents>, std::shared_ptr<std::byte>>>(
          events_, memory_);
  submission->operation.kind = OperationKind::kAllreduce;
  submission->operation.result = {data(), count_, DataType::kFloat32};
  submission->operation.reduction = reduction;
  events_->give_to(submission->operation);
  return engine.submit(std::move(submission));
}

std::vector<float> DeviceTensor::values() {
  if (events_) events_->join(stream_.get());
  return stream_.read(data(), count_);
}

}  // namespace hvd
