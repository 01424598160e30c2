#include "cli/ship/ship_store.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <list>
#include <map>
#include <span>
#include <utility>

#include "cli/pipe.h"
#include "cli/quoted.h"
#include "cli/ship/folders.h"
#include "rendezvous/digest.h"
#include "runtime/base/deadline.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

namespace fs = std::filesystem;

constexpr size_t kReadBytes = 256u << 10;
constexpr uint64_t kBehindMax = 64u << 20;
constexpr uint64_t kArrivedBytesMax = 8u << 20;  // a broken start has them sent again
constexpr size_t kArrivedMax = 1000, kFewArrived = 16;
constexpr uint64_t kSpareBytes = 1u << 20;  // for folders and names
constexpr size_t kShownBytesMax = 200;
constexpr std::chrono::seconds kLockMax{10};  // who cleans looks at facts and renames, no more
constexpr int kLockAgainMs = 10;
constexpr int kLinkTriesMax = 100;

Error cannot(const std::string& what) {
  return Error(ErrorCode::kUnavailable, "cannot " + what + ": " + error_text(errno));
}

NoPlace no_place(int error) { return NoPlace(error_text(error)); }

bool is_full(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

// Another folder may have what this one lacks: room.
[[noreturn]] void give_up(const std::string& what) {
  if (is_full(errno)) throw no_place(errno);
  throw cannot(what);
}

bool is_this(const std::string& path, const proto::ShippedFile& file) {
  struct stat facts{};
  return lstat(path.c_str(), &facts) == 0 && uint64_t(facts.st_size) == file.bytes() &&
         is_marked(facts, file.sum(), file.executable());
}

bool mark(int fd, const proto::ShippedFile& file) {
  return hvd::mark(fd, file.sum(), file.executable());
}

UniqueFd open_arrival(const std::string& path) {
  return UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

// On disk, but for what the file system knows of them. False: errno says why.
bool await_bytes(int fd) {
  constexpr unsigned kAll =
      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  if (sync_file_range(fd, 0, 0, kAll) == 0) return true;
  return (errno == ENOSYS || errno == EPERM) && fsync(fd) == 0;  // in a container, say
}

void make_folders(const std::string& path) {
  std::error_code failed;
  fs::create_directories(path, failed);
  if (failed) throw NoPlace(hvd::in_quotes(path, kShownBytesMax) + ": " + failed.message());
}

bool write_all(int fd, const char* bytes, size_t count) {
  while (count > 0) {
    const ssize_t n = write(fd, bytes, count);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    bytes += n;
    count -= size_t(n);
  }
  return true;
}

// So many bytes of the file system, given back piece by piece for the files that were awaited.
class Room {
 public:
  Room(const std::string& path, uint64_t bytes)
      : scratch_(path), fd_(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) {
    if (!fd_) throw no_place(errno);
    struct statvfs facts{};
    if (fstatvfs(fd_.get(), &facts) != 0) throw no_place(errno);
    if ((facts.f_flag & ST_NOEXEC) != 0) throw NoPlace("programs cannot be run there (noexec)");
    try_out(path);
    if (uint64_t(facts.f_bavail) * facts.f_frsize < bytes + kSpareBytes) throw no_place(ENOSPC);
    if (bytes == 0) return;
    if (fallocate(fd_.get(), 0, 0, off_t(bytes)) == 0)
      held_ = bytes;
    else if (is_full(errno))  // of a quota, say; others mean that this cannot be asked
      throw no_place(errno);
  }
  void give_back(uint64_t bytes) {
    held_ -= std::min(held_, bytes);
    if (ftruncate(fd_.get(), off_t(held_)) != 0) held_ = 0;
  }

 private:
  // Before anything has come: what makes a file whole has to stay on it, and a tree is made of
  // second names.
  void try_out(const std::string& path) const {
    proto::ShippedFile nothing;
    nothing.set_sum("0000001");  // some file systems have even seconds alone
    nothing.set_executable(true);
    if (!mark(fd_.get(), nothing) || !is_this(path, nothing))
      throw NoPlace("its file system does not keep the modes and times of files");
    const Scratch second(path + "2");
    if (::link(path.c_str(), second.path().c_str()) != 0)
      throw NoPlace("its file system gives a file no second name");
  }

  Scratch scratch_;
  const UniqueFd fd_;
  uint64_t held_ = 0;
};

// False: somebody holds it alone for too long. A file system without locks does not matter: nothing
// is removed there either.
bool lock_shared(int fd) {
  for (const Deadline deadline = Deadline::in(kLockMax); !deadline.passed();
       poll(nullptr, 0, kLockAgainMs))
    if (flock(fd, LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK) return true;
  return false;
}

}  // namespace

std::vector<std::string> ship_places() {
  std::vector<std::string> places, temporary;
  const auto home = env::get("HOME");
  if (home && home->starts_with('/')) places.push_back(*home + "/.cache/hvdrun/shipped");
  for (const std::string& folder :
       {env::get("TMPDIR").value_or(""), std::string("/var/tmp"), std::string("/tmp")})
    if (folder.starts_with('/')) temporary.push_back(folder);
  for (const std::string& folder : distinct_folders(temporary))
    places.push_back(folder + "/hvdrun-" + std::to_string(geteuid()) + "/shipped");
  return places;
}

ShipStore::ShipStore(const std::string& folder) {
  const std::string above = folder_above(folder);
  // ~/.cache is made where there is a home, and no temporary folder is.
  if (access(above.c_str(), F_OK) != 0 &&
      (!above.ends_with("/.cache") || mkdir(above.c_str(), 0700) != 0))
    throw no_place(errno);
  folder_ = way_to_store(folder);
  for (const std::string& one : own_folders(folder_)) {
    if (mkdir(one.c_str(), 0700) != 0 && errno != EEXIST) throw no_place(errno);
    check_own(one);
  }
  lock_ = open_folder(folder_);
  if (!lock_) throw no_place(errno);
  if (!lock_shared(lock_.get())) throw NoPlace("it is being cleaned, and that does not end");
}

std::string ShipStore::new_path() const { return new_in(folder_); }

std::string ShipStore::path_of(const proto::ShippedFile& file) const {
  return folder_ + "/files/" + file.sum() + (file.executable() ? "x" : "");
}

bool ShipStore::has(const proto::ShippedFile& file) const { return is_this(path_of(file), file); }

void ShipStore::cannot_keep(const WantedFile& wanted) const {
  give_up("keep " + hvd::in_quotes(wanted.name, kShownBytesMax) + " in " +
          hvd::in_quotes(folder_, kShownBytesMax));
}

// With all their bytes, and not on disk yet.
struct ShipStore::Arrivals {
  struct One {
    One(const WantedFile& wanted, std::string path) : file(wanted), scratch(std::move(path)) {}
    const WantedFile& file;
    Scratch scratch;
  };
  std::list<One> all;
  uint64_t bytes = 0;
};

void ShipStore::take(const std::vector<WantedFile>& files, const std::function<void()>& ask,
                     const ReadSome& read) {
  uint64_t left = 0;
  for (const WantedFile& one : files) left += one.file->bytes();
  Room room(new_path(), left);
  if (left > 0) ask();
  const ReadSome counted = [&](char* bytes, size_t most) {
    const size_t n = read(bytes, most);
    left -= n;
    return n;
  };
  try {
    Arrivals arrivals;
    for (const WantedFile& one : files) {
      room.give_back(one.file->bytes());
      if (arrivals.bytes + one.file->bytes() > kArrivedBytesMax ||
          arrivals.all.size() == kArrivedMax)
        settle(arrivals);
      take_one(one, counted, arrivals);
    }
    settle(arrivals);
  } catch (const NoPlace&) {
    // What was asked for comes all the same, and must not be taken for what is asked for next.
    for (std::vector<char> bytes(kReadBytes); left > 0;)
      counted(bytes.data(), size_t(std::min<uint64_t>(left, bytes.size())));
    throw;
  }
}

void ShipStore::take_one(const WantedFile& wanted, const ReadSome& read, Arrivals& arrivals) {
  const std::string path = new_path();
  arrivals.all.emplace_back(wanted, path);
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd) cannot_keep(wanted);
  Sha256 sum;
  uint64_t behind = 0;  // bytes that may not be on disk yet
  std::vector<char> bytes(kReadBytes);
  for (uint64_t left = wanted.file->bytes(); left > 0;) {
    const size_t n = read(bytes.data(), size_t(std::min<uint64_t>(left, bytes.size())));
    if (!write_all(fd.get(), bytes.data(), n)) cannot_keep(wanted);
    sum.add(std::as_bytes(std::span(bytes.data(), n)));
    left -= n;
    // A disk that is slower than the line holds up the sender, who sees how far it is.
    behind += n;
    if (behind < kBehindMax) continue;
    if (!await_bytes(fd.get())) cannot_keep(wanted);
    behind = 0;
  }
  if (sum.hex() != wanted.file->sum())
    throw Error(ErrorCode::kUnavailable, hvd::in_quotes(wanted.name, kShownBytesMax) +
                                             " arrived with another SHA-256 sum than hvdrun had "
                                             "read; start again");
  if (!mark(fd.get(), *wanted.file)) cannot_keep(wanted);
  arrivals.bytes += wanted.file->bytes();
}

// On disk before they have their names: what is found there later is whole, whatever happens to the
// host. All are on their way before one is waited for, since a disk takes as long for many as for
// one; what others have written is not waited for, as by syncfs(), nor is an error lost, as by that
// of Linux before 5.8. fsync() of each takes tens of times as long. So of many it is asked for the
// bytes, and of the last one for the journal, behind which no name comes to the disk; where there
// may be none, in a file system of the network say, each is asked. A name that is lost is one to be
// asked for again.
void ShipStore::settle(Arrivals& arrivals) {
  if (arrivals.all.empty()) return;
  const bool each = arrivals.all.size() <= kFewArrived || other_hosts_may_use(folder_);
  for (const Arrivals::One& one : arrivals.all)
    if (const UniqueFd fd = open_arrival(one.scratch.path()); fd)
      sync_file_range(fd.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
  for (const Arrivals::One& one : arrivals.all) {
    const UniqueFd fd = open_arrival(one.scratch.path());
    const bool whole = each || &one == &arrivals.all.back();
    if (!fd || !(whole ? fsync(fd.get()) == 0 : await_bytes(fd.get()))) cannot_keep(one.file);
  }
  for (Arrivals::One& one : arrivals.all)
    if (!one.scratch.keep_as(path_of(*one.file.file))) cannot_keep(one.file);
  arrivals.all.clear();
  arrivals.bytes = 0;
}

bool ShipStore::link(const proto::ShippedFile& file, const std::string& path) {
  for (int i = 0; i < kLinkTriesMax; ++i) {
    if (::link(path_of(file).c_str(), path.c_str()) == 0) return true;
    if (errno == EEXIST) return false;
    // One that another job took replaced it between the kernel's look at the name and at the file.
    if (errno == ENOENT && has(file)) continue;
    if (errno != EMLINK) break;
    copy(file);
  }
  give_up("use what was shipped to " + hvd::in_quotes(folder_, kShownBytesMax));
}

// In its own place: a file system gives a file so many names, 65,000 say, and the older trees keep
// theirs.
void ShipStore::copy(const proto::ShippedFile& file) {
  const std::string path = path_of(file);
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) give_up("read " + hvd::in_quotes(path, kShownBytesMax));
  take(
      {{&file, path}}, [] {},
      [&](char* bytes, size_t most) {
        const ssize_t n = read(fd.get(), bytes, most);
        if (n <= 0) throw cannot("read " + hvd::in_quotes(path, kShownBytesMax));
        return size_t(n);
      });
}

void ShipStore::fill(const std::string& tree, const Names& names) {
  for (const auto& [path, file] : names) {
    const std::string at = tree + "/" + path;
    if (file != nullptr && is_this(at, *file)) continue;
    make_folders(file == nullptr ? at : fs::path(at).parent_path().string());
    // Where another job has put it there meanwhile it stays: programs on other hosts that run it
    // from a network's file system would lose it.
    if (file == nullptr || link(*file, at) || is_this(at, *file)) continue;
    const Scratch same(new_path());
    link(*file, same.path());
    // Leaves both names where another job has done it meanwhile.
    if (::rename(same.path().c_str(), at.c_str()) != 0)
      throw NoPlace(hvd::in_quotes(at, kShownBytesMax) + " is in the way: " + error_text(errno));
  }
}

std::string ShipStore::tree(const Names& names, UniqueFd& lock) {
  Sha256 sum;
  for (const auto& [path, file] : names) {
    const std::string line =
        path + '\0' + (file == nullptr ? "" : fs::path(path_of(*file)).filename().string()) + '\n';
    sum.add(std::as_bytes(std::span(line)));
  }
  const std::string path = folder_ + "/trees/" + sum.hex();
  lock = open_folder(path);
  if (!lock) {
    Scratch made(new_path());
    make_folders(made.path());
    fill(made.path(), names);
    made.keep_as(path);  // if no other job has made it meanwhile
    lock = open_folder(path);
  }
  if (!lock) give_up("put what was shipped in its place");
  if (!lock_shared(lock.get())) throw NoPlace("a tree of it is locked, and that does not end");
  futimens(lock.get(), nullptr);  // it is used: `hvdrun clean` removes what is not
  fill(path, names);
  return path;
}

}  // namespace hvd
