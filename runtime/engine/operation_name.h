// What an operation of the log may be called. Pure.
#pragma once

#include <string>

namespace hvd {

// Throws kInvalidArgument: there is none, it has a zero in it, or it is too long for the log.
void check_operation_name(const std::string& name);

}  // namespace hvd
