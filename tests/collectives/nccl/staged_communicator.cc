#include "tests/collectives/nccl/staged_communicator.h"

#include <sched.h>

namespace hvd {

StagedCommunicator::StagedCommunicator(CudaDevice& device, std::unique_ptr<Communicator> control,
                                       std::unique_ptr<Communicator> inner)
    : device_(device), control_(std::move(control)), inner_(std::move(inner)) {
  const CudaDevice::Current current(device_);
  device_.driver().check(
      device_.driver().cuStreamCreateWithPriority(&program_, CU_STREAM_NON_BLOCKING, 0),
      "the test's stream");
}

StagedCommunicator::~StagedCommunicator() {
  const CudaDevice::Current current(device_);
  for (const auto& twin : twins_) free_memory(*twin);
  device_.driver().cuStreamDestroy(program_);
}

CUdeviceptr StagedCommunicator::allocate(size_t bytes) {
  CUdeviceptr memory = 0;
  if (bytes != 0)
    device_.driver().check(device_.driver().cuMemAlloc(&memory, bytes), "the test's memory");
  return memory;
}

CUdeviceptr StagedCommunicator::copy_in(const void* data, size_t bytes) {
  const CUdeviceptr memory = allocate(bytes);
  if (bytes != 0)
    device_.driver().check(device_.driver().cuMemcpyAsync(
                               memory, reinterpret_cast<CUdeviceptr>(data), bytes, program_),
                           "the test's copy");
  return memory;
}

void StagedCommunicator::start(Operation& operation) {
  const CudaDevice::Current current(device_);
  auto twin = std::make_unique<Twin>();
  Twin& made = *twin;
  made.original = &operation;
  Operation& inner = made.operation;
  inner.kind = operation.kind;
  inner.result = operation.result;
  inner.input = operation.input;
  inner.reduction = operation.reduction;
  inner.root = operation.root;
  inner.segment = operation.segment;
  inner.segment_bytes = operation.segment_bytes;
  inner.populate_bytes = operation.populate_bytes;
  inner.name = operation.name;
  made.ready = device_.take_event();
  made.done = device_.take_event();
  if (operation.kind == OperationKind::kAllreduce || operation.kind == OperationKind::kBroadcast) {
    made.result = copy_in(operation.result.data, operation.result.bytes());
    inner.result.data = reinterpret_cast<void*>(made.result);
  } else if (operation.kind == OperationKind::kAllgather) {
    made.input = copy_in(operation.input.data, operation.input.bytes());
    inner.input.data = reinterpret_cast<const void*>(made.input);
    inner.allocate = [this, &made](std::span<const uint64_t> counts) {
      return allocate_gathered(made, counts);
    };
  }
  device_.record(made.ready.get(), program_);
  inner.ready = made.ready.get();
  inner.done = made.done.get();
  twins_.push_back(std::move(twin));
  inner_->start(inner);
}

void* StagedCommunicator::allocate_gathered(Twin& twin, std::span<const uint64_t> counts) {
  uint64_t sum = 0;
  for (const uint64_t count : counts) sum += count;
  do twin.gathered = twin.original->allocate(counts);
  while (twin.gathered == nullptr && sum != 0);
  twin.gathered_bytes = sum * size_of(twin.original->result.type);
  twin.result = allocate(twin.gathered_bytes);
  return reinterpret_cast<void*>(twin.result);
}

// On the program's stream, behind `done`: what NCCL has not written by then is not seen.
void StagedCommunicator::bring_back(Twin& twin) {
  const bool gathers = twin.operation.kind == OperationKind::kAllgather;
  void* to = gathers ? twin.gathered : twin.original->result.data;
  const size_t bytes = gathers ? twin.gathered_bytes : twin.original->result.bytes();
  if (twin.result == 0 || bytes == 0) return;
  device_.wait(program_, twin.done.get());
  device_.driver().check(device_.driver().cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to),
                                                        twin.result, bytes, program_),
                         "the test's copy");
  const CudaDevice::Event copied = device_.take_event();
  device_.record(copied.get(), program_);
  while (!device_.is_done(copied.get())) sched_yield();
}

void StagedCommunicator::free_memory(Twin& twin) {
  if (twin.result != 0) device_.driver().cuMemFree(twin.result);
  if (twin.input != 0) device_.driver().cuMemFree(twin.input);
  twin.result = twin.input = 0;
}

bool StagedCommunicator::progress() {
  bool moved = !control_->idle() && control_->progress();
  moved |= !inner_->idle() && inner_->progress();
  while (!twins_.empty()) {
    Twin& twin = *twins_.front();
    const Outcome outcome = twin.operation.outcome.load(std::memory_order_acquire);
    if (outcome == Outcome::kPending) break;
    const CudaDevice::Current current(device_);
    if (outcome == Outcome::kComplete) bring_back(twin);
    free_memory(twin);
    Operation& original = *twin.original;
    original.error = twin.operation.error;
    original.code = twin.operation.code;
    twins_.pop_front();
    original.outcome.store(outcome, std::memory_order_release);
    moved = true;
  }
  return moved;
}

void StagedCommunicator::close() {
  control_->close();
  inner_->close();
}

void StagedCommunicator::fail_rest() {
  control_->fail_rest();
  inner_->fail_rest();
  progress();
}

}  // namespace hvd
