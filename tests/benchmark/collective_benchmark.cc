// Times hvd's collectives over a range of sizes: hvdrun -np 2 collective_benchmark --help.
//
// In the manner of nccl-tests: the public API as a program calls it, every check on.
#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "hvd/hvd.h"
#include "tests/benchmark/collective_rows.h"

namespace {

template <typename T>
class Hvd final : public hvd::Library {
 public:
  explicit Hvd(const hvd::RowsRequest& request)
      : kind_(request.kind), arena_(request.memory == "arena") {}

  int rank() const override { return hvd::rank(); }
  int size() const override { return hvd::size(); }

  std::byte* memory(size_t bytes) override {
    if (arena_) {
      arena_memory_ = hvd::arena_buffer<T>(bytes / sizeof(T));
      std::memset(static_cast<void*>(arena_memory_.data()), 0, bytes);
      return reinterpret_cast<std::byte*>(arena_memory_.data());
    }
    private_memory_ = hvd::PrivateMemory(bytes);
    return private_memory_.data();
  }

  void barrier() override { hvd::barrier(); }

  const std::byte* run(std::byte* data, size_t bytes) override {
    const std::span all(reinterpret_cast<T*>(data), bytes / sizeof(T));
    switch (kind_) {
      case hvd::CollectiveKind::kAllreduce:
        hvd::allreduce_(all, {.op = hvd::ReduceOp::kSum});
        return data;
      case hvd::CollectiveKind::kBroadcast:
        hvd::broadcast_(all, 0);
        return data;
      case hvd::CollectiveKind::kAllgather: {
        const auto* elements = reinterpret_cast<const Gathered*>(data);
        const size_t part = all.size() / static_cast<size_t>(size());
        gathered_ = hvd::allgather(std::span(elements + part * static_cast<size_t>(rank()), part));
        return reinterpret_cast<const std::byte*>(gathered_.data());
      }
    }
    return data;
  }

  void maximum(std::span<double> values) override {
    hvd::allreduce_(values, {.op = hvd::ReduceOp::kMax});
  }

 private:
  using Gathered = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;  // no vector of bool

  const hvd::CollectiveKind kind_;
  const bool arena_;
  hvd::PrivateMemory private_memory_;
  hvd::ArenaBuffer<T> arena_memory_;
  std::vector<Gathered> gathered_;
};

uint64_t measure(const hvd::RowsRequest& request) {
  auto as = [&]<class T>(std::type_identity<T>) {
    Hvd<T> library(request);
    return hvd::measure_rows(library, request);
  };
  if (request.dtype == "uint8") return as(std::type_identity<uint8_t>{});
  if (request.dtype == "int8") return as(std::type_identity<int8_t>{});
  if (request.dtype == "int32") return as(std::type_identity<int32_t>{});
  if (request.dtype == "int64") return as(std::type_identity<int64_t>{});
  if (request.dtype == "float16") return as(std::type_identity<hvd::float16>{});
  if (request.dtype == "bfloat16") return as(std::type_identity<hvd::bfloat16>{});
  if (request.dtype == "float64") return as(std::type_identity<double>{});
  if (request.dtype == "bool") return as(std::type_identity<bool>{});
  return as(std::type_identity<float>{});
}

}  // namespace

int main(int argc, char** argv) {
  const char* const memories[] = {"arena", "private"};
  try {
    hvd::RowsRequest request;
    if (!hvd::parse_rows_request({argv, static_cast<size_t>(argc)}, memories, request)) return 0;
    hvd::init();
    const uint64_t wrong = measure(request);
    hvd::shutdown();
    return wrong == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "collective_benchmark: %s\n", error.what());
    return 2;
  }
}
