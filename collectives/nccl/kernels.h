// The kernels: which there are, and what each of their threads does.
//
// constexpr as elements.h is: for GPUs kernels.cu makes kernels of it.
#pragma once

#include "collectives/nccl/elements.h"
#include "hvd/types.h"

// hvd_cast(const CastTable), a grid of its chunks() blocks.
// hvd_scale_NAME(T* data, uint64_t count, Factors), in place; a grid of chunks_of(count) blocks.
#define HVD_SCALE_KERNELS(X) \
  X(uint8, uint8_t)          \
  X(int8, int8_t)            \
  X(int32, int32_t)          \
  X(int64, int64_t)          \
  X(float16, hvd::float16)   \
  X(bfloat16, hvd::bfloat16) \
  X(float32, float)          \
  X(float64, double)

namespace hvd {

constexpr uint32_t kBlockThreads = 256, kChunk = 16 * kBlockThreads;  // elements of a block

constexpr uint64_t chunks_of(uint64_t count) { return (count + kChunk - 1) / kChunk; }

// One of kBlockThreads threads in a block. Several elements are read before the first is written:
// memory is slow to answer, and in its place the compiler may not.
template <class T>
constexpr void scale_thread(T* data, uint64_t count, const Factors& factors, uint32_t block,
                            uint32_t thread) {
  constexpr uint32_t kAtOnce = 4, kStep = kAtOnce * kBlockThreads;
  const uint64_t begin = uint64_t{block} * kChunk;
  const uint64_t end = begin + kChunk < count ? begin + kChunk : count;
  for (uint64_t at = begin + thread; at < end; at += kStep) {
    T values[kAtOnce] = {};
    for (uint32_t k = 0; k < kAtOnce; ++k)
      if (at + k * kBlockThreads < end) values[k] = data[at + k * kBlockThreads];
    for (uint32_t k = 0; k < kAtOnce; ++k)
      if (at + k * kBlockThreads < end) data[at + k * kBlockThreads] = scaled(values[k], factors);
  }
}

// What one launch copies. A kernel's parameters are 4096 bytes at most.
struct CastTable {
  struct Entry {
    const void* from = nullptr;
    void* to = nullptr;
    uint64_t count = 0;  // elements
    uint32_t end = 0;    // chunks of it and of all before it
    DataType from_type = DataType::kFloat32, to_type = DataType::kFloat32;
  };
  static constexpr uint32_t kMost = 127;
  double factor = 1;
  uint32_t size = 0;
  Entry entries[kMost] = {};

  constexpr uint32_t chunks() const { return size == 0 ? 0 : entries[size - 1].end; }
  // Of floating types; not empty.
  constexpr void add(Entry entry) {
    entry.end = chunks() + static_cast<uint32_t>(chunks_of(entry.count));
    entries[size++] = entry;
  }
  constexpr uint32_t entry_of(uint32_t chunk) const {
    uint32_t first = 0, last = size - 1;
    while (first < last) {
      const uint32_t middle = (first + last) / 2;
      if (chunk < entries[middle].end)
        last = middle;
      else
        first = middle + 1;
    }
    return first;
  }
};
static_assert(sizeof(CastTable) <= 4096);

// What is read or written at once.
template <class T, uint32_t kElements>
struct alignas(kElements * sizeof(T)) Pack {
  T values[kElements] = {};
  static constexpr bool begins_at(const T* data) {
    return reinterpret_cast<uintptr_t>(data) % sizeof(Pack) == 0;
  }
};

// One of kBlockThreads threads in a block, as above.
template <uint32_t kElements, class From, class To>
constexpr void cast_packs(const From* from, To* to, uint32_t packs, double factor,
                          uint32_t thread) {
  constexpr uint32_t kAtOnce = kElements == 1 ? 4 : 2, kStep = kAtOnce * kBlockThreads;
  const auto* in = reinterpret_cast<const Pack<From, kElements>*>(from);
  auto* out = reinterpret_cast<Pack<To, kElements>*>(to);
  for (uint32_t at = thread; at < packs; at += kStep) {
    Pack<From, kElements> read[kAtOnce];
    for (uint32_t k = 0; k < kAtOnce; ++k)
      if (at + k * kBlockThreads < packs) read[k] = in[at + k * kBlockThreads];
    for (uint32_t k = 0; k < kAtOnce; ++k) {
      if (at + k * kBlockThreads >= packs) continue;
      Pack<To, kElements> made;
      for (uint32_t i = 0; i < kElements; ++i)
        made.values[i] = converted<To>(read[k].values[i], factor);
      out[at + k * kBlockThreads] = made;
    }
  }
}

// By 16 bytes of the wider type where both sides begin so.
template <class From, class To>
constexpr void cast_chunk(const CastTable::Entry& entry, uint32_t chunk, double factor,
                          uint32_t thread) {
  constexpr uint32_t kElements = 16 / (sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To));
  const uint64_t begin = uint64_t{chunk} * kChunk, rest = entry.count - begin;
  const uint32_t count = rest < kChunk ? static_cast<uint32_t>(rest) : kChunk;
  const From* from = static_cast<const From*>(entry.from) + begin;
  To* to = static_cast<To*>(entry.to) + begin;
  uint32_t packed = 0;
  if (Pack<From, kElements>::begins_at(from) && Pack<To, kElements>::begins_at(to)) {
    cast_packs<kElements>(from, to, count / kElements, factor, thread);
    packed = count / kElements * kElements;
  }
  cast_packs<1>(from + packed, to + packed, count - packed, factor, thread);
}

template <class From>
constexpr void cast_chunk_from(const CastTable::Entry& entry, uint32_t chunk, double factor,
                               uint32_t thread) {
  switch (entry.to_type) {
    case DataType::kFloat16:
      return cast_chunk<From, float16>(entry, chunk, factor, thread);
    case DataType::kBfloat16:
      return cast_chunk<From, bfloat16>(entry, chunk, factor, thread);
    case DataType::kFloat32:
      return cast_chunk<From, float>(entry, chunk, factor, thread);
    case DataType::kFloat64:
      return cast_chunk<From, double>(entry, chunk, factor, thread);
    default:
      return;
  }
}

// All types in one kernel: a bucket is one launch, whatever its parameters' types.
constexpr void cast_thread(const CastTable& table, uint32_t block, uint32_t thread) {
  const uint32_t index = table.entry_of(block);
  const CastTable::Entry& entry = table.entries[index];
  const uint32_t chunk = index == 0 ? block : block - table.entries[index - 1].end;
  switch (entry.from_type) {
    case DataType::kFloat16:
      return cast_chunk_from<float16>(entry, chunk, table.factor, thread);
    case DataType::kBfloat16:
      return cast_chunk_from<bfloat16>(entry, chunk, table.factor, thread);
    case DataType::kFloat32:
      return cast_chunk_from<float>(entry, chunk, table.factor, thread);
    case DataType::kFloat64:
      return cast_chunk_from<double>(entry, chunk, table.factor, thread);
    default:
      return;
  }
}

}  // namespace hvd
