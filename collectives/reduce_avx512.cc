// The arithmetic with AVX-512 (compiled with its flags).
#define HVD_REDUCE_FUNCTION reduce_avx512
#include "collectives/reduce_all-inl.h"

static_assert(HWY_TARGET == HWY_AVX3);
