// How an operation went, as the exception to throw.
#pragma once

#include <exception>

#include "collectives/communicator.h"
#include "runtime/engine/epoch_end.h"

namespace hvd {

// Nothing when it is complete; Error when it was refused; CommFailure when the epoch broke (only
// after it is over).
std::exception_ptr error_of(const Operation& operation, const EpochEnd& end);

}  // namespace hvd
