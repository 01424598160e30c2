// What tells builds of libhvd apart: libhvd_torch shares its classes, and with those of another
// build would crash without a word. It needs this symbol, so the loader refuses it by name.
#include <build_mark.h>

#include "hvd/error.h"

extern "C" HVD_API const char HVD_BUILD_MARK[];
extern "C" const char HVD_BUILD_MARK[] = "";
