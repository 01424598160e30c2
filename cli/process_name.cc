#include "cli/process_name.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cstring>

namespace hvd {

void set_process_name(int argc, char** argv, const char* name) {
  prctl(PR_SET_NAME, name);
  if (argc < 1) return;
  const size_t bytes = size_t(argv[argc - 1] - argv[0]) + std::strlen(argv[argc - 1]);
  std::memset(argv[0], 0, bytes);
  std::memcpy(argv[0], name, std::min(bytes, std::strlen(name)));
}

}  // namespace hvd
