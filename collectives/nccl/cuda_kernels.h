// The kernels of this library on a device.
//
// They are loaded when the device is opened: later that might wait for all the device does (CUDA
// C++ Programming Guide, "Lazy Loading"). For that some drivers compile them, once for each user of
// a machine. One that cannot load them is told of where one is needed first: all else goes without.
#pragma once

#include <span>
#include <string>

#include "collectives/nccl/cuda_driver.h"
#include "collectives/nccl/kernels.h"
#include "collectives/types.h"

namespace hvd {

class CudaKernels {
 public:
  // The device is current, as in all else here. `driver` outlives it.
  explicit CudaKernels(const CudaDriver& driver);
  ~CudaKernels();
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;

  bool are_there() const { return why_not_.empty(); }
  std::string why_not() const;  // where they are not: for the user
  // Any thread. Scales `count` elements in their place, behind what is in the stream. Not of bool.
  // Throws kUnavailable.
  void scale(DataType type, const Factors& factors, void* data, size_t count,
             CUstream stream) const;
  // Any thread. As DeviceBackend::cast().
  void cast(std::span<const Cast> casts, double factor, CUstream stream) const;

 private:
  void launch(CastTable& table, CUstream stream) const;  // and empties it
  void check_there(const char* instead) const;

  const CudaDriver& driver_;
  CUmodule module_ = nullptr;
  CUfunction scale_[kDataTypes] = {};
  CUfunction cast_ = nullptr;
  std::string why_not_;  // they are not there
};

}  // namespace hvd
