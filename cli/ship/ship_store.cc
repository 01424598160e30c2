#include "cli/ship/ship_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <set>
#include <span>
#include <utility>

#include "cli/pipe.h"
#include "rendezvous/digest.h"
#include "runtime/base/deadline.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

namespace fs = std::filesystem;

constexpr size_t kReadBytes = 256u << 10;
constexpr int64_t kStampFirst = 946'684'800;  // 2000-01-01, and up to 8.5 years later
constexpr uint64_t kSpareBytes = 1u << 20;    // for folders and names
constexpr int64_t kScrapS = 24 * 3600;
constexpr int kTriesMax = 3;
constexpr const char* kNew = "new.";

Error cannot(const std::string& what) {
  return Error(ErrorCode::kUnavailable, "cannot " + what + ": " + error_text(errno));
}

NoPlace no_place(int error) { return NoPlace(error_text(error)); }

bool is_full(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

// A time that nothing but this puts on a file.
timespec stamp_of(const proto::ShippedFile& file) {
  const std::string digits = file.sum().substr(0, 7);
  return {kStampFirst + std::strtol(digits.c_str(), nullptr, 16), 0};
}

mode_t mode_of(const proto::ShippedFile& file) { return file.executable() ? 0500 : 0400; }

bool is_this(const std::string& path, const proto::ShippedFile& file) {
  struct stat facts{};
  const timespec stamp = stamp_of(file);
  return lstat(path.c_str(), &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_uid == geteuid() &&
         (facts.st_mode & 07777) == mode_of(file) && uint64_t(facts.st_size) == file.bytes() &&
         facts.st_mtim.tv_sec == stamp.tv_sec && facts.st_mtim.tv_nsec == 0;
}

// Ours alone: in a place where anybody may write, what somebody else made there is not entered.
void make_own(const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) throw no_place(errno);
  struct stat facts{};
  if (lstat(folder.c_str(), &facts) != 0) throw no_place(errno);
  if (!S_ISDIR(facts.st_mode) || facts.st_uid != geteuid() || (facts.st_mode & 022) != 0)
    throw NoPlace("it is there, and others may write to it");
}

void make_folders(const std::string& path) {
  std::error_code failed;
  fs::create_directories(path, failed);
  if (failed) throw no_place(failed.value());
}

void write_all(int fd, const char* bytes, size_t count) {
  while (count > 0) {
    const ssize_t n = write(fd, bytes, count);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw cannot("keep what was shipped");
    bytes += n;
    count -= size_t(n);
  }
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
  Scratch scratch_;
  const UniqueFd fd_;
  uint64_t held_ = 0;
};

bool lock_shared(int fd) { return flock(fd, LOCK_SH | LOCK_NB) == 0; }

bool is_older(const struct stat& facts, int64_t seconds) {
  return time(nullptr) - facts.st_mtim.tv_sec > seconds;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> all;
  std::error_code unreadable;
  for (fs::directory_iterator one(folder, unreadable), end; !unreadable && one != end;
       one.increment(unreadable))
    all.push_back(one->path().filename().string());
  return all;
}

}  // namespace

std::vector<std::string> ship_places() {
  std::vector<std::string> places;
  const auto home = env::get("HOME");
  if (home && home->starts_with('/')) places.push_back(*home + "/.cache/hvdrun/shipped");
  const auto temporary = env::get("TMPDIR");
  for (const std::string& folder :
       {temporary.value_or(""), std::string("/var/tmp"), std::string("/tmp")})
    if (folder.starts_with('/'))
      places.push_back(folder + "/hvdrun-" + std::to_string(geteuid()) + "/shipped");
  return places;
}

Scratch::~Scratch() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

bool Scratch::keep_as(const std::string& path) {
  if (::rename(path_.c_str(), path.c_str()) != 0) return false;
  path_.clear();
  return true;
}

ShipStore::ShipStore(std::string folder) : folder_(std::move(folder)) {
  const std::string parent = fs::path(folder_).parent_path().string();
  const std::string above = fs::path(parent).parent_path().string();
  if (access(above.c_str(), F_OK) != 0) {
    // ~/.cache is made where there is a home, and no temporary folder is.
    if (!above.ends_with("/.cache") || mkdir(above.c_str(), 0700) != 0) throw no_place(errno);
  }
  make_own(parent);
  make_own(folder_);
  make_own(folder_ + "/files");
  make_own(folder_ + "/trees");
}

std::string ShipStore::new_path() const {
  unsigned long long number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number)
    throw Error(ErrorCode::kUnavailable, "the system gives no random bytes");
  char text[24];
  std::snprintf(text, sizeof text, "%s%016llx", kNew, number);
  return folder_ + "/" + text;
}

std::string ShipStore::path_of(const proto::ShippedFile& file) const {
  return folder_ + "/files/" + file.sum() + (file.executable() ? "x" : "");
}

bool ShipStore::has(const proto::ShippedFile& file) const { return is_this(path_of(file), file); }

void ShipStore::take(const std::vector<const proto::ShippedFile*>& files,
                     const std::function<void()>& ask, const ReadSome& read) {
  uint64_t bytes = 0;
  for (const proto::ShippedFile* one : files) bytes += one->bytes();
  Room room(new_path(), bytes);
  if (bytes > 0) ask();
  for (const proto::ShippedFile* one : files) {
    room.give_back(one->bytes());
    take_one(*one, read);
  }
}

void ShipStore::take_one(const proto::ShippedFile& file, const ReadSome& read) {
  Scratch scratch(new_path());
  const UniqueFd fd(open(scratch.path().c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd) throw cannot("keep what was shipped");
  Sha256 sum;
  std::vector<char> bytes(kReadBytes);
  for (uint64_t left = file.bytes(); left > 0;) {
    const size_t n = read(bytes.data(), size_t(std::min<uint64_t>(left, bytes.size())));
    write_all(fd.get(), bytes.data(), n);
    sum.add(std::as_bytes(std::span(bytes.data(), n)));
    left -= n;
  }
  if (sum.hex() != file.sum())
    throw Error(ErrorCode::kUnavailable, "it has another SHA-256 sum than hvdrun had read");
  const timespec times[2] = {{0, UTIME_NOW}, stamp_of(file)};
  if (fchmod(fd.get(), mode_of(file)) != 0 || futimens(fd.get(), times) != 0 ||
      fsync(fd.get()) != 0 || !scratch.keep_as(path_of(file)))
    throw cannot("keep what was shipped");
}

void ShipStore::link(const proto::ShippedFile& file, const std::string& path) const {
  if (::link(path_of(file).c_str(), path.c_str()) != 0) {
    if (errno == EPERM || errno == EOPNOTSUPP || errno == EMLINK)
      throw NoPlace("its file system gives a file no second name");
    throw cannot("use what was shipped");
  }
}

bool ShipStore::is_whole(const std::string& tree, const Names& names) const {
  for (const auto& [path, file] : names) {
    const std::string at = tree + "/" + path;
    struct stat facts{};
    const bool there = file == nullptr ? lstat(at.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode)
                                       : is_this(at, *file);
    if (!there) return false;
  }
  return true;
}

void ShipStore::fill(const std::string& tree, const Names& names) const {
  if (mkdir(tree.c_str(), 0700) != 0) throw no_place(errno);
  for (const auto& [path, file] : names) {
    const std::string at = tree + "/" + path;
    make_folders(file == nullptr ? at : fs::path(at).parent_path().string());
    if (file != nullptr) link(*file, at);
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
  for (int i = 0; i < kTriesMax; ++i) {
    lock.reset(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (lock && lock_shared(lock.get()) && is_whole(path, names)) {
      futimens(lock.get(), nullptr);  // it is used: `hvdrun clean` removes what is not
      return path;
    }
    Scratch made(new_path()), damaged(new_path());
    fill(made.path(), names);
    // One that was damaged makes way, and so does none that another job has made meanwhile: that
    // is looked at next.
    if (lock) rename(path.c_str(), damaged.path().c_str());
    made.keep_as(path);
  }
  throw cannot("put what was shipped in its place");
}

ShipRemoval clean_store(const std::string& folder, int64_t unused_s, bool dry_run) {
  ShipRemoval removal;
  std::set<ino_t> unused;  // files that the removed ones had
  for (const std::string& name : names_in(folder + "/trees")) {
    const std::string path = folder + "/trees/" + name;
    const UniqueFd lock(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    struct stat facts{};
    if (!lock || fstat(lock.get(), &facts) != 0 || facts.st_uid != geteuid() ||
        !is_older(facts, unused_s) || flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
      continue;
    std::error_code failed;
    for (fs::recursive_directory_iterator one(path, failed), end; !failed && one != end;
         one.increment(failed)) {
      struct stat file{};
      if (lstat(one->path().c_str(), &file) != 0 || !S_ISREG(file.st_mode)) continue;
      if (file.st_nlink == 2 && unused.insert(file.st_ino).second)
        removal.bytes += uint64_t(file.st_size);
    }
    ++removal.trees;
    if (!dry_run) fs::remove_all(path, failed);
  }
  const time_t now = time(nullptr);
  for (const std::string& name : names_in(folder + "/files")) {
    const std::string path = folder + "/files/" + name;
    struct stat facts{};
    if (lstat(path.c_str(), &facts) != 0 || facts.st_uid != geteuid() || facts.st_nlink > 1)
      continue;
    const bool left = now - facts.st_ctim.tv_sec > kScrapS;  // by a job that never started
    if (!unused.contains(facts.st_ino) && left) removal.bytes += uint64_t(facts.st_size);
    if (!dry_run && (left || unused.contains(facts.st_ino))) unlink(path.c_str());
  }
  for (const std::string& name : names_in(folder)) {
    const std::string path = folder + "/" + name;
    struct stat facts{};
    if (!name.starts_with(kNew) || lstat(path.c_str(), &facts) != 0 || facts.st_uid != geteuid() ||
        now - facts.st_ctim.tv_sec <= kScrapS)
      continue;
    std::error_code failed;
    if (!dry_run) fs::remove_all(path, failed);
  }
  return removal;
}

}  // namespace hvd
