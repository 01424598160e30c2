// What an operation may be called. Pure.
#pragma once

#include <string_view>

namespace hvd {

// Throws kInvalidArgument: there is none, it has a zero in it, or it is too long for the log.
void check_operation_name(std::string_view name);

}  // namespace hvd
