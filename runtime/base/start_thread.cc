// Tells the limits on memory from those on threads by asking for a stack.
#include "runtime/base/start_thread.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

namespace hvd {
namespace {

size_t stack_bytes() {
  pthread_attr_t attributes;
  size_t bytes = 0;
  if (pthread_getattr_default_np(&attributes) != 0) return 0;
  pthread_attr_getstacksize(&attributes, &bytes);
  pthread_attr_destroy(&attributes);
  return bytes;
}

bool memory_for(size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return false;
  munmap(at, bytes);
  return true;
}

// "ulimit -v 60000" where there is such a limit; the shell counts memory by 1,024.
std::string limit_text(__rlimit_resource resource, const char* option) {
  rlimit limit;
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return std::string("ulimit ") + option + " " + std::to_string(limit.rlim_cur / 1024);
}

}  // namespace

std::string memory_shortage(const std::string& what) {
  const std::string space = limit_text(RLIMIT_AS, "-v");
  const std::string data = limit_text(RLIMIT_DATA, "-d");
  if (space.empty() && data.empty()) return what + " finds no memory; free some";
  return what + " finds no room within " + space + (space.empty() || data.empty() ? "" : ", ") +
         data + "; raise that";
}

std::string thread_shortage() {
  if (const size_t stack = stack_bytes(); !memory_for(stack))
    return memory_shortage("a stack of " + std::to_string(stack / 1024) + " KiB") +
           ", or lower ulimit -s";
  const std::string theirs = "pids.max or threads-max of the container or the machine";
  rlimit users;  // nothing tells which of them it was: root may be held by its own, too
  if (getrlimit(RLIMIT_NPROC, &users) != 0 || users.rlim_cur == RLIM_INFINITY)
    return theirs + " is reached; raise it";
  return "either ulimit -u (" + std::to_string(users.rlim_cur) + ") of this user, or " + theirs +
         ", is reached; raise it";
}

}  // namespace hvd
