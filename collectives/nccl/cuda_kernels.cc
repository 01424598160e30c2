#include "collectives/nccl/cuda_kernels.h"

#include "collectives/nccl/kernels_image.h"
#include "runtime/base/error.h"

namespace hvd {

CudaKernels::CudaKernels(const CudaDriver& driver) : driver_(driver) {
  try {
    if (driver_.cuModuleLoadData(&module_, kernels_image().data()) != CUDA_SUCCESS)
      driver_.check(driver_.cuModuleLoadData(&module_, kernels_ptx()),
                    "the driver does not take them");
    for (int k = 0; k < kDataTypes; ++k) {
      const auto type = static_cast<DataType>(k);
      if (type == DataType::kBool) continue;
      const std::string name = std::string("hvd_scale_") + name_of(type);
      driver_.check(driver_.cuModuleGetFunction(&scale_[k], module_, name.c_str()), name);
    }
    driver_.check(driver_.cuModuleGetFunction(&cast_, module_, "hvd_cast"), "hvd_cast");
  } catch (const Error& error) {
    why_not_ = error.what();
  }
}

CudaKernels::~CudaKernels() {
  if (module_ != nullptr) driver_.cuModuleUnload(module_);
}

std::string CudaKernels::why_not() const {
  return "hvd's kernels, compiled by CUDA " HVD_NVCC_VERSION
         " for GPUs of compute capability 7.5 and newer, cannot be used here: " +
         why_not_ + "; update the GPU's driver";
}

void CudaKernels::check_there(const char* instead) const {
  if (!are_there()) throw Error(ErrorCode::kUnavailable, why_not() + ", or " + instead);
}

void CudaKernels::scale(DataType type, const Factors& factors, void* data, size_t count,
                        CUstream stream) const {
  if (is_plain(factors) || count == 0) return;
  check_there("leave prescale and postscale at 1");
  auto elements = static_cast<uint64_t>(count);
  Factors copy = factors;
  void* arguments[] = {&data, &elements, &copy};
  driver_.check(driver_.cuLaunchKernel(scale_[static_cast<size_t>(type)],
                                       static_cast<unsigned>(chunks_of(count)), 1, 1, kBlockThreads,
                                       1, 1, 0, stream, arguments, nullptr),
                "a tensor cannot be scaled");
}

void CudaKernels::cast(std::span<const Cast> casts, double factor, CUstream stream) const {
  check_there("copy by other means");
  CastTable table;
  table.factor = factor;
  for (const auto& [from, to] : casts) {
    HVD_CHECK(is_float(from.type) && is_float(to.type) && from.count == to.count,
              "a cast is of so many floats");
    if (from.count == 0) continue;
    table.add({.from = from.data,
               .to = to.data,
               .count = from.count,
               .from_type = from.type,
               .to_type = to.type});
    if (table.size == CastTable::kMost) launch(table, stream);
  }
  if (table.size != 0) launch(table, stream);
}

void CudaKernels::launch(CastTable& table, CUstream stream) const {
  void* arguments[] = {&table};
  driver_.check(driver_.cuLaunchKernel(cast_, table.chunks(), 1, 1, kBlockThreads, 1, 1, 0, stream,
                                       arguments, nullptr),
                "tensors cannot be copied");
  table.size = 0;
}

}  // namespace hvd
