// What a failed system call is called, with the limit to raise where no descriptor was left.
#pragma once

#include <cerrno>
#include <exception>
#include <string>
#include <system_error>

#include "runtime/base/open_files.h"

namespace hvd {

inline std::string text_of(const std::exception& error) {
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  const bool none_left = system != nullptr && system->code().value() == EMFILE;
  return std::string(error.what()) + (none_left ? std::string("; ") + kRaiseOpenFiles : "");
}

}  // namespace hvd
