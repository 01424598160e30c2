// A store in a file system that lacks something: calls of the C library answer here as they do
// there.
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>
#include <vector>

#include "cli/ship/ship_cleaning.h"
#include "cli/ship/ship_store.h"
#include "tests/cli/ship/ship_files.h"
#include "tests/support/catch.h"

namespace {

struct Lacks {
  bool locks = false, odd_seconds = false, modes = false, room_ahead = false, syncs = false,
       journal = false;
  nlink_t names_max = 0;  // 0: any number
};
Lacks lacks;

struct Synced {
  int begun = 0, bytes = 0, one = 0, all = 0;  // files, and whole file systems
} synced;
std::function<void()> on_sync;
std::function<void(const char* to)> on_link;

int fail(int error) {
  errno = error;
  return -1;
}

}  // namespace

extern "C" int flock(int fd, int operation) noexcept {
  return lacks.locks ? fail(ENOLCK) : int(syscall(SYS_flock, fd, operation));
}

extern "C" int fchmod(int fd, mode_t mode) noexcept {
  return lacks.modes ? 0 : int(syscall(SYS_fchmod, fd, mode));
}

extern "C" int futimens(int fd, const timespec times[2]) noexcept {
  timespec kept[2];
  if (times != nullptr) kept[0] = times[0], kept[1] = times[1];
  if (times != nullptr && lacks.odd_seconds) kept[1].tv_sec &= ~1;
  return int(syscall(SYS_utimensat, fd, nullptr, times == nullptr ? nullptr : kept, 0));
}

extern "C" int fallocate(int fd, int mode, off_t at, off_t bytes) {
  return lacks.room_ahead ? fail(EOPNOTSUPP) : int(syscall(SYS_fallocate, fd, mode, at, bytes));
}

extern "C" int link(const char* from, const char* to) noexcept {
  struct stat facts{};
  if (on_link) on_link(to);
  const bool full =
      lacks.names_max > 0 && lstat(from, &facts) == 0 && facts.st_nlink >= lacks.names_max;
  return full ? fail(EMLINK) : int(syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0));
}

// Not passed on: nothing here has to outlive the machine.
extern "C" int fsync(int) {
  ++synced.one;
  if (on_sync) on_sync();
  return lacks.syncs ? fail(EIO) : 0;
}

extern "C" int sync_file_range(int, off64_t, off64_t, unsigned flags) {
  ++(flags == SYNC_FILE_RANGE_WRITE ? synced.begun : synced.bytes);
  return lacks.syncs ? fail(EIO) : 0;
}

extern "C" int statfs(const char* path, struct statfs* facts) noexcept {
  const int result = int(syscall(SYS_statfs, path, facts));
  facts->f_type = lacks.journal ? NFS_SUPER_MAGIC : EXT4_SUPER_MAGIC;
  return result;
}

extern "C" int syncfs(int) noexcept {
  ++synced.all;
  return 0;
}

namespace hvd {
namespace {

class In {
 public:
  explicit In(Lacks what) {
    lacks = what;
    synced = {};
  }
  ~In() {
    lacks = {};
    on_sync = nullptr;
    on_link = nullptr;
  }
};

// Writes beyond so many bytes of a file fail, as on a full disk.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) : action_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, action_);
  }

 private:
  void (*const action_)(int);
  rlimit before_{};
};

}  // namespace

TEST_CASE("ship_store: a file system without locks takes files, and nothing is removed there") {
  const Place place;
  const In without({.locks = true});
  const proto::ShippedFile file = file_of("abcdef");
  std::string tree;
  for (int i = 0; i < 2; ++i) {
    ShipStore store(place.path);
    if (i == 0) take(store, "abcdef");
    UniqueFd lock;
    tree = store.tree({{"a", &file}}, lock);
    CHECK(text_of(tree + "/a") == "abcdef");
  }
  const proto::CleanReport::Store report = clean_store(place.path, -1, false);
  CHECK(report.trees() == 0);
  CHECK(report.state() == proto::CleanReport::Store::NO_LOCKS);
  CHECK(text_of(tree + "/a") == "abcdef");
}

TEST_CASE("ship_store: where marks do not stay on files, nothing is asked for") {
  const Place place;
  ShipStore store(place.path);
  for (const Lacks& what : {Lacks{.odd_seconds = true}, Lacks{.modes = true}}) {
    const In without(what);
    const proto::ShippedFile file = file_of("abcdef", true);
    bool asked = false;
    CHECK_THROWS_AS(
        store.take({{&file, "file"}}, [&] { asked = true; }, reader("abcdef")), NoPlace);
    CHECK_FALSE(asked);
    CHECK(entries(place.path) == 2);
  }
  take(store, "abcdef", true);
  CHECK(store.has(file_of("abcdef", true)));
}

TEST_CASE("ship_store: where room cannot be taken ahead and runs out, the next folder gets all") {
  const Place place, next;
  const std::string small = "small", large(1u << 20, 'x'), last = "last";
  const proto::ShippedFile files[] = {file_of(small), file_of(large), file_of(last)};
  const ShipStore::ReadSome read = reader(small + large + last + large + last, 100'000);
  {
    const In without({.room_ahead = true});
    const FileLimit full(200'000);
    ShipStore store(place.path);
    CHECK_THROWS_AS(
        store.take({{&files[0], "0"}, {&files[1], "1"}, {&files[2], "2"}}, [] {}, read), NoPlace);
    CHECK(entries(place.path) == 2);
  }
  ShipStore store(next.path);
  store.take({{&files[1], "1"}, {&files[2], "2"}}, [] {}, read);
  CHECK(store.has(files[1]));
  CHECK(store.has(files[2]));
}

TEST_CASE("ship_store: files get their names on disk, all on their way before one is awaited") {
  const Place place;
  const In here({});
  std::vector<proto::ShippedFile> files;
  std::vector<WantedFile> wanted;
  std::string bytes;
  for (int i = 0; i < 2500; ++i) {
    const std::string text = "file " + std::to_string(i);
    files.push_back(file_of(text));
    bytes += text;
  }
  for (const proto::ShippedFile& one : files) wanted.push_back({&one, "one"});
  ShipStore store(place.path);
  std::vector<int> named, begun, awaited;
  on_sync = [&] {
    named.push_back(entries(place.path + "/files"));
    begun.push_back(synced.begun);
    awaited.push_back(synced.bytes);
  };
  store.take(wanted, [] {}, reader(bytes, 1000));
  CHECK(named == std::vector<int>{0, 1000, 2000});
  CHECK(begun == std::vector<int>{1000, 2000, 2500});
  CHECK(awaited == std::vector<int>{999, 1998, 2497});
  CHECK(synced.one == 3);
  for (const proto::ShippedFile& one : files) CHECK(store.has(one));

  // A large one has its name before the next is awaited.
  const std::string large(9u << 20, 'x');
  const proto::ShippedFile large_file = file_of(large), small = file_of("small");
  int names = 0;
  const ShipStore::ReadSome all = reader(large + "small", 1u << 20);
  store.take(
      {{&large_file, "large"}, {&small, "small"}}, [] {},
      [&](char* to, size_t most) {
        const size_t n = all(to, most);
        names = entries(place.path + "/files");
        return n;
      });
  CHECK(names == 2501);
  CHECK(synced.one == 3 + 2);
  CHECK(synced.all == 0);  // others' writes are not waited for
}

TEST_CASE("ship_store: where there may be no journal each file is put on disk by itself") {
  const Place place;
  const In without({.journal = true});
  std::vector<proto::ShippedFile> files;
  std::vector<WantedFile> wanted;
  std::string bytes;
  for (int i = 0; i < 100; ++i) {
    files.push_back(file_of(std::string(1, char(i))));
    bytes += char(i);
  }
  for (const proto::ShippedFile& one : files) wanted.push_back({&one, "one"});
  ShipStore store(place.path);
  int named = 0;
  on_sync = [&] { named = entries(place.path + "/files"); };
  store.take(wanted, [] {}, reader(bytes));
  CHECK(synced.begun == 100);
  CHECK(synced.one == 100);
  CHECK(named == 0);
  CHECK(entries(place.path + "/files") == 100);
}

TEST_CASE("ship_store: what the disk does not take is named, and has no name there") {
  const Place place;
  ShipStore store(place.path);
  for (const size_t count : {1, 100}) {
    const In without({.syncs = true});
    std::vector<proto::ShippedFile> files;
    std::vector<WantedFile> wanted;
    for (size_t i = 0; i < count; ++i) files.push_back(file_of("abcdef"));
    for (const proto::ShippedFile& one : files) wanted.push_back({&one, "/data/a"});
    std::string bytes;
    for (size_t i = 0; i < count; ++i) bytes += "abcdef";
    try {
      store.take(wanted, [] {}, reader(bytes));
      FAIL("it was taken");
    } catch (const Error& error) {
      CHECK(error.what() ==
            "cannot keep \"/data/a\" in \"" + place.path + "\": Input/output error");
    }
    CHECK(entries(place.path + "/files") == 0);
  }
}

TEST_CASE("ship_store: a whole file that another host has put into the tree meanwhile stays") {
  const Place place;
  const In here({});
  ShipStore store(place.path);
  take(store, "abcdef");
  const proto::ShippedFile file = file_of("abcdef");
  UniqueFd lock;
  const std::string tree = store.tree({{"a", &file}}, lock);
  CHECK(unlink((tree + "/a").c_str()) == 0);
  struct stat theirs{}, seen{};
  on_link = [&](const char* to) {
    if (theirs.st_ino != 0) return;
    std::filesystem::copy_file(place.path + "/files/" + file.sum(), to);
    const UniqueFd fd(open(to, O_RDONLY | O_CLOEXEC));
    CHECK(mark(fd.get(), file.sum(), false));
    CHECK(fstat(fd.get(), &theirs) == 0);
  };
  CHECK(store.tree({{"a", &file}}, lock) == tree);
  CHECK(stat((tree + "/a").c_str(), &seen) == 0);
  CHECK(theirs.st_ino != 0);
  CHECK(seen.st_ino == theirs.st_ino);
}

TEST_CASE("ship_store: a file that can have no more names gets a copy for the next ones") {
  const Place place;
  const In with({.names_max = 4});
  ShipStore store(place.path);
  take(store, "abcdef", true);
  const proto::ShippedFile file = file_of("abcdef", true);
  ShipStore::Names names;
  for (int i = 0; i < 10; ++i) names[std::to_string(i)] = &file;
  UniqueFd lock;
  const std::string tree = store.tree(names, lock);
  for (int i = 0; i < 10; ++i) CHECK(text_of(tree + "/" + std::to_string(i)) == "abcdef");
  CHECK(store.has(file));
  CHECK(entries(place.path + "/files") == 1);
  CHECK(store.tree(names, lock) == tree);
  CHECK(entries(place.path) == 2);
}

}  // namespace hvd
