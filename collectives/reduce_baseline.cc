// The arithmetic for every machine: what the compiler may always use. On x86 that has no
// conversions of 16-bit floats, so one lane at a time.
#if defined(__x86_64__)
#define HWY_COMPILE_ONLY_SCALAR
#endif
#include "collectives/reduce_all-inl.h"

void hvd::reduce_baseline(const ReduceArguments& arguments) {
  HWY_NAMESPACE::reduce_all(arguments);
}
