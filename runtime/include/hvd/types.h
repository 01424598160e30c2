// The vocabulary of every collective: element types and reductions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hvd/error.h"

namespace hvd {

enum class DataType : uint8_t {
  kUint8,
  kInt8,
  kInt32,
  kInt64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
  kBool
};
inline constexpr int kDataTypes = 9;

enum class ReduceOp : uint8_t {
  kAverage,
  kSum,
  kAdasum,
  kMin,
  kMax,
  kProduct
};  // Horovod's numbers

constexpr size_t size_of(DataType type) {
  constexpr size_t kSizes[kDataTypes] = {1, 1, 4, 8, 2, 2, 4, 8, 1};
  return kSizes[static_cast<size_t>(type)];
}

HVD_API const char* name_of(DataType type);  // "float32"
HVD_API const char* name_of(ReduceOp op);    // "Average"

}  // namespace hvd
