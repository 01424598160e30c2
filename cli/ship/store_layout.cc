#include "cli/ship/store_layout.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "cli/pipe.h"
#include "cli/quoted.h"
#include "cli/ship/folders.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kStampFirst = 946'684'800;  // 2000-01-01, and up to 8.5 years later
constexpr int64_t kStamps = 1 << 28;          // seven digits of a sum
constexpr size_t kShownBytesMax = 200;

mode_t mode_of(bool executable) { return executable ? 0500 : 0400; }

time_t stamp_of(const std::string& sum) {
  return kStampFirst + std::strtol(sum.substr(0, 7).c_str(), nullptr, 16);
}

}  // namespace

Scratch::~Scratch() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

bool Scratch::keep_as(const std::string& path) {
  if (::rename(path_.c_str(), path.c_str()) != 0) return false;
  path_.clear();
  return true;
}

std::string folder_above(const std::string& store) {
  return fs::path(store).parent_path().parent_path().string();
}

std::string way_to_store(const std::string& store) {
  std::error_code failed;
  const fs::path above = fs::canonical(folder_above(store), failed), given = store;
  if (failed) throw NoPlace(failed.message());
  if (const std::string unsafe = unsafe_on_the_way(above.string()); !unsafe.empty())
    throw NoPlace("others may change what is in " + hvd::in_quotes(unsafe, kShownBytesMax));
  return (above / given.parent_path().filename() / given.filename()).string();
}

std::vector<std::string> own_folders(const std::string& store) {
  return {fs::path(store).parent_path().string(), store, store + "/files", store + "/trees"};
}

void check_own(const std::string& folder) {
  struct stat facts{};
  if (lstat(folder.c_str(), &facts) != 0) throw NoPlace(error_text(errno));
  if (!S_ISDIR(facts.st_mode) || facts.st_uid != geteuid() || others_may_write(folder, facts))
    throw NoPlace("it is there, and others may write to it");
}

UniqueFd open_folder(const std::string& path) {
  return UniqueFd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
}

std::string new_in(const std::string& store) {
  unsigned long long number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number)
    throw Error(ErrorCode::kUnavailable, "the system gives no random bytes");
  char text[24];
  std::snprintf(text, sizeof text, "%016llx", number);
  return store + "/" + std::string(kBeingMade) + text;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> all;
  std::error_code unreadable;
  for (fs::directory_iterator one(folder, unreadable), end; !unreadable && one != end;
       one.increment(unreadable))
    all.push_back(one->path().filename().string());
  return all;
}

bool mark(int fd, const std::string& sum, bool executable) {
  const timespec times[2] = {{0, UTIME_NOW}, {stamp_of(sum), 0}};
  return fchmod(fd, mode_of(executable)) == 0 && futimens(fd, times) == 0;
}

bool is_marked(const struct stat& facts, const std::string& sum, bool executable) {
  return S_ISREG(facts.st_mode) && facts.st_uid == geteuid() &&
         (facts.st_mode & 07777) == mode_of(executable) && facts.st_mtim.tv_sec == stamp_of(sum) &&
         facts.st_mtim.tv_nsec == 0;
}

bool bears_a_mark(const struct stat& facts) {
  const mode_t mode = facts.st_mode & 07777;
  const int64_t stamp = facts.st_mtim.tv_sec - kStampFirst;
  return S_ISREG(facts.st_mode) && facts.st_uid == geteuid() &&
         (mode == mode_of(false) || mode == mode_of(true)) && stamp >= 0 && stamp < kStamps &&
         facts.st_mtim.tv_nsec == 0;
}

}  // namespace hvd
