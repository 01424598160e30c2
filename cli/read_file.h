// Reads a whole file, up to a limit.
#pragma once

#include <string>

namespace hvd {

struct FileText {
  std::string bytes;
  int error = 0;  // errno of what failed; EFBIG when the file is longer than the limit
};

// A pipe is read to its end too.
FileText read_file(const std::string& path, size_t bytes_max);

}  // namespace hvd
