// That kernels compute what the CPU does, reductions and conversions, bit for bit, and that each
// element is theirs once.
#include <cmath>
#include <cstring>
#include <limits>

#include "collectives/nccl/kernels.h"
#include "collectives/reduce.h"
#include "tests/collectives/reference.h"
#include "tests/support/catch.h"

namespace hvd {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kFactors[] = {
    1,         0.5,        3,           -0.3,
    1.0 / 3,   0,          -0.0,        1e-12,
    1e12,      -1e30,      1e300,       5e-324,
    kInfinity, -kInfinity, 1 + 0x1p-52, std::numeric_limits<double>::quiet_NaN()};

// All of a value's bits, and, for integers, those about the limits and about ties.
ByteVector values_of(DataType type) {
  ByteVector values = random_values(type, 500, 7, Values::kStrange);
  const ByteVector plain = random_values(type, 500, 8, Values::kPlain);
  values.insert(values.end(), plain.begin(), plain.end());
  for (const int shift : {0, 7, 8, 31, 32, 52, 53, 62, 63})
    for (int64_t near = -2; near <= 2; ++near) {
      const uint64_t value = (uint64_t{1} << shift) + static_cast<uint64_t>(near);
      const auto* bytes = reinterpret_cast<const std::byte*>(&value);
      values.insert(values.end(), bytes, bytes + size_of(type));
    }
  return values;
}

template <class T>
ByteVector scaled_by_threads(ByteVector bytes, const Factors& factors) {
  const size_t count = bytes.size() / sizeof(T);
  auto* data = reinterpret_cast<T*>(bytes.data());
  for (uint32_t block = 0; block < chunks_of(count); ++block)
    for (uint32_t thread = 0; thread < kBlockThreads; ++thread)
      scale_thread<T>(data, count, factors, block, thread);
  return bytes;
}

ByteVector scaled_by_kernel(DataType type, const ByteVector& bytes, const Factors& factors) {
#define HVD_SCALE(name, T) \
  if (std::strcmp(name_of(type), #name) == 0) return scaled_by_threads<T>(bytes, factors);
  HVD_SCALE_KERNELS(HVD_SCALE)
#undef HVD_SCALE
  return {};
}

// The first of `sources` inputs, the others being 0.
ByteVector reduced(DataType type, const Reduction& reduction, const ByteVector& bytes,
                   size_t sources) {
  const ByteVector zeros(bytes.size());
  std::vector<const std::byte*> from(sources, zeros.data());
  from[0] = bytes.data();
  ByteVector result(bytes.size());
  std::byte* to[] = {result.data()};
  reduce(type, reduction, from, to, bytes.size() / size_of(type));
  return result;
}

constexpr DataType kScaled[] = {DataType::kUint8,   DataType::kInt8,    DataType::kInt32,
                                DataType::kInt64,   DataType::kFloat16, DataType::kBfloat16,
                                DataType::kFloat32, DataType::kFloat64};
// Which of them have another arithmetic on CPUs whose long double is no x87's.
constexpr bool kExtended = std::numeric_limits<long double>::digits == 64;

constexpr DataType kFloats[] = {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32,
                                DataType::kFloat64};

// The plainest way: a double, which holds every value of the others, and float between it and 16
// bits. Quiet NaN of one kind each, but for what 16 bits become as a float.
double widened(DataType type, const std::byte* from) {
  float single = 0;
  double value = 0;
  uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof bits);
  switch (type) {
    case DataType::kFloat16:
      return static_cast<double>(static_cast<float>(std::bit_cast<float16>(bits)));
    case DataType::kBfloat16:
      return static_cast<double>(static_cast<float>(std::bit_cast<bfloat16>(bits)));
    case DataType::kFloat32:
      std::memcpy(&single, from, sizeof single);
      return static_cast<double>(single);
    default:
      std::memcpy(&value, from, sizeof value);
      return value;
  }
}

void put_rounded(DataType type, double value, std::byte* to) {
  const auto put = [to](auto rounded) { std::memcpy(to, &rounded, sizeof rounded); };
  switch (type) {
    case DataType::kFloat16:
      return put(float16(static_cast<float>(value)));
    case DataType::kBfloat16:
      return put(bfloat16(static_cast<float>(value)));
    case DataType::kFloat32:
      return put(std::isnan(value) ? one_nan<float>() : static_cast<float>(value));
    default:
      return put(std::isnan(value) ? one_nan<double>() : value);
  }
}

ByteVector converted_plainly(DataType from_type, DataType to_type, const ByteVector& from) {
  if (from_type == to_type) return from;
  const size_t count = from.size() / size_of(from_type);
  ByteVector to(count * size_of(to_type));
  for (size_t k = 0; k < count; ++k) {
    const std::byte* one = &from[k * size_of(from_type)];
    std::byte* its = &to[k * size_of(to_type)];
    const double value = widened(from_type, one);
    put_rounded(to_type, value, its);
    if (!std::isnan(value) || size_of(from_type) != 2 || to_type != DataType::kFloat32) continue;
    uint16_t bits = 0;
    std::memcpy(&bits, one, sizeof bits);
    const float kept = from_type == DataType::kFloat16
                           ? static_cast<float>(std::bit_cast<float16>(bits))
                           : static_cast<float>(std::bit_cast<bfloat16>(bits));
    std::memcpy(its, &kept, sizeof kept);
  }
  return to;
}

// Besides those of values_of(): numbers in the middle between two of 16 bits, and next to it.
ByteVector floats_of(DataType type) {
  ByteVector values = values_of(type);
  const auto add = [&](double value) {
    values.resize(values.size() + size_of(type));
    put_rounded(type, value, &values[values.size() - size_of(type)]);
  };
  for (int exponent = -26; exponent <= 17; ++exponent)
    for (int half_steps = 0; half_steps < 8; ++half_steps)
      for (const double beside : {0.0, 0x1p-23, -0x1p-23, 0x1p-52, -0x1p-52})
        for (const double step : {0x1p-10, 0x1p-7}) {
          const double value = std::ldexp(1 + half_steps * step / 2 + beside, exponent);
          add(value);
          add(-value);
        }
  for (const double value : {65504.0, 65519.99, 65520.0, 3.4e38, 3.5e38, 1e300, 0x1p-149, 0x1p-150,
                             0x1.8p-149, 0x1p-1074, kInfinity, -kInfinity})
    add(value);
  return values;
}

// Memory that begins so many bytes behind where packs do, with others' bytes before and behind it.
struct Place {
  Place(size_t bytes, size_t shift) : bytes_(bytes), all_(bytes + 2 * kAround, kMark) {
    begin_ = kAround / 2 + shift;
    while (reinterpret_cast<uintptr_t>(&all_[begin_ - shift]) % 16 != 0) ++begin_;
  }
  std::byte* data() { return &all_[begin_]; }
  ByteVector values() const {
    const auto from = all_.begin() + static_cast<std::ptrdiff_t>(begin_);
    return {from, from + static_cast<std::ptrdiff_t>(bytes_)};
  }
  bool is_whole_around() const {
    for (size_t k = 0; k < all_.size(); ++k)
      if ((k < begin_ || k >= begin_ + bytes_) && all_[k] != kMark) return false;
    return true;
  }

 private:
  static constexpr size_t kAround = 128;
  static constexpr std::byte kMark{0xa5};
  size_t bytes_, begin_ = 0;
  ByteVector all_;
};

void run(const CastTable& table) {
  for (uint32_t block = 0; block < table.chunks(); ++block)
    for (uint32_t thread = 0; thread < kBlockThreads; ++thread) cast_thread(table, block, thread);
}

}  // namespace

TEST_CASE("nccl elements: converted as the CPU does it, whatever the bits") {
  for (const DataType from_type : kFloats)
    for (const DataType to_type : kFloats) {
      INFO(name_of(from_type) << " to " << name_of(to_type));
      const ByteVector values = floats_of(from_type);
      const size_t count = values.size() / size_of(from_type);
      Place from(values.size(), 0), to(count * size_of(to_type), 0);
      std::memcpy(from.data(), values.data(), values.size());
      CastTable table;
      table.add({from.data(), to.data(), count, 0, from_type, to_type});
      run(table);
      REQUIRE(to.values() == converted_plainly(from_type, to_type, values));
      CHECK(to.is_whole_around());
    }
}

TEST_CASE("nccl elements: multiplied as wide as they come, then rounded once") {
  for (const DataType from_type : kFloats)
    for (const DataType to_type : kFloats)
      for (const double factor : {1.0 / 3, 0.0, -0x1p-20, 1e5}) {
        INFO(name_of(from_type) << " to " << name_of(to_type) << " times " << factor);
        const ByteVector values = floats_of(from_type);
        const size_t count = values.size() / size_of(from_type), each = size_of(to_type);
        ByteVector from = values, to(count * each), wanted(each);
        CastTable table;
        table.factor = factor;
        // In its place, where it has room.
        std::byte* out = from_type == to_type ? from.data() : to.data();
        table.add({from.data(), out, count, 0, from_type, to_type});
        run(table);
        for (size_t k = 0; k < count; ++k) {
          const double value = widened(from_type, &values[k * size_of(from_type)]);
          const double product =
              from_type == DataType::kFloat64
                  ? value * factor
                  : double{static_cast<float>(value) * static_cast<float>(factor)};
          put_rounded(to_type, product, wanted.data());
          const double seen = widened(to_type, out + k * each);
          if (std::isnan(product))
            REQUIRE(std::isnan(seen));
          else
            REQUIRE(std::memcmp(out + k * each, wanted.data(), each) == 0);
        }
      }
}

TEST_CASE("nccl elements: casts of any number, from and to any place, touch nothing else") {
  for (const DataType from_type : kFloats)
    for (const DataType to_type : kFloats)
      for (const size_t count : {size_t{1}, size_t{7}, size_t{kBlockThreads} + 1,
                                 size_t{kChunk} - 1, 2 * size_t{kChunk} + 1001})
        for (const size_t from_shift : {0, 1, 3})
          for (const size_t to_shift : {0, 1, 2}) {
            INFO(count << " " << name_of(from_type) << " to " << name_of(to_type) << ", "
                       << from_shift << " and " << to_shift << " elements on");
            const ByteVector values = random_values(from_type, count, count, Values::kPlain);
            Place from(values.size(), from_shift * size_of(from_type));
            Place to(count * size_of(to_type), to_shift * size_of(to_type));
            std::memcpy(from.data(), values.data(), values.size());
            CastTable table;
            table.add({from.data(), to.data(), count, 0, from_type, to_type});
            run(table);
            REQUIRE(to.values() == converted_plainly(from_type, to_type, values));
            REQUIRE(to.is_whole_around());
          }
}

TEST_CASE("nccl elements: each of a full table's casts is done") {
  CastTable table;
  std::vector<ByteVector> values;
  std::vector<Place> to;
  for (size_t k = 0; k < CastTable::kMost; ++k) {
    const size_t count = k % 9 == 0 ? k * 1000 + 1 : k + 1;
    values.push_back(random_values(kFloats[k % 4], count, k, Values::kPlain));
    to.emplace_back(count * size_of(kFloats[k / 4 % 4]), 0);
  }
  for (size_t k = 0; k < CastTable::kMost; ++k) {
    const DataType from_type = kFloats[k % 4], to_type = kFloats[k / 4 % 4];
    table.add({values[k].data(), to[k].data(), values[k].size() / size_of(from_type), 0, from_type,
               to_type});
  }
  run(table);
  for (size_t k = 0; k < CastTable::kMost; ++k) {
    INFO(k);
    REQUIRE(to[k].values() == converted_plainly(kFloats[k % 4], kFloats[k / 4 % 4], values[k]));
    REQUIRE(to[k].is_whole_around());
  }
}

TEST_CASE("nccl elements: scaled as a reduction of one input is") {
  for (const DataType type : kScaled) {
    if (type == DataType::kInt64 && !kExtended) continue;
    const ByteVector values = values_of(type);
    for (const double pre : kFactors)
      for (const double post : kFactors) {
        INFO(name_of(type) << " times " << pre << " times " << post);
        REQUIRE(scaled_by_kernel(type, values, {.pre = pre, .post = post}) ==
                reduced(type, {ReduceOp::kSum, pre, post}, values, 1));
      }
  }
}

TEST_CASE("nccl elements: integers are divided before they are truncated") {
  for (const DataType type :
       {DataType::kUint8, DataType::kInt8, DataType::kInt32, DataType::kInt64}) {
    if (type == DataType::kInt64 && !kExtended) continue;
    const ByteVector values = values_of(type);
    for (const uint32_t ranks : {2, 3, 7, 64, 1000})
      for (const double post : kFactors) {
        if (post == 1) continue;
        INFO(name_of(type) << " times " << post << " by " << ranks);
        REQUIRE(scaled_by_kernel(type, values, {.post = post, .divisor = ranks}) ==
                reduced(type, {ReduceOp::kAverage, 1, post}, values, ranks));
      }
  }
}

TEST_CASE("nccl elements: threads scale each element once, and nothing behind the last") {
  for (const size_t count : {size_t{1}, size_t{kBlockThreads}, size_t{kChunk} - 1, size_t{kChunk},
                             size_t{kChunk} + 1, 3 * size_t{kChunk} + 1000}) {
    std::vector<int32_t> values(count + kChunk, 1);
    for (uint32_t block = 0; block < chunks_of(count); ++block)
      for (uint32_t thread = 0; thread < kBlockThreads; ++thread)
        scale_thread<int32_t>(values.data(), count, {.post = 3}, block, thread);
    for (size_t k = 0; k < values.size(); ++k) REQUIRE(values[k] == (k < count ? 3 : 1));
  }
}

}  // namespace hvd
