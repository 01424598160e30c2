// The arithmetic with AVX2 and F16C (compiled with their flags).
#define HVD_REDUCE_FUNCTION reduce_avx2
#include "collectives/reduce_all-inl.h"

static_assert(HWY_TARGET == HWY_AVX2);
