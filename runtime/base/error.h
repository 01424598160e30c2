// The errors of the public API (<hvd/error.h>), and HVD_CHECK for what can only be our own fault.
#pragma once

#include "hvd/error.h"

namespace hvd {

// Logs the condition and aborts, in release builds too. For programmer errors; never for input,
// files or the network.
#define HVD_CHECK(condition, message)                                               \
  do {                                                                              \
    if (!(condition)) ::hvd::check_failed(#condition, message, __FILE__, __LINE__); \
  } while (false)

[[noreturn]] HVD_API void check_failed(const char* condition, const char* message, const char* file,
                                       int line) noexcept;

// What every call of a rank's throws in a child that was forked from it.
[[noreturn]] HVD_API void throw_forked();

}  // namespace hvd
