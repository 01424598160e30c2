#include "runtime/base/sealed_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U  // Linux 6.3
#endif

namespace hvd {
namespace {

[[noreturn]] void fail(int error, const char* what) {
  throw std::system_error(error, std::generic_category(), what);
}

}  // namespace

UniqueFd make_sealed_memory(const char* name, uint64_t bytes) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  // Some systems take no memory that may be executed (sysctl vm.memfd_noexec).
  UniqueFd fd(memfd_create(name, kFlags | MFD_NOEXEC_SEAL));
  if (!fd && errno == EINVAL) fd.reset(memfd_create(name, kFlags));  // an older kernel
  if (!fd) fail(errno, "memfd_create");
  // Looked at first: beyond it ftruncate() does not fail, it ends the program by SIGXFSZ.
  rlimit largest{};
  if (getrlimit(RLIMIT_FSIZE, &largest) == 0 && bytes > largest.rlim_cur)
    fail(EFBIG, "ftruncate beyond ulimit -f");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) fail(errno, "ftruncate");
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    fail(errno, "seal a memfd");
  return fd;
}

uint64_t segment_bytes_most() {
  return 2 * static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

std::string outside_limit(const std::string& what, uint64_t bytes_most) {
  return what + " is outside the limit of " + std::to_string(bytes_most) +
         " (twice this machine's memory)";
}

}  // namespace hvd
