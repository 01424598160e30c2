// Calls of every kind, for the communicators between hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/ranks.h"

namespace hvd {

// A call of one kind and length, with memory to look at afterwards.
struct Call {
  Operation operation;
  std::vector<float> data, before, gathered;
  bool allocated = false;
};

struct Shape {
  const char* text;  // as it is described
  OperationKind kind;
  size_t count;
};
// Every way through an exchange, and what flows after it.
inline constexpr Shape kShapes[] = {
    {"allreduce float32 [3] Sum", OperationKind::kAllreduce, 3},
    {"allreduce float32 [32768] Sum", OperationKind::kAllreduce, 32'768},
    {"allreduce float32 [600000] Sum", OperationKind::kAllreduce, 600'000},
    {"broadcast float32 [7] from rank 0", OperationKind::kBroadcast, 7},
    {"broadcast float32 [50000] from rank 0", OperationKind::kBroadcast, 50'000},
    {"allgather float32 [20000]", OperationKind::kAllgather, 20'000},
    {"barrier", OperationKind::kBarrier, 0},
    {"arena_buffer of 8192 bytes", OperationKind::kSegment, 0},
};

inline std::unique_ptr<Call> make_call(Rank& rank, const Shape& shape) {
  auto call = std::make_unique<Call>();
  for (size_t i = 0; i < shape.count; ++i)
    call->data.push_back(static_cast<float>(i % 97 + static_cast<size_t>(rank.rank)));
  call->before = call->data;
  Operation& operation = call->operation;
  operation.kind = shape.kind;
  operation.result = {call->data.data(), shape.count, DataType::kFloat32};
  operation.input = {call->data.data(), shape.count, DataType::kFloat32};
  operation.reduction = {.op = ReduceOp::kSum};
  operation.segment = rank.next_segment;
  operation.segment_bytes = 8192;
  operation.populate_bytes = 4096;
  if (shape.kind == OperationKind::kSegment) ++rank.next_segment;
  operation.allocate = [made = call.get()](std::span<const uint64_t> counts) -> void* {
    made->allocated = true;
    uint64_t sum = 0;
    for (uint64_t count : counts) sum += count;
    made->gathered.resize(sum);
    return made->gathered.data();
  };
  return call;
}

// Throws unless what was called with such data came to what it should on this rank.
inline void verify(const Rank& rank, const Shape& shape, const Call& call) {
  const auto size = static_cast<size_t>(rank.size);
  const auto value = [](size_t i, size_t k) { return static_cast<float>(i % 97 + k); };
  for (size_t i = 0; i < shape.count; ++i) {
    bool right = true;
    if (shape.kind == OperationKind::kAllreduce)
      right = call.data[i] == static_cast<float>(size * (i % 97) + size * (size - 1) / 2);
    if (shape.kind == OperationKind::kBroadcast) right = call.data[i] == value(i, 0);
    for (size_t k = 0; shape.kind == OperationKind::kAllgather && k < size; ++k)
      right &= call.gathered[k * shape.count + i] == value(i, k);
    if (!right) throw std::runtime_error(std::string(shape.text) + ": a wrong result");
  }
}

// Why the epoch of this rank broke.
inline std::string reason_of(Rank& rank) {
  ControlBlock& block = rank.peers->block();
  const uint32_t reason = block.reason;
  const bool elsewhere = (reason & 255) == static_cast<uint32_t>(TroubleReason::kElsewhere);
  return elsewhere ? block.elsewhere : block.rank(static_cast<int>(reason >> 8)).reason;
}

}  // namespace hvd
