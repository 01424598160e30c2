// The arithmetic for every machine: what the compiler may always use. On x86 that has no
// conversions of 16-bit floats, so one lane at a time.
#if defined(__x86_64__)
#define HWY_COMPILE_ONLY_SCALAR
#endif
#define HVD_REDUCE_FUNCTION reduce_baseline
#include "collectives/reduce_all-inl.h"
