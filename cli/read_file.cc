#include "cli/read_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/base/unique_fd.h"

namespace hvd {

FileText read_file(const std::string& path, size_t bytes_max) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return {"", errno};
  FileText text;
  char buffer[16'384];
  for (;;) {
    const ssize_t count = read(file.get(), buffer, sizeof buffer);
    if (count == 0) return text;
    if (count < 0) {
      if (errno == EINTR) continue;
      return {"", errno};
    }
    text.bytes.append(buffer, static_cast<size_t>(count));
    if (text.bytes.size() > bytes_max) return {"", EFBIG};
  }
}

}  // namespace hvd
