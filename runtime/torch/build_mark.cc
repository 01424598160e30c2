// Needs the libhvd of the same build: see runtime/build_mark.cc.
#include <build_mark.h>

extern "C" const char HVD_BUILD_MARK[];
[[gnu::used]] static const char* const libhvd = HVD_BUILD_MARK;
