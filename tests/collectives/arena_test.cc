#include "collectives/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "hvd/error.h"
#include "tests/support/catch.h"
#include "tests/support/left_out.h"

using namespace hvd;

namespace {

UniqueFd memory(size_t bytes) {
  UniqueFd fd(memfd_create("hvd-arena-test", MFD_CLOEXEC));
  REQUIRE(ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  return fd;
}

std::vector<UniqueFd> copies(const std::vector<UniqueFd>& pieces) {
  std::vector<UniqueFd> out;
  for (const UniqueFd& piece : pieces) out.emplace_back(fcntl(piece.get(), F_DUPFD_CLOEXEC, 0));
  return out;
}

std::vector<UniqueFd> pieces(int count, size_t bytes) {
  std::vector<UniqueFd> out;
  for (int k = 0; k < count; ++k) out.push_back(memory(bytes));
  return out;
}

constexpr size_t kBytes = 64 * 1024;

// Of the mapping that begins there, as the kernel tells.
size_t huge_bytes_at(const void* address) {
  char begin[32];
  std::snprintf(begin, sizeof begin, "%zx-", reinterpret_cast<size_t>(address));
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  while (std::getline(maps, line) && !line.starts_with(begin)) continue;
  while (std::getline(maps, line) && !line.starts_with("ShmemPmdMapped:")) continue;
  return line.empty() ? 0 : std::stoul(line.substr(line.find(':') + 1)) * 1024;
}

}  // namespace

TEST_CASE("arena: what one rank writes into its piece the others read") {
  const std::vector<UniqueFd> memories = pieces(2, kBytes);
  Segment zero(0, copies(memories), kBytes, 0, kBytes);
  Segment one(0, copies(memories), kBytes, 1, 0);
  one.populate(0, 0, kBytes);
  std::memcpy(zero.own() + 100, "hello", 6);
  CHECK(std::strcmp(reinterpret_cast<char*>(one.at(0) + 100), "hello") == 0);
  CHECK(one.own()[100] == std::byte{0});
  // Ranks of one process share the mapping.
  CHECK(zero.own() == one.at(0));
}

TEST_CASE("arena: finds whose memory an address is, to the byte") {
  Arena arena;
  CHECK_FALSE(arena.find(&arena, 1));
  for (uint32_t id : {0u, 2u})
    arena.add(std::make_shared<Segment>(id, pieces(2, kBytes), kBytes, 1, 0));
  CHECK(arena.has(2));
  CHECK_FALSE(arena.has(1));
  CHECK_FALSE(arena.has(3));
  std::byte* own = arena.segment(2)->own();
  CHECK(arena.find(own, kBytes) == ArenaAddress{2, 0});
  CHECK(arena.find(own + 8, kBytes - 8) == ArenaAddress{2, 8});
  CHECK(arena.find(own + kBytes, 0) == ArenaAddress{2, kBytes});
  CHECK_FALSE(arena.find(own + 8, kBytes - 7));
  CHECK_FALSE(arena.find(own, SIZE_MAX));
  // A peer's piece is nobody's own.
  CHECK_FALSE(arena.find(arena.segment(2)->at(0), 1));
  CHECK(arena.at(0, {2, 16}) == arena.segment(2)->at(0) + 16);
  arena.remove(2);
  CHECK_FALSE(arena.has(2));
  CHECK_FALSE(arena.find(own, 1));
}

TEST_CASE("arena: what is given back leaves every rank's memory, and what is kept stays") {
  const std::vector<UniqueFd> memories = pieces(2, kBytes);
  Segment zero(0, copies(memories), kBytes, 0, kBytes);
  zero.populate(1, 0, kBytes);
  std::fill(zero.own(), zero.own() + kBytes, std::byte{7});
  zero.give_back(8192);
  struct stat own, peer;
  REQUIRE(fstat(memories[0].get(), &own) == 0);
  REQUIRE(fstat(memories[1].get(), &peer) == 0);
  CHECK(own.st_blocks * 512 == 8192);
  CHECK(peer.st_blocks * 512 == kBytes);
  CHECK(zero.own()[8191] == std::byte{7});
  CHECK(zero.own()[8192] == std::byte{0});  // a late access takes a page
}

TEST_CASE("arena: where whole huge pages fit they are taken, and mapped by all") {
  constexpr size_t kHugePage = 2 << 20, kPopulated = 3 * kHugePage + 4096;
  constexpr size_t kLarge = kPopulated + kHugePage;
  const std::vector<UniqueFd> memories = pieces(1, kLarge);
  Segment segment(0, copies(memories), kLarge, 0, kPopulated);
  const size_t bytes = huge_bytes_at(segment.own());
  if (bytes == 0) {
    constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older headers do not name
    if (madvise(segment.own(), kHugePage, kCollapse) != 0 && errno == EINVAL)
      return note_left_out("huge pages", "Linux before 6.1");
    WARN("this machine has no huge page to give: its memory is in pieces");
    return;
  }
  CHECK(bytes <= 3 * kHugePage);
  CHECK(bytes % kHugePage == 0);
  CHECK(std::all_of(segment.own(), segment.own() + kPopulated,
                    [](std::byte one) { return one == std::byte{0}; }));
  struct stat facts;
  REQUIRE(fstat(memories[0].get(), &facts) == 0);
  CHECK(facts.st_blocks * 512 == kPopulated);  // no memory is taken that was not asked for

  segment.own()[kHugePage + 5] = std::byte{7};
  segment.give_back(kHugePage + 4096);
  REQUIRE(fstat(memories[0].get(), &facts) == 0);
  CHECK(segment.own()[kHugePage + 5] == std::byte{7});
  CHECK(segment.own()[2 * kHugePage] == std::byte{0});
  CHECK(facts.st_blocks * 512 <= 2 * int64_t{kHugePage});
}

TEST_CASE("arena: after the epoch the own piece stays and the peers' go") {
  auto segment = std::make_shared<Segment>(0, pieces(3, kBytes), kBytes, 1, kBytes);
  segment->own()[5] = std::byte{7};
  {
    Arena arena;
    arena.add(segment);
    CHECK(segment->at(2) != nullptr);
  }
  CHECK(segment->own()[5] == std::byte{7});
  CHECK(segment->at(0) == nullptr);
  CHECK(segment->at(2) == nullptr);
}

TEST_CASE("arena: a forked child has no part of it") {
  Segment segment(0, pieces(1, kBytes), kBytes, 0, kBytes);
  const int pipe_write = [&] {
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    static UniqueFd read_end;
    read_end.reset(ends[0]);
    return ends[1];
  }();
  UniqueFd write_end(pipe_write);
  const pid_t child = fork();
  if (child == 0) {
    // write() from memory that is not mapped fails with EFAULT and kills nobody.
    const ssize_t written = write(write_end.get(), segment.own(), 1);
    _exit(written < 0 && errno == EFAULT ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("arena: what a forked child has at the same address outlives the segment") {
  auto segment = std::make_unique<Segment>(0, pieces(1, kBytes), kBytes, 0, kBytes);
  const pid_t child = fork();
  if (child == 0) {
    std::byte* const at = segment->own();
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    if (mmap(at, kBytes, PROT_READ | PROT_WRITE, kFlags, -1, 0) != at) _exit(2);
    segment.reset();
    _exit(msync(at, kBytes, MS_ASYNC) == 0 ? 0 : 1);  // refused where nothing is mapped
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("arena: memory shorter than asked for is refused before anybody faults on it") {
  CHECK_THROWS_WITH(Segment(0, pieces(1, 4096), kBytes, 0, 0), Catch::Contains("65536"));
}
