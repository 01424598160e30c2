// What went wrong, in one line.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

// LibTorch's errors carry a stack trace, which is for whoever works on LibTorch.
inline std::string error_line(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  if (torch_error == nullptr) return error.what();
  const std::string text = torch_error->what_without_backtrace();
  return text.substr(0, text.find('\n'));
}
