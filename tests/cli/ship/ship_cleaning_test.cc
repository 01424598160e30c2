// A store in a folder of the test's: what `hvdrun clean` removes, and what it leaves alone.
#include "cli/ship/ship_cleaning.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>

#include "cli/ship/ship_store.h"
#include "tests/cli/ship/ship_files.h"
#include "tests/support/catch.h"

namespace {

long file_system = EXT4_SUPER_MAGIC;

}  // namespace

extern "C" int statfs(const char* path, struct statfs* facts) noexcept {
  const int result = int(syscall(SYS_statfs, path, facts));
  facts->f_type = file_system;
  return result;
}

namespace hvd {
namespace {

namespace fs = std::filesystem;
using Store = proto::CleanReport::Store;

constexpr int64_t kMonth = 30 * 24 * 3600;

void grow_old(const std::string& path) {
  const timespec then[2] = {{1'000'000'000, 0}, {1'000'000'000, 0}};
  utimensat(AT_FDCWD, path.c_str(), then, 0);
}

// Of one file, "shipped", in folders a and a/b; nobody uses it.
struct OldTree {
  OldTree() {
    ShipStore store(place.path);
    take(store, "shipped");
    UniqueFd lock;
    path = store.tree({{"a/file", &file}, {"a/b", nullptr}}, lock);
    grow_old(path);
  }

  const Place place;
  const proto::ShippedFile file = file_of("shipped");
  std::string path;
};

}  // namespace

TEST_CASE("ship_cleaning: what nobody uses goes, what is used or young stays") {
  const Place place;
  std::optional<ShipStore> store(place.path);
  take(*store, "shared");
  take(*store, "of the old one");
  take(*store, "of none");
  const proto::ShippedFile shared = file_of("shared"), old = file_of("of the old one"),
                           none = file_of("of none");
  UniqueFd used, unused;
  const std::string old_tree =
      store->tree({{"a", &shared}, {"b", &old}, {"c", &old}, {"d", nullptr}}, unused);
  const std::string young_tree = store->tree({{"a", &shared}}, used);
  grow_old(old_tree);
  store.reset();
  CHECK(clean_store(place.path, kMonth, false).trees() == 0);  // we use it
  unused.reset();
  const Store told = clean_store(place.path, kMonth, true);
  CHECK(told.trees() == 1);
  CHECK(told.bytes() == old.bytes());
  CHECK(text_of(old_tree + "/c") == "of the old one");
  const Store done = clean_store(place.path, kMonth, false);
  CHECK(done.state() == Store::CLEANED);
  CHECK(done.trees() == 1);
  CHECK(done.bytes() == old.bytes());
  CHECK(done.written_size() == 0);
  CHECK_FALSE(fs::exists(old_tree));
  CHECK(text_of(young_tree + "/a") == "shared");
  CHECK(entries(place.path) == 2);
  store.emplace(place.path);
  CHECK_FALSE(store->has(old));
  CHECK(store->has(shared));
  CHECK(store->has(none));  // of a job that was broken off just now, perhaps
  const Store nowhere = clean_store((place.folder.path() / "nothing").string(), 0, false);
  CHECK(nowhere.state() == Store::CLEANED);
  CHECK(nowhere.trees() == 0);
}

TEST_CASE("ship_cleaning: what ranks wrote stays, what was shipped beside it goes") {
  const OldTree old;
  std::ofstream(old.path + "/a/b/checkpoint") << "weights";
  std::ofstream(old.path + "/log") << "text";
  fs::create_symlink("checkpoint", old.path + "/a/b/latest");
  fs::create_directories(old.path + "/a/__pycache__");
  std::ofstream(old.path + "/a/__pycache__/main.cpython-311.pyc") << "compiled";
  grow_old(old.path);
  for (const bool dry_run : {true, false, false}) {
    const Store report = clean_store(old.place.path, kMonth, dry_run);
    CHECK(report.trees() == 0);
    CHECK(report.written_size() == 1);
    CHECK(report.written(0).tree() == old.path);
    CHECK(report.written(0).files() == 3);
    CHECK(report.written(0).bytes() == 7 + 4 + 10);
    CHECK(fs::exists(old.path + "/a/file") == dry_run);
    CHECK(fs::exists(old.path + "/a/__pycache__") == dry_run);
    CHECK(text_of(old.path + "/a/b/latest") == "weights");
    CHECK(text_of(old.path + "/log") == "text");
  }
  CHECK(entries(old.place.path + "/files") == 0);
  // The same job starts again, and finds it.
  ShipStore store(old.place.path);
  CHECK_FALSE(store.has(old.file));
  take(store, "shipped");
  UniqueFd lock;
  CHECK(store.tree({{"a/file", &old.file}, {"a/b", nullptr}}, lock) == old.path);
  CHECK(text_of(old.path + "/a/file") == "shipped");
  CHECK(text_of(old.path + "/a/b/checkpoint") == "weights");
}

TEST_CASE("ship_cleaning: a shipped file goes, though another has its name in the store, or none") {
  const OldTree old;
  const std::string at = old.path + "/a/file";
  int others = 0;
  SECTION("that of a job that took the same at once") {
    ShipStore store(old.place.path);
    take(store, "shipped");
    CHECK(entries(old.place.path + "/files") == 1);
  }
  SECTION("none, since a cleaning was broken off") {
    fs::remove(old.place.path + "/files/" + old.file.sum());
  }
  SECTION("and is in two trees") {
    {
      ShipStore store(old.place.path);
      UniqueFd lock;
      grow_old(store.tree({{"b", &old.file}, {"c", &old.file}}, lock));
    }
    fs::remove(old.place.path + "/files/" + old.file.sum());
    others = 1;
  }
  struct stat facts{};
  REQUIRE(stat(at.c_str(), &facts) == 0);
  CHECK(facts.st_nlink == (others == 0 ? 1 : 3));
  const Store report = clean_store(old.place.path, kMonth, false);
  CHECK(report.trees() == others + 1);
  CHECK(report.bytes() == old.file.bytes());
  CHECK(report.written_size() == 0);
  CHECK(entries(old.place.path + "/trees") == 0);
}

TEST_CASE("ship_cleaning: what bears a mark, but not that of its bytes, is not ours") {
  const OldTree old;
  const std::string at = old.path + "/data";
  std::ofstream(at) << "of 2001";
  chmod(at.c_str(), 0400);
  grow_old(at);
  grow_old(old.path);
  const Store report = clean_store(old.place.path, kMonth, false);
  CHECK(report.written_size() == 1);
  CHECK(report.written(0).files() == 1);
  CHECK(text_of(at) == "of 2001");
}

TEST_CASE("ship_cleaning: a shipped file that ranks wrote to is theirs, replaced or in place") {
  const OldTree old;
  const std::string at = old.path + "/a/file";
  SECTION("replaced") {
    std::ofstream(old.path + "/new") << "results";
    fs::rename(old.path + "/new", at);
  }
  SECTION("in place, by as many bytes") {
    chmod(at.c_str(), 0600);
    std::ofstream(at) << "results";
    chmod(at.c_str(), 0400);
  }
  grow_old(old.path);
  const Store report = clean_store(old.place.path, kMonth, false);
  CHECK(report.trees() == 0);
  CHECK(report.written_size() == 1);
  CHECK(report.written(0).files() == 1);
  CHECK(text_of(at) == "results");
}

TEST_CASE("ship_cleaning: of many trees that ranks wrote to some are named, all are counted") {
  const OldTree old;
  for (int i = 0; i < 14; ++i) {
    const std::string tree = old.place.path + "/trees/" + std::to_string(i);
    fs::create_directory(tree);
    std::ofstream(tree + "/log") << "text";
    grow_old(tree);
  }
  const Store report = clean_store(old.place.path, kMonth, false);
  CHECK(report.trees() == 1);
  CHECK(report.written_size() == 10);
  CHECK(report.more_written() == 4);
}

TEST_CASE(
    "ship_cleaning: a job that takes from the store is no reason to say that nothing is left") {
  const OldTree old;
  const ShipStore store(old.place.path);
  const Store report = clean_store(old.place.path, kMonth, false);
  CHECK(report.state() == Store::BUSY);
  CHECK(report.path() == old.place.path);
  CHECK(fs::exists(old.path));
}

TEST_CASE("ship_cleaning: nothing goes where other hosts may have jobs") {
  const OldTree old;
  file_system = NFS_SUPER_MAGIC;
  const Store report = clean_store(old.place.path, kMonth, false);
  file_system = EXT4_SUPER_MAGIC;
  CHECK(report.state() == Store::SHARED);
  CHECK(report.trees() == 1);
  CHECK(report.bytes() == old.file.bytes());
  CHECK(text_of(old.path + "/a/file") == "shipped");
}

TEST_CASE(
    "ship_cleaning: nothing is cleaned where somebody else has made what looks like a store") {
  const Place place;
  const fs::path home = place.folder.path() / "home", trap = fs::path(place.path).parent_path();
  fs::create_directories(home / "trees" / "work");
  fs::create_directories(home / "files");
  std::ofstream(home / "trees" / "work" / "thesis") << "years";
  fs::create_directories(home / "trees" / "empty");
  grow_old((home / "trees" / "work").string());
  grow_old((home / "trees" / "empty").string());
  fs::create_directory(trap);
  chmod(home.c_str(), 0700);
  SECTION("a link to a folder") { fs::create_directory_symlink(home, place.path); }
  SECTION("a link in it") {
    fs::create_directories(place.path + "/files");
    fs::create_directory_symlink(home / "trees", place.path + "/trees");
  }
  SECTION("a folder that others may write to") {
    fs::rename(home, place.path);
    fs::create_directory_symlink(place.path, home);
    chmod(trap.c_str(), 0777);
  }
  SECTION("a folder that others may change from above") {
    fs::rename(home, place.path);
    fs::create_directory_symlink(place.path, home);
    chmod(place.folder.path().c_str(), 0777);
  }
  const Store report = clean_store(place.path, kMonth, false);
  CHECK(report.state() == Store::UNSAFE);
  CHECK(report.trees() == 0);
  CHECK(text_of(home / "trees" / "work" / "thesis") == "years");
  CHECK(fs::exists(home / "trees" / "empty"));
}

}  // namespace hvd
