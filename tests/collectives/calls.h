// Calls of every kind, for the communicators between hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
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

}  // namespace hvd
