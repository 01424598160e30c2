// A program that uses libhvd where memory is not shared as it should be, for the end-to-end tests:
// `apart_worker HOW RANK`. All ranks sum.
//
// - private: RANK's mappings of shared memory are its own, as below a checkpoint library
// - large: the same, but only of more than a page or two, segments for one
// - refused: RANK may map no shared memory, as in a sandbox
#include <errno.h>
#include <hvd/hvd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

namespace {

constexpr size_t kLarge = 64 << 10;

enum class Memory { kShared, kPrivate, kLargePrivate, kRefused } memory = Memory::kShared;

}  // namespace

// In place of the C library's, for libhvd too.
extern "C" [[gnu::visibility("default")]] void* mmap(void* address, size_t bytes, int protection,
                                                     int flags, int fd, off_t offset) noexcept {
  if (flags == MAP_SHARED && memory == Memory::kRefused) {
    errno = EPERM;
    return MAP_FAILED;
  }
  if (flags == MAP_SHARED &&
      (memory == Memory::kPrivate || (memory == Memory::kLargePrivate && bytes >= kLarge)))
    flags = MAP_PRIVATE;
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, bytes, protection, flags, fd, offset));
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const char* rank = std::getenv("HVD_RANK");
  const std::string how = argv[1];
  if (rank != nullptr && std::string(argv[2]) == rank)
    memory = how == "private" ? Memory::kPrivate
             : how == "large" ? Memory::kLargePrivate
                              : Memory::kRefused;
  try {
    hvd::init();
    std::vector<float> x(1000, 1);
    hvd::allreduce_(std::span(x), {.op = hvd::ReduceOp::kSum});
    std::puts(x[7] == float(hvd::size()) ? "right" : "wrong");
    hvd::shutdown();
    return 0;
  } catch (const hvd::Error& error) {
    std::fprintf(stderr, "worker: %s\n", error.what());
    return 3;
  }
}
