// The kernels of kernels.h, as GPUs run them.
#include "collectives/nccl/kernels.h"

#define HVD_SCALE(name, T)                                                    \
  extern "C" __global__ void __launch_bounds__(hvd::kBlockThreads)            \
      hvd_scale_##name(T* data, uint64_t count, const hvd::Factors factors) { \
    hvd::scale_thread<T>(data, count, factors, blockIdx.x, threadIdx.x);      \
  }

HVD_SCALE_KERNELS(HVD_SCALE)

// The table stays where parameters are: a copy of it for each thread would be memory's.
extern "C" __global__ void __launch_bounds__(hvd::kBlockThreads)
    hvd_cast(const __grid_constant__ hvd::CastTable table) {
  hvd::cast_thread(table, blockIdx.x, threadIdx.x);
}
