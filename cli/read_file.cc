#include "cli/read_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "cli/quoted.h"
#include "runtime/base/error.h"
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

std::string read_given_file(const std::string& path, size_t bytes_max, std::string_view what,
                            std::string_view option) {
  FileText text = read_file(path, bytes_max);
  if (text.error == EFBIG)
    throw Error(ErrorCode::kInvalidArgument, shell_word(path) + " is longer than the " +
                                                 std::to_string(bytes_max >> 20) +
                                                 " MiB of the longest " + std::string(what) +
                                                 "; name another by " + std::string(option));
  if (text.error != 0)
    throw Error(ErrorCode::kInvalidArgument, "the " + std::string(what) + " " + in_quotes(path) +
                                                 " cannot be read: " + std::strerror(text.error) +
                                                 "; check the path behind " + std::string(option));
  return std::move(text.bytes);
}

}  // namespace hvd
