// Kernels: a module is a fatbin, whose kernels are the product's, or any other bytes, and then each
// function is one that a test has given.
#include "tests/collectives/nccl/standin/cuda_kernel.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include "tests/collectives/nccl/standin/cuda_memory.h"
#include "tests/collectives/nccl/standin/cuda_stream.h"
#include "tests/collectives/nccl/standin/fatbin.h"

#pragma GCC visibility push(default)
#include "tests/collectives/nccl/standin.h"
#pragma GCC visibility pop

struct CUmod_st {
  CUcontext context = nullptr;
  std::optional<hvd::DeviceCode> code;  // what the device takes of a fatbin
  bool unloaded = false;
};

struct CUfunc_st {
  CUmodule module = nullptr;
  std::string name;
};

namespace hvd {
namespace {

// CUDA C++ Programming Guide, "Compute Capabilities": the same on all devices so far.
constexpr uint64_t kMostThreads = 1024;
constexpr unsigned kMostBlock[3] = {1024, 1024, 64};
constexpr unsigned kMostGrid[3] = {0x7fffffff, 65535, 65535};
// And "__global__ functions", their parameters, without the larger limit that newer ones have.
constexpr size_t kMostArgumentBytes = 4096;

struct Kernels {
  std::mutex mutex;
  std::map<std::string, Kernel> given, product = product_kernels();
  std::map<CUmodule, std::unique_ptr<CUmod_st>> modules;
  std::map<CUfunction, std::unique_ptr<CUfunc_st>> functions;
};

Kernels& kernels() {
  static Kernels& only = *new Kernels;
  return only;
}

bool is_loaded(CUmodule module) { return kernels().modules.contains(module) && !module->unloaded; }

// Null: there is none.
const Kernel* find_kernel(CUmodule module, const std::string& name) {
  if (module->code && !has_kernel(*module->code, name)) return nullptr;
  const auto& all = module->code ? kernels().product : kernels().given;
  const auto found = all.find(name);
  return found == all.end() ? nullptr : &found->second;
}

// Copies, as CUDA takes them when the kernel is launched.
using Arguments = std::vector<std::vector<std::byte>>;
Arguments copies_of(const Kernel& kernel, void** arguments) {
  Arguments copies;
  for (size_t k = 0; k < kernel.sizes.size(); ++k) {
    const auto* bytes = static_cast<const std::byte*>(arguments[k]);
    copies.emplace_back(bytes, bytes + kernel.sizes[k]);
  }
  return copies;
}

std::vector<void*> pointers_to(Arguments& copies) {
  std::vector<void*> pointers;
  for (std::vector<std::byte>& copy : copies) pointers.push_back(copy.data());
  return pointers;
}

bool fits(const unsigned (&grid)[3], const unsigned (&block)[3]) {
  for (size_t k = 0; k < 3; ++k)
    if (grid[k] == 0 || grid[k] > kMostGrid[k] || block[k] == 0 || block[k] > kMostBlock[k])
      return false;
  return uint64_t{block[0]} * block[1] * block[2] <= kMostThreads;
}

// Empty: it touches what it may not, and is not run.
std::vector<std::byte*> memory_of(const std::string& name, const std::vector<Touched>& touched,
                                  CUcontext context) {
  std::vector<std::byte*> memory;
  for (const Touched& range : touched) {
    const DeviceBytes bytes = find_device_bytes(range.pointer, range.bytes);
    if (bytes.host != nullptr && bytes.context == context) {
      memory.push_back(bytes.host);
      continue;
    }
    violate(name + " touches " + std::to_string(range.bytes) + " bytes that are not in one " +
            "allocation of GPU " + std::to_string(context->ordinal) + " (CUDA C++ Programming " +
            "Guide, \"Device Memory\")");
    return {};
  }
  return memory;
}

struct Launch {
  std::string name;
  Kernel kernel;
  unsigned grid[3], block[3];
  Arguments arguments;
  std::vector<Touched> touched;

  void run(CUcontext context) {
    wait_while_held(name);
    if (setting("kernel_fails") == name) {
      fail_context(context, CUDA_ERROR_ILLEGAL_ADDRESS);
    } else {
      std::vector<void*> pointers = pointers_to(arguments);
      const std::vector<std::byte*> memory = memory_of(name, touched, context);
      if (memory.size() == touched.size()) kernel.run(grid, block, pointers.data(), memory);
    }
    for (const Touched& range : touched) let_go_of_device_bytes(range.pointer);
  }
};

}  // namespace

void forget_kernels_of(CUcontext context) {
  const std::lock_guard lock(kernels().mutex);
  for (const auto& [module, owner] : kernels().modules)
    module->unloaded |= module->context == context;
}

}  // namespace hvd

using namespace hvd;

void hvd_standin_kernel(const char* name, int arguments, const size_t* sizes,
                        hvd_standin_kernel_function run) {
  const std::lock_guard lock(kernels().mutex);
  Kernel& kernel = kernels().given[name];
  kernel.sizes.assign(sizes, sizes + arguments);
  kernel.run = [run](const unsigned* grid, const unsigned* block, void** values,
                     const std::vector<std::byte*>&) { run(grid, block, values); };
}

CUresult cuModuleLoadData(CUmodule* made, const void* image) {
  CUcontext context = nullptr;
  if (const CUresult result = enter_current(context, "cuModuleLoadData"); result != CUDA_SUCCESS)
    return result;
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const auto result = static_cast<CUresult>(setting("module_result", 0))) return result;
  auto module = std::make_unique<CUmod_st>();
  module->context = context;
  const int architecture = static_cast<int>(setting("architecture", 90));
  const int driver = static_cast<int>(setting("driver_version", 13000));
  const std::vector<DeviceCode> codes = device_codes(image);
  for (const DeviceCode& code : codes)
    if (runs_on(code, architecture, driver) && (!module->code || module->code->is_ptx))
      module->code = code;
  if (!codes.empty() && !module->code) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  *made = module.get();
  const std::lock_guard lock(kernels().mutex);
  kernels().modules[*made] = std::move(module);
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
  CUcontext context = nullptr;
  if (const CUresult result = enter_current(context, "cuModuleUnload"); result != CUDA_SUCCESS)
    return result;
  const std::lock_guard lock(kernels().mutex);
  if (!is_loaded(module)) return CUDA_ERROR_INVALID_HANDLE;
  module->unloaded = true;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* made, CUmodule module, const char* name) {
  CUcontext context = nullptr;
  if (const CUresult result = enter_current(context, "cuModuleGetFunction"); result != CUDA_SUCCESS)
    return result;
  const std::lock_guard lock(kernels().mutex);
  if (!is_loaded(module)) return CUDA_ERROR_INVALID_HANDLE;
  if (find_kernel(module, name) == nullptr) return CUDA_ERROR_NOT_FOUND;
  auto function = std::make_unique<CUfunc_st>();
  function->module = module;
  function->name = name;
  *made = function.get();
  kernels().functions[*made] = std::move(function);
  return CUDA_SUCCESS;
}

// "A kernel launch will fail if it is issued to a stream that is not associated to the current
// device" (CUDA C++ Programming Guide, "Stream and Event Behavior").
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned,
                        CUstream stream, void** arguments, void** extra) {
  if (const CUresult result = find_stream_for_work(stream, "cuLaunchKernel");
      result != CUDA_SUCCESS)
    return result;
  const CUcontext context = context_of(stream);
  if (context != current_context()) return CUDA_ERROR_INVALID_HANDLE;
  Launch launch{{}, {}, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, {}, {}};
  if (!fits(launch.grid, launch.block) || extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  {
    const std::lock_guard lock(kernels().mutex);
    if (!kernels().functions.contains(function) || !is_loaded(function->module) ||
        function->module->context != context)
      return CUDA_ERROR_INVALID_HANDLE;
    launch.name = function->name;
    launch.kernel = *find_kernel(function->module, function->name);
  }
  const std::vector<size_t>& sizes = launch.kernel.sizes;
  if (std::accumulate(sizes.begin(), sizes.end(), size_t{0}) > kMostArgumentBytes)
    return CUDA_ERROR_INVALID_VALUE;
  count("kernels", context->ordinal);
  count("kernel " + launch.name, context->ordinal);
  launch.arguments = copies_of(launch.kernel, arguments);
  if (launch.kernel.touches)
    launch.touched = launch.kernel.touches(pointers_to(launch.arguments).data());
  for (const Touched& range : launch.touched) hold_device_bytes(range.pointer);
  enqueue(stream, [launch = std::move(launch), context]() mutable { launch.run(context); });
  return CUDA_SUCCESS;
}
