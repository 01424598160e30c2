// hvd: collectives for data-parallel training. The torch-free part of the public API.
//
//   hvd::init();
//   std::vector<float> x(1'000'000, float(hvd::rank()));
//   hvd::allreduce_(std::span(x), {.op = hvd::ReduceOp::kSum});
//
// Started by hvdrun, a program is one of size() ranks; started alone, it is a world of one where
// every call works. Results are equal, bit for bit, on every rank. Errors are hvd::Error; after
// hvd::CommFailure the world is broken for good: shutdown(), then init() for the next one.
//
// Collectives take anything contiguous: std::span, std::vector, std::array, hvd::ArenaBuffer. Every
// rank calls them in the same order on the thread that called init(). From other threads, and to
// have several under way at once (…_async), give each a name, of 255 bytes at most; names are
// matched, order is free. A name stands for one operation at a time, of whatever kind: so an
// allreduce "x" here and a broadcast "x" there are an Error on both ranks at once, not two that
// wait for each other. Those without a name are matched by their count.
//
// Calls that differ between ranks are an Error on every rank; but what one rank calls, and another
// submits (…_async) under the same name and waits for in its init thread, breaks the world:
// CommFailure. (Where that one only asks whether it is done(), or another thread waits, the call
// may still come: the stall warning names who is missing.) So does a DistributedOptimizer's step()
// on one rank and a call, or another optimizer's step(), on another, each before the other, as with
// different numbers of batches. A call that is refused for itself (Average of bool, a root that is
// no rank) enters nothing: where others made theirs well they wait for it as for one that was never
// made, and without a name this rank's next call takes its number, and its place if it is of that
// kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "hvd/error.h"
#include "hvd/float16.h"
#include "hvd/types.h"
#include "hvd/work.h"

namespace hvd {

template <class T>
class ArenaBuffer;

// ---- who is who

// Meets the other ranks; again after shutdown() by all, for the next epoch. Throws kTimeout naming
// who is missing; CommFailure when a rank ends meanwhile, or could not start; kUnavailable when
// another launcher than hvdrun started several ranks or HVD_AGENT got lost. The calling thread is
// the init thread from then on, until shutdown(), so it has to live. Does nothing when initialized.
HVD_API void init();
// Ends this rank's part tidily, on the init thread. The others notice at their first operation that
// needs this rank. A process may end without it once the others need it no more; while they still
// do, that is a failure, which names this rank. Before exec it is a must: only then may the new
// program call init().
HVD_API void shutdown();
HVD_API bool is_initialized() noexcept;

// All throw kUnavailable when not initialized.
HVD_API int rank();
HVD_API int size();
HVD_API int local_rank();  // on this host
HVD_API int local_size();
HVD_API int cross_rank();  // among the hosts that have this local rank
HVD_API int cross_size();

// What this build holds, under Horovod's names.
HVD_API bool mpi_built() noexcept;
HVD_API bool mpi_enabled() noexcept;
HVD_API bool mpi_threads_supported() noexcept;
HVD_API bool gloo_built() noexcept;
HVD_API bool gloo_enabled() noexcept;
HVD_API int nccl_built() noexcept;  // its version, 0: none
HVD_API bool cuda_built() noexcept;
HVD_API bool rocm_built() noexcept;
HVD_API bool ccl_built() noexcept;
HVD_API bool ddl_built() noexcept;

// ---- elements

// The element types of spans: uint8_t int8_t int32_t int64_t float16 bfloat16 float double bool
// (and std::byte, as uint8_t).
template <class T>
struct ElementType;
template <DataType type>
using ElementTypeOf = std::integral_constant<DataType, type>;
template <>
struct ElementType<uint8_t> : ElementTypeOf<DataType::kUint8> {};
template <>
struct ElementType<std::byte> : ElementTypeOf<DataType::kUint8> {};
template <>
struct ElementType<int8_t> : ElementTypeOf<DataType::kInt8> {};
template <>
struct ElementType<int32_t> : ElementTypeOf<DataType::kInt32> {};
template <>
struct ElementType<int64_t> : ElementTypeOf<DataType::kInt64> {};
template <>
struct ElementType<float16> : ElementTypeOf<DataType::kFloat16> {};
template <>
struct ElementType<bfloat16> : ElementTypeOf<DataType::kBfloat16> {};
template <>
struct ElementType<float> : ElementTypeOf<DataType::kFloat32> {};
template <>
struct ElementType<double> : ElementTypeOf<DataType::kFloat64> {};
template <>
struct ElementType<bool> : ElementTypeOf<DataType::kBool> {};

template <class T>
concept Element = requires { ElementType<T>::value; };
template <class Range>
concept Elements = std::ranges::contiguous_range<Range> && std::ranges::sized_range<Range> &&
                   Element<std::ranges::range_value_t<Range>>;
template <class Range>
concept MutableElements =
    Elements<Range> &&
    !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<Range>>>;
template <class Range>
inline constexpr bool kIsArenaBuffer = false;
template <class T>
inline constexpr bool kIsArenaBuffer<ArenaBuffer<T>> = true;
// That do not end with the call that they are given to.
template <class Range>
concept LastingElements = MutableElements<Range> && (std::ranges::borrowed_range<Range> ||
                                                     kIsArenaBuffer<std::remove_cvref_t<Range>>);
// For results in a std::vector, of which that of bool holds no bools: reduce and broadcast bool in
// place.
template <class Range>
concept CopiedElements =
    Elements<Range> && !std::is_same_v<std::ranges::range_value_t<Range>, bool>;
// What a gathered element is: of bool uint8_t, 0 or 1.
template <class Range>
using Gathered = std::conditional_t<std::is_same_v<std::ranges::range_value_t<Range>, bool>,
                                    uint8_t, std::ranges::range_value_t<Range>>;

// ---- options

struct AllreduceOptions {
  std::string name{};
  ReduceOp op = ReduceOp::kAverage;
  double prescale = 1;   // of each rank's part
  double postscale = 1;  // of the result
};
struct AllgatherOptions {
  std::string name{};
};
struct BroadcastOptions {
  std::string name{};
};

namespace detail {

struct Part {
  void* data;
  size_t count;
  DataType type;
};
struct ConstPart {
  const void* data;
  size_t count;
  DataType type;
};
using Keep = std::shared_ptr<void>;  // what has to live as long as the operation
// Given the elements of all ranks, where they go, in rank order; nothing, to be asked again, while
// that memory is made.
using Allocate = std::function<void*(std::span<const uint64_t> counts)>;

HVD_API void allreduce(Part part, const AllreduceOptions& options);
HVD_API void broadcast(Part part, int root, const BroadcastOptions& options);
HVD_API void allgather(ConstPart part, Allocate allocate, const AllgatherOptions& options);
HVD_API std::shared_ptr<Work> allreduce_async(Part part, const AllreduceOptions& options,
                                              Keep keep);
HVD_API std::shared_ptr<Work> broadcast_async(Part part, int root, const BroadcastOptions& options,
                                              Keep keep);
HVD_API std::shared_ptr<Work> allgather_async(ConstPart part, Allocate allocate,
                                              const AllgatherOptions& options, Keep keep);
HVD_API std::shared_ptr<void> arena_memory(size_t count, size_t element_bytes, void** data);

template <MutableElements Range>
Part part_of(Range&& range) {
  return {std::ranges::data(range), std::ranges::size(range),
          ElementType<std::ranges::range_value_t<Range>>::value};
}

// What keeps the memory: of an ArenaBuffer its own, of anything else the caller's care.
template <class Range>
Keep keeper_of(const Range&) {
  return nullptr;
}
template <class T>
Keep keeper_of(const ArenaBuffer<T>& buffer) {
  return buffer.memory();
}

// A MiB at a time: no other operation moves meanwhile, and no death is seen.
template <class T>
Allocate into(std::vector<T>& result) {
  return [&result](std::span<const uint64_t> counts) -> void* {
    constexpr size_t kAtOnce = (size_t{1} << 20) / sizeof(T);
    size_t sum = 0;
    for (const uint64_t count : counts) sum += static_cast<size_t>(count);
    result.reserve(sum);
    result.resize(sum - result.size() > kAtOnce ? result.size() + kAtOnce : sum);
    return result.size() == sum ? result.data() : nullptr;
  };
}

}  // namespace detail

// A result to come. Copies share it.
template <class T>
class Result {
 public:
  Result(std::shared_ptr<Work> work, std::shared_ptr<std::vector<T>> data)
      : work_(std::move(work)), data_(std::move(data)) {}
  bool done() const { return work_->done(); }
  // Throws what went wrong. The vector lives as long as any copy of this object; of an object that
  // nobody keeps it comes by value, so that `for (float x : allreduce_async(…).wait())` is safe.
  std::vector<T>& wait() & {
    work_->wait();
    return *data_;
  }
  std::vector<T> wait() && {
    work_->wait();
    return data_.use_count() == 1 ? std::move(*data_) : *data_;
  }

 private:
  std::shared_ptr<Work> work_;
  std::shared_ptr<std::vector<T>> data_;
};

// ---- collectives

// In place. Average, Sum, Min, Max, Product of all ranks' parts, of equal length. Sums and products
// of integers wrap, and their Average is such a sum divided toward zero: of uint8_t 200 and 100 it
// is 22. Of bool Sum and Max are or, Product and Min and, and Average is an Error.
template <MutableElements Range>
void allreduce_(Range&& data, const AllreduceOptions& options = {}) {
  detail::allreduce(detail::part_of(data), options);
}

template <CopiedElements Range>
auto allreduce(const Range& data, const AllreduceOptions& options = {}) {
  std::vector<std::ranges::range_value_t<Range>> result(std::ranges::begin(data),
                                                        std::ranges::end(data));
  allreduce_(result, options);
  return result;
}

// The data stay where they are, and untouched by the caller, until the Work is done. An ArenaBuffer
// is kept until then; of anything else, a span of one included, that is up to the caller, and a
// container that ends with the call is refused by the compiler.
template <LastingElements Range>
std::shared_ptr<Work> allreduce_async_(Range&& data, const AllreduceOptions& options = {}) {
  return detail::allreduce_async(detail::part_of(data), options, detail::keeper_of(data));
}

template <CopiedElements Range>
auto allreduce_async(const Range& data, const AllreduceOptions& options = {}) {
  using T = std::ranges::range_value_t<Range>;
  auto result = std::make_shared<std::vector<T>>(std::ranges::begin(data), std::ranges::end(data));
  return Result<T>(detail::allreduce_async(detail::part_of(*result), options, result), result);
}

// In place: every rank gets the root's data.
template <MutableElements Range>
void broadcast_(Range&& data, int root, const BroadcastOptions& options = {}) {
  detail::broadcast(detail::part_of(data), root, options);
}

template <CopiedElements Range>
auto broadcast(const Range& data, int root, const BroadcastOptions& options = {}) {
  std::vector<std::ranges::range_value_t<Range>> result(std::ranges::begin(data),
                                                        std::ranges::end(data));
  broadcast_(result, root, options);
  return result;
}

template <CopiedElements Range>
auto broadcast_async(const Range& data, int root, const BroadcastOptions& options = {}) {
  using T = std::ranges::range_value_t<Range>;
  auto result = std::make_shared<std::vector<T>>(std::ranges::begin(data), std::ranges::end(data));
  return Result<T>(detail::broadcast_async(detail::part_of(*result), root, options, result),
                   result);
}

template <LastingElements Range>
std::shared_ptr<Work> broadcast_async_(Range&& data, int root,
                                       const BroadcastOptions& options = {}) {
  return detail::broadcast_async(detail::part_of(data), root, options, detail::keeper_of(data));
}

// All ranks' parts, in rank order; their lengths may differ.
template <Elements Range>
auto allgather(const Range& mine, const AllgatherOptions& options = {}) {
  std::vector<Gathered<Range>> result;
  detail::allgather({std::ranges::data(mine), std::ranges::size(mine),
                     ElementType<std::ranges::range_value_t<Range>>::value},
                    detail::into(result), options);
  return result;
}

template <Elements Range>
auto allgather_async(const Range& mine, const AllgatherOptions& options = {}) {
  using T = Gathered<Range>;
  constexpr DataType kType = ElementType<std::ranges::range_value_t<Range>>::value;
  struct Parts {
    std::vector<T> mine, all;
  };
  auto parts = std::make_shared<Parts>();
  parts->mine.assign(std::ranges::begin(mine), std::ranges::end(mine));
  std::shared_ptr<std::vector<T>> all(parts, &parts->all);
  return Result<T>(detail::allgather_async({parts->mine.data(), parts->mine.size(), kType},
                                           detail::into(parts->all), options, parts),
                   all);
}

// Returns when every rank has called it: all from the init thread, or all from another one, which
// do not meet. Off the init thread one call at a time is possible, named "barrier" there.
HVD_API void barrier();

// Objects, as bytes: the root's to all, or all ranks' to all by rank.
HVD_API std::vector<std::byte> broadcast_bytes(std::span<const std::byte> bytes, int root = 0,
                                               const BroadcastOptions& options = {});
HVD_API std::vector<std::vector<std::byte>> allgather_bytes(std::span<const std::byte> bytes,
                                                            const AllgatherOptions& options = {});

// ---- memory

// `n` zeros in memory that collectives reduce without a copy. Kept by copies of the buffer, and by
// operations on it that are under way; may outlive shutdown().
template <class T>
class ArenaBuffer {
 public:
  ArenaBuffer() = default;
  ArenaBuffer(std::shared_ptr<void> memory, T* data, size_t size)
      : memory_(std::move(memory)), data_(data), size_(size) {}
  ArenaBuffer(const ArenaBuffer&) = default;
  ArenaBuffer& operator=(const ArenaBuffer&) = default;
  // What was moved from is empty: the memory is not its any more.
  ArenaBuffer(ArenaBuffer&& other) noexcept { *this = std::move(other); }
  ArenaBuffer& operator=(ArenaBuffer&& other) noexcept {
    memory_ = std::exchange(other.memory_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  T* data() const { return data_; }
  size_t size() const { return size_; }
  const std::shared_ptr<void>& memory() const { return memory_; }
  T* begin() const { return data_; }
  T* end() const { return data_ + size_; }
  T& operator[](size_t i) const { return data_[i]; }
  // NOLINTNEXTLINE(google-explicit-constructor): to be passed where a span is asked for
  operator std::span<T>() const { return {data_, size_}; }

 private:
  std::shared_ptr<void> memory_;
  T* data_ = nullptr;
  size_t size_ = 0;
};

// A collective of the init thread: every rank asks for the same. Throws kUnavailable when memory
// runs out, with bytes and limit, or descriptors do. The memory goes back to the machine with this
// rank's last copy of the buffer; one memory map per rank of the host, of the 65530 that Linux
// grants a process, stays until shutdown(): use a buffer again rather than make many. A forked
// child has none of it: whoever touches it there dies of SIGSEGV.
template <Element T>
ArenaBuffer<T> arena_buffer(size_t n) {
  void* data = nullptr;
  std::shared_ptr<void> memory = detail::arena_memory(n, sizeof(T), &data);
  return ArenaBuffer<T>(std::move(memory), static_cast<T*>(data), n);
}

}  // namespace hvd
