#include "tests/gpu_check/device_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "collectives/types.h"
#include "hvd/float16.h"
#include "hvd/hvd.h"

namespace hvd {
namespace {

// One element, a prime number of them, and more than NCCL moves at a time.
constexpr size_t kCounts[] = {1, 1031, 2'100'001};
constexpr size_t kLargeCount = 100'000;  // above: of few types, ranks that share a GPU are slow

constexpr DataType kFloats[] = {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32,
                                DataType::kFloat64};

template <class T>
void put(T value, std::byte* to) {
  std::memcpy(to, &value, sizeof value);
}

void encode(DataType type, double value, std::byte* to) {
  switch (type) {
    case DataType::kBool:
    case DataType::kUint8:
      return put(static_cast<uint8_t>(value), to);
    case DataType::kInt8:
      return put(static_cast<int8_t>(value), to);
    case DataType::kInt32:
      return put(static_cast<int32_t>(value), to);
    case DataType::kInt64:
      return put(static_cast<int64_t>(value), to);
    case DataType::kFloat16:
      return put(float16(static_cast<float>(value)), to);
    case DataType::kBfloat16:
      return put(bfloat16(static_cast<float>(value)), to);
    case DataType::kFloat32:
      return put(static_cast<float>(value), to);
    case DataType::kFloat64:
      return put(value, to);
  }
}

template <class T>
T get(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

double decode(DataType type, const std::byte* from) {
  switch (type) {
    case DataType::kBool:
    case DataType::kUint8:
      return get<uint8_t>(from);
    case DataType::kInt8:
      return get<int8_t>(from);
    case DataType::kInt32:
      return get<int32_t>(from);
    case DataType::kInt64:
      return static_cast<double>(get<int64_t>(from));
    case DataType::kFloat16:
      return static_cast<double>(static_cast<float>(get<float16>(from)));
    case DataType::kBfloat16:
      return static_cast<double>(static_cast<float>(get<bfloat16>(from)));
    case DataType::kFloat32:
      return static_cast<double>(get<float>(from));
    case DataType::kFloat64:
      break;
  }
  return get<double>(from);
}

// How far a result may be from the CPU's: factors are rounded to the type before they are used, 1/n
// for one. All else here is whole, and small enough for each type to hold every sum and product.
double tolerance(DataType type, const Reduction& reduction) {
  const bool scaled = reduction.op == ReduceOp::kAverage || reduction.prescale != 1;
  if (!scaled) return 0;
  switch (type) {
    case DataType::kFloat16:
      return std::ldexp(4, -10);
    case DataType::kBfloat16:
      return std::ldexp(4, -7);
    case DataType::kFloat32:
      return std::ldexp(4, -23);
    case DataType::kFloat64:
      return std::ldexp(4, -52);
    default:
      return 0;
  }
}

// What this rank puts in. An average's are multiples of the number of ranks, so that whole numbers
// have a whole one.
double input(DataType type, ReduceOp op, int rank, size_t place) {
  const auto number = static_cast<size_t>(rank) * 5 + place;
  if (type == DataType::kBool) return number % 3 == 2 ? 1 : 0;
  const auto small = static_cast<double>(1 + number % 3);
  return op == ReduceOp::kAverage ? small * size() : small;
}

// Integers are truncated after each factor.
double in_type(DataType type, double value) { return is_float(type) ? value : std::trunc(value); }

double wanted(DataType type, const Reduction& reduction, size_t place) {
  double all = 0;
  for (int rank = 0; rank < size(); ++rank) {
    const double one = in_type(type, reduction.prescale * input(type, reduction.op, rank, place));
    if (rank == 0)
      all = one;
    else if (reduction.op == ReduceOp::kMin)
      all = std::min(all, one);
    else if (reduction.op == ReduceOp::kMax)
      all = std::max(all, one);
    else if (reduction.op == ReduceOp::kProduct)
      all *= one;
    else
      all += one;
  }
  if (type == DataType::kBool) return all != 0 ? 1 : 0;
  if (reduction.op == ReduceOp::kAverage) all /= size();
  return in_type(type, reduction.postscale * all);
}

[[noreturn]] void tell_wrong(const std::string& what, size_t place, double seen, double right) {
  throw Error(ErrorCode::kInternal, what + ": element " + std::to_string(place) + " is " +
                                        std::to_string(seen) + ", the CPU has " +
                                        std::to_string(right));
}

class Checker {
 public:
  explicit Checker(DeviceRank& rank) : rank_(rank) {}

  void reduce(DataType type, const Reduction& reduction, size_t count) {
    const std::string what =
        std::string(name_of(reduction.op)) + " of " + std::to_string(count) + " " + name_of(type);
    const size_t each = size_of(type);
    std::vector<std::byte> bytes(count * each);
    for (size_t i = 0; i < count; ++i)
      encode(type, input(type, reduction.op, hvd::rank(), i), &bytes[i * each]);
    const std::shared_ptr<std::byte> memory = filled(bytes);
    auto submission = named(OperationKind::kAllreduce, what);
    submission->keep_alive = memory;
    submission->operation.result = {memory.get(), count, type};
    submission->operation.reduction = reduction;
    rank_.run(std::move(submission));
    rank_.read(bytes.data(), memory.get(), bytes.size());
    for (size_t i = 0; i < count; ++i) {
      const double seen = decode(type, &bytes[i * each]), right = wanted(type, reduction, i);
      if (!(std::fabs(seen - right) <= tolerance(type, reduction) * std::fabs(right)))
        tell_wrong(what, i, seen, right);
    }
  }

  void broadcast(int root, size_t count) {
    const std::string what = "broadcast of " + std::to_string(count) + " bytes";
    std::vector<std::byte> bytes(count);
    for (size_t i = 0; i < count; ++i) bytes[i] = mark(hvd::rank(), i);
    const std::shared_ptr<std::byte> memory = filled(bytes);
    auto submission = named(OperationKind::kBroadcast, what);
    submission->keep_alive = memory;
    submission->operation.result = {memory.get(), count, DataType::kUint8};
    submission->operation.root = root;
    rank_.run(std::move(submission));
    rank_.read(bytes.data(), memory.get(), count);
    for (size_t i = 0; i < count; ++i) compare(what, i, bytes[i], mark(root, i));
  }

  // Of rank k `first` + k * `more` bytes.
  void allgather(size_t first, size_t more) {
    const std::string what =
        "allgather of " + std::to_string(first) + " + " + std::to_string(more) + " rank bytes";
    std::vector<std::byte> bytes(first + more * static_cast<size_t>(hvd::rank()));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = mark(hvd::rank(), i);
    const std::shared_ptr<std::byte> mine = filled(bytes);
    const auto all = std::make_shared<std::shared_ptr<std::byte>>();
    auto submission = named(OperationKind::kAllgather, what);
    submission->keep_alive = std::make_shared<std::pair<decltype(mine), decltype(all)>>(mine, all);
    submission->operation.result.type = DataType::kUint8;
    submission->operation.input = {mine.get(), bytes.size(), DataType::kUint8};
    size_t sum = 0;
    for (int k = 0; k < size(); ++k) sum += first + more * static_cast<size_t>(k);
    submission->operation.allocate = [this, all, sum](std::span<const uint64_t>) {
      *all = rank_.allocate(std::max<size_t>(sum, 1));
      return static_cast<void*>(all->get());
    };
    rank_.run(std::move(submission));
    bytes.resize(sum);
    if (sum != 0) rank_.read(bytes.data(), all->get(), sum);
    size_t place = 0;
    for (int k = 0; k < size(); ++k)
      for (size_t i = 0; i < first + more * static_cast<size_t>(k); ++i, ++place)
        compare(what, place, bytes[place], mark(k, i));
  }

  // Any bits, but for those of a NaN.
  void cast(DataType from_type, DataType to_type, size_t count, double factor) {
    const std::string what = "cast of " + std::to_string(count) + " " + name_of(from_type) +
                             " to " + name_of(to_type) + ", times " + std::to_string(factor);
    const size_t each = size_of(from_type);
    std::vector<std::byte> bytes(count * each), seen(count * size_of(to_type));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = mark(hvd::rank(), i * i);
    const std::shared_ptr<std::byte> from = filled(bytes), to = filled(seen);
    const Cast one{{from.get(), count, from_type}, {to.get(), count, to_type}};
    rank_.backend().cast(std::span(&one, 1), factor, rank_.stream());
    rank_.read(seen.data(), to.get(), seen.size());
    for (size_t i = 0; i < count; ++i) {
      std::byte rounded[sizeof(double)];
      const double read = decode(from_type, &bytes[i * each]);
      const double product = from_type == DataType::kFloat64
                                 ? read * factor
                                 : double{static_cast<float>(read) * static_cast<float>(factor)};
      encode(to_type, product, rounded);
      const double value = decode(to_type, &seen[i * size_of(to_type)]),
                   right = decode(to_type, rounded);
      if (value != right && !(std::isnan(value) && std::isnan(right)))
        tell_wrong(what, i, value, right);
    }
  }

  int count() const { return count_; }

 private:
  static std::byte mark(int rank, size_t place) {
    return static_cast<std::byte>(static_cast<size_t>(rank) * 37 + place * 11 % 251);
  }
  static void compare(const std::string& what, size_t place, std::byte seen, std::byte right) {
    if (seen != right)
      tell_wrong(what, place, static_cast<double>(seen), static_cast<double>(right));
  }

  std::unique_ptr<Submission> named(OperationKind kind, const std::string& what) {
    auto submission = std::make_unique<Submission>();
    submission->name = what + " " + std::to_string(++count_);
    submission->operation.kind = kind;
    return submission;
  }
  std::shared_ptr<std::byte> filled(const std::vector<std::byte>& bytes) {
    std::shared_ptr<std::byte> memory = rank_.allocate(std::max<size_t>(bytes.size(), 1));
    if (!bytes.empty()) rank_.write(memory.get(), bytes.data(), bytes.size());
    return memory;
  }

  DeviceRank& rank_;
  int count_ = 0;
};

bool has_meaning(DataType type, const Reduction& reduction) {
  try {
    check_reduction(reduction, type);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

int check_values(DeviceRank& rank) {
  Checker checker(rank);
  for (const size_t count : kCounts) {
    const bool large = count > kLargeCount;
    for (int number = 0; number < kDataTypes; ++number) {
      const auto type = static_cast<DataType>(number);
      if (large && type != DataType::kFloat32 && type != DataType::kBfloat16) continue;
      for (const ReduceOp op :
           {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct})
        for (const Reduction& reduction : {Reduction{op, 1, 1}, Reduction{op, 0.5, 3}})
          if (has_meaning(type, reduction) && !(large && op != ReduceOp::kSum))
            checker.reduce(type, reduction, count);
    }
    for (int root = 0; root < size(); ++root) checker.broadcast(root, count);
    checker.allgather(count, 0);
    checker.allgather(0, count);
    for (const DataType from : kFloats)
      for (const DataType to : kFloats) {
        checker.cast(from, to, count, 1);
        checker.cast(from, to, count, 1.0 / 3);
      }
  }
  return checker.count();
}

}  // namespace hvd
