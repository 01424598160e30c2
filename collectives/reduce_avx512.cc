// The arithmetic with AVX-512 (compiled with its flags).
#include "collectives/reduce_all-inl.h"

static_assert(HWY_TARGET == HWY_AVX3);

void hvd::reduce_avx512(const ReduceArguments& arguments) { HWY_NAMESPACE::reduce_all(arguments); }
