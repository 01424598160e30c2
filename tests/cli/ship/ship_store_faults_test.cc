// A store in a file system that lacks something: calls of the C library answer here as they do
// there.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <optional>

#include "cli/ship/ship_store.h"
#include "tests/cli/ship/ship_files.h"
#include "tests/support/catch.h"

namespace {

struct Lacks {
  bool locks = false, odd_seconds = false, modes = false, room_ahead = false;
};
Lacks lacks;

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

namespace hvd {
namespace {

class In {
 public:
  explicit In(Lacks what) { lacks = what; }
  ~In() { lacks = {}; }
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
  CHECK(clean_store(place.path, -1, false).trees == 0);
  CHECK(text_of(tree + "/a") == "abcdef");
}

TEST_CASE("ship_store: where marks do not stay on files, nothing is asked for") {
  const Place place;
  ShipStore store(place.path);
  for (const Lacks& what : {Lacks{.odd_seconds = true}, Lacks{.modes = true}}) {
    const In without(what);
    const proto::ShippedFile file = file_of("abcdef", true);
    bool asked = false;
    CHECK_THROWS_AS(store.take({&file}, [&] { asked = true; }, reader("abcdef")), NoPlace);
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
    CHECK_THROWS_AS(store.take({&files[0], &files[1], &files[2]}, [] {}, read), NoPlace);
    CHECK(entries(place.path) == 2);
  }
  ShipStore store(next.path);
  store.take({&files[1], &files[2]}, [] {}, read);
  CHECK(store.has(files[1]));
  CHECK(store.has(files[2]));
}

}  // namespace hvd
