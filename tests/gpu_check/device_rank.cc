#include "tests/gpu_check/device_rank.h"

#include <poll.h>

#include <cstdlib>
#include <utility>

namespace hvd {
namespace {

DeviceBackend& use(Context& context, int ordinal) {
  context.use_device(ordinal);
  return *context.engine().device();
}

}  // namespace

std::string cuda_library() {
  const char* path = std::getenv("HVD_CUDA_LIBRARY");
  return path == nullptr ? "" : path;
}

// libhvd comes first: what is missing is said by it.
DeviceRank::DeviceRank(int ordinal)
    : context_(context()),
      backend_(use(*context_, ordinal)),
      driver_(CudaDriver::load(cuda_library())),
      device_(driver_, ordinal) {}

void DeviceRank::copy(const void* to, const void* from, size_t bytes) {
  {
    const CudaDevice::Current current(device_);
    driver_.check(driver_.cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to),
                                        reinterpret_cast<CUdeviceptr>(from), bytes, stream()),
                  "a copy of " + std::to_string(bytes) + " bytes");
  }
  const CudaDevice::Event event = device_.take_event();
  device_.record(event.get(), stream());
  while (!device_.is_done(event.get())) poll(nullptr, 0, 1);
}

void DeviceRank::write(void* to, const void* from, size_t bytes) { copy(to, from, bytes); }

void DeviceRank::read(void* to, const void* from, size_t bytes) { copy(to, from, bytes); }

DeviceRank::Started DeviceRank::start(std::unique_ptr<Submission> submission) {
  const auto events = std::make_shared<DeviceEvents>(backend_);
  events->begin_behind(stream());
  events->give_to(submission->operation);
  submission->keep_alive =
      std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(
          events, std::move(submission->keep_alive));
  return {events, engine().submit(std::move(submission))};
}

void DeviceRank::finish(const Started& operation) {
  operation.work->wait();
  while (!operation.work->done()) poll(nullptr, 0, 1);
  operation.work->wait();  // it may have failed since it was launched
}

void DeviceRank::run(std::unique_ptr<Submission> submission) {
  const Started operation = start(std::move(submission));
  operation.work->wait();
  operation.events->join(stream());
  finish(operation);
}

std::unique_ptr<Submission> make_sum(const std::string& name,
                                     const std::shared_ptr<std::byte>& memory, size_t count) {
  auto submission = std::make_unique<Submission>();
  submission->name = name;
  submission->keep_alive = memory;
  submission->operation.kind = OperationKind::kAllreduce;
  submission->operation.result = {memory.get(), count, DataType::kFloat32};
  submission->operation.reduction.op = ReduceOp::kSum;
  return submission;
}

}  // namespace hvd
