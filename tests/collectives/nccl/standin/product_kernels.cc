// The product's kernels: the functions that nvcc compiles for GPUs, compiled for the CPU.
#include "collectives/nccl/kernels.h"
#include "tests/collectives/nccl/standin/cuda_kernel.h"

namespace hvd {
namespace {

template <class T>
Kernel scale_kernel() {
  Kernel kernel;
  kernel.sizes = {sizeof(T*), sizeof(uint64_t), sizeof(Factors)};
  kernel.touches = [](void** arguments) {
    const auto count = *static_cast<uint64_t*>(arguments[1]);
    return std::vector<Touched>{{*static_cast<void**>(arguments[0]), count * sizeof(T)}};
  };
  kernel.run = [](const unsigned grid[3], const unsigned block[3], void** arguments,
                  const std::vector<std::byte*>& memory) {
    auto* data = reinterpret_cast<T*>(memory[0]);
    const auto count = *static_cast<uint64_t*>(arguments[1]);
    const auto& factors = *static_cast<Factors*>(arguments[2]);
    for (unsigned b = 0; b < grid[0]; ++b)
      for (unsigned thread = 0; thread < block[0]; ++thread)
        scale_thread<T>(data, count, factors, b, thread);
  };
  return kernel;
}

Kernel cast_kernel() {
  Kernel kernel;
  kernel.sizes = {sizeof(CastTable)};
  kernel.touches = [](void** arguments) {
    const auto& table = *static_cast<CastTable*>(arguments[0]);
    std::vector<Touched> touched;
    for (uint32_t k = 0; k < table.size; ++k) {
      const CastTable::Entry& entry = table.entries[k];
      touched.push_back({entry.from, entry.count * size_of(entry.from_type)});
      touched.push_back({entry.to, entry.count * size_of(entry.to_type)});
    }
    return touched;
  };
  kernel.run = [](const unsigned grid[3], const unsigned block[3], void** arguments,
                  const std::vector<std::byte*>& memory) {
    auto& table = *static_cast<CastTable*>(arguments[0]);
    for (uint32_t k = 0; k < table.size; ++k) {
      table.entries[k].from = memory[size_t{2} * k];
      table.entries[k].to = memory[size_t{2} * k + 1];
    }
    for (unsigned b = 0; b < grid[0]; ++b)
      for (unsigned thread = 0; thread < block[0]; ++thread) cast_thread(table, b, thread);
  };
  return kernel;
}

}  // namespace

std::map<std::string, Kernel> product_kernels() {
  std::map<std::string, Kernel> kernels;
#define HVD_SCALE(name, T) kernels["hvd_scale_" #name] = scale_kernel<T>();
  HVD_SCALE_KERNELS(HVD_SCALE)
#undef HVD_SCALE
  kernels["hvd_cast"] = cast_kernel();
  return kernels;
}

}  // namespace hvd
