#include "tests/collectives/nccl/standin/nccl_reduce.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace hvd {
namespace {

// How a type is stored, and what is computed with.
template <class Value>
struct Plain {
  using Stored = Value;
  using Computed = Value;
  static Computed load(Stored value) { return value; }
  static Stored store(Computed value) { return value; }
};
struct Half {
  using Stored = __half;
  using Computed = float;
  static Computed load(Stored value) { return __half2float(value); }
  static Stored store(Computed value) { return __float2half_rn(value); }
};
struct Bfloat {
  using Stored = __nv_bfloat16;
  using Computed = float;
  static Computed load(Stored value) { return __bfloat162float(value); }
  static Stored store(Computed value) { return __float2bfloat16_rn(value); }
};

template <class Value>
Value add(Value a, Value b) {
  if constexpr (std::is_integral_v<Value>)
    return static_cast<Value>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  else
    return a + b;
}

template <class Value>
Value multiply(Value a, Value b) {
  if constexpr (std::is_integral_v<Value>)
    return static_cast<Value>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  else
    return a * b;
}

template <class Value>
Value combine(int op, Value a, Value b) {
  if (op == ncclProd) return multiply(a, b);
  if (op == ncclMax) return std::max(a, b);
  if (op == ncclMin) return std::min(a, b);
  return add(a, b);
}

template <class Type>
typename Type::Stored load_stored(const void* from) {
  typename Type::Stored value;
  std::memcpy(static_cast<void*>(&value), from, sizeof value);
  return value;
}

template <class Type>
std::vector<std::byte> reduce_as(int op, size_t count, const std::vector<Contribution>& inputs) {
  using Computed = typename Type::Computed;
  constexpr size_t kBytes = sizeof(typename Type::Stored);
  constexpr bool kIsFloat = std::is_floating_point_v<Computed>;
  const auto ranks = static_cast<Computed>(inputs.size());
  const auto value_of = [&](size_t rank, size_t k) {
    const Contribution& input = inputs[rank];
    const Computed value = Type::load(load_stored<Type>(input.values + k * kBytes));
    const auto stored = [](Computed of) { return Type::load(Type::store(of)); };
    if (op == kPreMulSum)
      return stored(multiply(value, Type::load(load_stored<Type>(&input.scalar))));
    if constexpr (kIsFloat)
      if (op == ncclAvg) return stored(value * stored(Computed{1} / ranks));
    return value;
  };
  std::vector<std::byte> results(count * kBytes);
  for (size_t k = 0; k < count; ++k) {
    Computed sum = value_of(inputs.size() - 1, k);
    for (size_t rank = inputs.size() - 1; rank-- > 0;) sum = combine(op, sum, value_of(rank, k));
    if (op == ncclAvg && !kIsFloat) sum = static_cast<Computed>(sum / ranks);
    const typename Type::Stored result = Type::store(sum);
    std::memcpy(results.data() + k * kBytes, static_cast<const void*>(&result), kBytes);
  }
  return results;
}

}  // namespace

size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 0;
  }
}

std::vector<std::byte> reduce(ncclDataType_t type, int op, size_t count,
                              const std::vector<Contribution>& inputs) {
  switch (type) {
    case ncclInt8:
      return reduce_as<Plain<int8_t>>(op, count, inputs);
    case ncclUint8:
      return reduce_as<Plain<uint8_t>>(op, count, inputs);
    case ncclInt32:
      return reduce_as<Plain<int32_t>>(op, count, inputs);
    case ncclUint32:
      return reduce_as<Plain<uint32_t>>(op, count, inputs);
    case ncclInt64:
      return reduce_as<Plain<int64_t>>(op, count, inputs);
    case ncclUint64:
      return reduce_as<Plain<uint64_t>>(op, count, inputs);
    case ncclFloat16:
      return reduce_as<Half>(op, count, inputs);
    case ncclBfloat16:
      return reduce_as<Bfloat>(op, count, inputs);
    case ncclFloat32:
      return reduce_as<Plain<float>>(op, count, inputs);
    case ncclFloat64:
      return reduce_as<Plain<double>>(op, count, inputs);
    default:
      return {};
  }
}

}  // namespace hvd
