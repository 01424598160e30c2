#include "cli/look.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace hvd {

bool may(const std::string& path, int mode) {
  return faccessat(AT_FDCWD, path.c_str(), mode, AT_EACCESS) == 0;
}

Look look_at(const std::string& path) {
  struct stat facts;
  if (stat(path.c_str(), &facts) != 0) return {.error = errno};
  return {.is_directory = S_ISDIR(facts.st_mode),
          .is_socket = S_ISSOCK(facts.st_mode),
          .may_execute = may(path, X_OK)};
}

}  // namespace hvd
