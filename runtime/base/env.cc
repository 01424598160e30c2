#include "runtime/base/env.h"

#include <charconv>
#include <cstdlib>

#include "runtime/base/error.h"

namespace hvd::env {

std::optional<std::string> get(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

std::optional<long long> get_integer(const char* name) {
  const std::optional<std::string> text = get(name);
  if (!text || text->empty()) return std::nullopt;
  long long value = 0;
  const char* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc() || stop != end) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(name) + "=" + *text + " in the environment is not a whole number");
  }
  return value;
}

void unset(const char* name) { unsetenv(name); }

}  // namespace hvd::env
