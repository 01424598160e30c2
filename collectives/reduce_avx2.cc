// The arithmetic with AVX2 and F16C (compiled with their flags).
#include "collectives/reduce_all-inl.h"

static_assert(HWY_TARGET == HWY_AVX2);

void hvd::reduce_avx2(const ReduceArguments& arguments) { HWY_NAMESPACE::reduce_all(arguments); }
