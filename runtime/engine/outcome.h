// How an operation went, as the exception to throw.
#pragma once

#include <exception>

#include "collectives/communicator.h"
#include "runtime/base/status_page.h"
#include "runtime/engine/epoch_end.h"

namespace hvd {

// Nothing when it is complete; Error when it was refused; CommFailure when the epoch broke (only
// after it is over).
std::exception_ptr error_of(const Operation& operation, const EpochEnd& end);

// Throws it to the program. When it is a CommFailure the status page says so from then on: only an
// end that comes after it can be a consequence. Any thread.
[[noreturn]] void tell(const std::exception_ptr& error, StatusPage& page);

}  // namespace hvd
