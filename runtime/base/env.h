// The only reader of the process's environment.
#pragma once

#include <optional>
#include <string>

namespace hvd::env {

// The value of NAME, or nothing when it is not set.
std::optional<std::string> get(const char* name);

// NAME as a whole decimal number. Nothing when unset or empty; throws kInvalidArgument, naming it,
// when it is anything else.
std::optional<long long> get_integer(const char* name);

// Removes NAME. Only before the first thread starts.
void unset(const char* name);

}  // namespace hvd::env
