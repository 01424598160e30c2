#include "collectives/memory_limit.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "collectives/arena.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace hvd;

namespace {

void write(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

}  // namespace

TEST_CASE("memory limit: a group with room, and groups without limits, are passed by") {
  TemporaryDirectory directory;
  const std::filesystem::path& root = directory.path();
  write(root / "proc/self/cgroup", "0::/a/b\n");
  write(root / "cg/a/b/memory.max", "max\n");
  write(root / "cg/a/b/memory.current", "1000\n");
  write(root / "cg/a/memory.max", "5000\n");
  write(root / "cg/a/memory.current", "1000\n");
  CHECK_FALSE(tightest_memory_limit(4000, root / "proc", root / "cg"));
}

TEST_CASE("memory limit: the first group upwards that has no room is named with its figures") {
  TemporaryDirectory directory;
  const std::filesystem::path& root = directory.path();
  write(root / "proc/self/cgroup", "0::/a/b\n");
  write(root / "cg/a/b/memory.max", "max\n");
  write(root / "cg/a/memory.max", "5000\n");
  write(root / "cg/a/memory.current", "1500\n");
  write(root / "cg/a/memory.stat", "anon 500\ninactive_file 200\nactive_file 300\n");
  CHECK_FALSE(tightest_memory_limit(4000, root / "proc", root / "cg"));
  const auto limit = tightest_memory_limit(4001, root / "proc", root / "cg");
  REQUIRE(limit);
  CHECK(limit->where == "control group /a");
  CHECK(limit->limit_bytes == 5000);
  CHECK(limit->used_bytes == 1000);
}

TEST_CASE("memory limit: version 1 keeps its numbers elsewhere") {
  TemporaryDirectory directory;
  const std::filesystem::path& root = directory.path();
  write(root / "proc/self/cgroup", "7:cpu,memory:/job\n3:pids:/job\n0::/\n");
  write(root / "cg/memory/job/memory.limit_in_bytes", "100\n");
  write(root / "cg/memory/job/memory.usage_in_bytes", "90\n");
  CHECK(tightest_memory_limit(11, root / "proc", root / "cg")->where == "control group /job");
  CHECK_FALSE(tightest_memory_limit(10, root / "proc", root / "cg"));
  write(root / "cg/memory/job/memory.stat", "total_inactive_file 3\ntotal_active_file 4\n");
  CHECK_FALSE(tightest_memory_limit(17, root / "proc", root / "cg"));
  CHECK(tightest_memory_limit(18, root / "proc", root / "cg")->where == "control group /job");
  write(root / "cg/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK_FALSE(tightest_memory_limit(uint64_t{1} << 50, root / "proc", root / "cg"));
}

TEST_CASE("memory limit: without one the machine's memory is the limit, its swap space included") {
  TemporaryDirectory directory;
  const std::filesystem::path& root = directory.path();
  write(root / "proc/self/cgroup", "0::/a\n");
  write(root / "proc/meminfo",
        "MemTotal:    1000 kB\nMemFree:      10 kB\nMemAvailable:     600 kB\n"
        "HugePages_Total:       0\nSwapTotal:     50 kB\nSwapFree:       40 kB\n");
  CHECK_FALSE(tightest_memory_limit(640 * 1024, root / "proc", root / "cg"));
  const auto limit = tightest_memory_limit(640 * 1024 + 1, root / "proc", root / "cg");
  REQUIRE(limit);
  CHECK(limit->where == "this machine");
  CHECK(limit->limit_bytes == 1050 * 1024);
  CHECK(limit->used_bytes == 410 * 1024);
  CHECK_THROWS_WITH(Segment::check_headroom(size_t{1} << 35, root / "proc", root / "cg"),
                    "cannot take 34359738368 bytes of shared memory: of the 1075200 bytes of this "
                    "machine 419840 are in use; ask for less, or start fewer ranks on this host");
  write(root / "cg/a/memory.max", "5000\n");  // the tighter one is named first
  write(root / "cg/a/memory.current", "1000\n");
  CHECK(tightest_memory_limit(1 << 30, root / "proc", root / "cg")->where == "control group /a");
}

TEST_CASE("memory limit: no control groups, no limit") {
  TemporaryDirectory directory;
  CHECK_FALSE(tightest_memory_limit(uint64_t{1} << 50, directory.path() / "none",
                                    directory.path() / "none"));
}
