// Reads a whole file, up to a limit.
#pragma once

#include <string>
#include <string_view>

namespace hvd {

struct FileText {
  std::string bytes;
  int error = 0;  // errno of what failed; EFBIG when the file is longer than the limit
};

// A pipe is read to its end too.
FileText read_file(const std::string& path, size_t bytes_max);

// The bytes of a file that the user named behind `option`; `what` it is, "host file" say, is for
// messages. Throws kInvalidArgument when it cannot be read or is longer than the limit.
std::string read_given_file(const std::string& path, size_t bytes_max, std::string_view what,
                            std::string_view option);

}  // namespace hvd
