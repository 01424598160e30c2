// Kernels: a module is any bytes, and every function of it one that a test has given.
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/nccl/standin/cuda_stream.h"

#pragma GCC visibility push(default)
#include "tests/nccl/standin.h"
#pragma GCC visibility pop

struct CUmod_st {
  CUcontext context = nullptr;
  bool unloaded = false;
};

struct CUfunc_st {
  CUmodule module = nullptr;
  std::string name;
};

namespace hvd {
namespace {

// The most threads of a block on all devices so far (CUDA C++ Programming Guide, "Compute
// Capabilities").
constexpr unsigned kMaxThreads = 1024;

struct Kernel {
  std::vector<size_t> sizes;
  hvd_standin_kernel_function run = nullptr;
};

struct Kernels {
  std::mutex mutex;
  std::map<std::string, Kernel> by_name;
  std::map<CUmodule, std::unique_ptr<CUmod_st>> modules;
  std::map<CUfunction, std::unique_ptr<CUfunc_st>> functions;
};

Kernels& kernels() {
  static Kernels& only = *new Kernels;
  return only;
}

bool is_loaded(CUmodule module) { return kernels().modules.contains(module) && !module->unloaded; }

// Copies, as CUDA takes them when the kernel is launched.
std::vector<std::vector<std::byte>> copies_of(const Kernel& kernel, void** arguments) {
  std::vector<std::vector<std::byte>> copies;
  for (size_t k = 0; k < kernel.sizes.size(); ++k) {
    const auto* bytes = static_cast<const std::byte*>(arguments[k]);
    copies.emplace_back(bytes, bytes + kernel.sizes[k]);
  }
  return copies;
}

}  // namespace
}  // namespace hvd

using namespace hvd;

void hvd_standin_kernel(const char* name, int arguments, const size_t* sizes,
                        hvd_standin_kernel_function run) {
  const std::lock_guard lock(kernels().mutex);
  kernels().by_name[name] = {std::vector(sizes, sizes + arguments), run};
}

CUresult cuModuleLoadData(CUmodule* made, const void* image) {
  const CUcontext context = current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const auto result = static_cast<CUresult>(setting("module_result", 0))) return result;
  auto module = std::make_unique<CUmod_st>();
  module->context = context;
  *made = module.get();
  const std::lock_guard lock(kernels().mutex);
  kernels().modules[*made] = std::move(module);
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
  const std::lock_guard lock(kernels().mutex);
  if (!is_loaded(module)) return CUDA_ERROR_INVALID_HANDLE;
  module->unloaded = true;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* made, CUmodule module, const char* name) {
  const std::lock_guard lock(kernels().mutex);
  if (!is_loaded(module)) return CUDA_ERROR_INVALID_HANDLE;
  if (!kernels().by_name.contains(name)) return CUDA_ERROR_NOT_FOUND;
  auto function = std::make_unique<CUfunc_st>();
  function->module = module;
  function->name = name;
  *made = function.get();
  kernels().functions[*made] = std::move(function);
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned,
                        CUstream stream, void** arguments, void** extra) {
  if (const CUresult result = find_stream(stream, "cuLaunchKernel"); result != CUDA_SUCCESS)
    return result;
  const uint64_t threads = uint64_t{block_x} * block_y * block_z;
  if (grid_x == 0 || grid_y == 0 || grid_z == 0 || threads == 0 || threads > kMaxThreads ||
      extra != nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  Kernel kernel;
  {
    const std::lock_guard lock(kernels().mutex);
    if (!kernels().functions.contains(function) || !is_loaded(function->module) ||
        function->module->context != context_of(stream))
      return CUDA_ERROR_INVALID_HANDLE;
    kernel = kernels().by_name[function->name];
  }
  count("kernels", context_of(stream)->ordinal);
  enqueue(stream, [=, copies = copies_of(kernel, arguments)]() mutable {
    const unsigned grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
    std::vector<void*> pointers;
    for (std::vector<std::byte>& copy : copies) pointers.push_back(copy.data());
    kernel.run(grid, block, pointers.data());
  });
  return CUDA_SUCCESS;
}
