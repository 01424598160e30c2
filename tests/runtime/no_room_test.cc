// What comes from other ranks and has no room on one: that one alone is told so.
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <vector>

#include "hvd/hvd.h"
#include "tests/runtime/rank_outcome.h"
#include "tests/support/catch.h"
#include "tests/support/host_job.h"
#include "tests/support/rank_program.h"

using namespace hvd;

namespace {

// So many bytes more may this process map.
void limit_room(rlim_t bytes) {
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  const rlimit limit{pages * rlim_t(sysconf(_SC_PAGESIZE)) + bytes, RLIM_INFINITY};
  expect(setrlimit(RLIMIT_AS, &limit) == 0);
}

constexpr size_t kBytes = 256u << 20;

const RankProgram no_room("no room for the root's bytes", [] {
  return guarded([] {
    init();
    std::vector<std::byte> mine(rank() == 0 ? kBytes : 1, std::byte{7});
    if (rank() == 1) limit_room(kBytes / 4);
    try {
      const std::vector<std::byte> bytes = broadcast_bytes(mine);
      expect(rank() != 1 && bytes.size() == kBytes && bytes.back() == std::byte{7});
    } catch (const CommFailure&) {
      expect(false);
    } catch (const Error& error) {
      expect(rank() == 1 && error.code() == ErrorCode::kUnavailable &&
             std::strstr(error.what(), "no room for a result of 268435456 bytes") != nullptr);
    }
    barrier();  // the world lives
    shutdown();
  });
});

}  // namespace

// A sanitizer's allocator ends the process where it has no room.
#if !defined(__SANITIZE_ADDRESS__)
TEST_CASE("no room: bytes of the root's that one rank cannot hold are its own error") {
  HostJob job({.ranks = 3, .program = "no room for the root's bytes"});
  check_all_finish(job, 3);
}
#endif
