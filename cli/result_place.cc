// Following links by hand, writing in place, writing beside and renaming.
#include "cli/result_place.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>

#include "cli/quoted.h"
#include "cli/rank_folder.h"
#include "runtime/base/deadline.h"
#include "runtime/base/unique_fd.h"

namespace hvd {
namespace {

namespace fs = std::filesystem;

constexpr int kLinksMax = 40;    // as the kernel's
constexpr int kDraftsMax = 100;  // names that others of this pid left behind
constexpr const char* kAccessList = "system.posix_acl_access";  // acl(5)

struct Failure {
  const char* step = "";
  int error = 0;
};

int number_of(const std::string& name) {
  int number = -1;
  const auto end = std::from_chars(name.data(), name.data() + name.size(), number);
  return end.ec == std::errc{} && *end.ptr == 0 ? number : -1;
}

// Pieces that a pipe takes whole once it says that it has room, so that no write blocks.
Failure write_all(const UniqueFd& file, const std::string& text, Clock::duration patience) {
  Deadline deadline = Deadline::in(patience);
  for (size_t done = 0; done < text.size();) {
    pollfd room{file.get(), POLLOUT, 0};
    const int ready = poll(&room, 1, deadline.poll_timeout_ms());
    if (ready == 0) return {"write", ETIMEDOUT};
    if (ready < 0) continue;
    const ssize_t n =
        write(file.get(), text.data() + done, std::min(text.size() - done, size_t{PIPE_BUF}));
    if (n > 0) {
      done += size_t(n);
      deadline = Deadline::in(patience);
    } else if (errno != EINTR && errno != EAGAIN) {
      return {"write", errno};
    }
  }
  return {};
}

// A descriptor goes on where it is: what it leads to may hold more than this. Links have been
// followed: one that is there now has been put there since, but for those that the kernel makes.
Failure write_in_place(const ResultPlace& place, const std::string& text,
                       Clock::duration patience) {
  const UniqueFd file(
      place.descriptor >= 0
          ? fcntl(place.descriptor, F_DUPFD_CLOEXEC, 0)
          : open(place.path.c_str(), O_WRONLY | O_TRUNC | O_NONBLOCK | O_NOCTTY | O_CLOEXEC |
                                         (place.path.starts_with("/proc/") ? 0 : O_NOFOLLOW)));
  return file ? write_all(file, text, patience) : Failure{"open", errno};
}

bool means_no_list(int error) { return error == ENODATA || error == ENOTSUP; }

// Who beside owner and group may do what with it; empty: nobody, nullopt: it cannot be known.
std::optional<std::string> access_list(const std::string& path) {
  std::string list(XATTR_SIZE_MAX, '\0');
  const ssize_t bytes = lgetxattr(path.c_str(), kAccessList, list.data(), list.size());
  if (bytes < 0 && !means_no_list(errno)) return std::nullopt;
  list.resize(bytes < 0 ? 0 : size_t(bytes));
  return list;
}

// Whoever may read and write the old file, at `path`, may so with the new one, and nobody else.
// That it cannot be told so (a file system that knows no owners or modes) is no failure: it is its
// maker's alone.
void take_after(const UniqueFd& file, const std::string& path, const struct stat& old) {
  mode_t mode = old.st_mode & 0777;
  const bool same_group = fchown(file.get(), old.st_uid, old.st_gid) == 0 ||
                          fchown(file.get(), uid_t(-1), old.st_gid) == 0;
  if (!same_group) mode &= ~mode_t{070} | (mode & 007) << 3;  // ours gets no more than all others
  // Beside a list these bits say what anybody in it may do at most, not what the group may.
  const std::optional<std::string> list = access_list(path);
  if (!list || !list->empty()) mode &= ~mode_t{070};
  // One that came with the folder is not the old file's.
  if (fremovexattr(file.get(), kAccessList) != 0 && !means_no_list(errno)) mode &= ~mode_t{070};
  (void)!fchmod(file.get(), mode);
  if (same_group && list && !list->empty())
    (void)!fsetxattr(file.get(), kAccessList, list->data(), list->size(), 0);
}

// `old`: what is there by that name, if anything is.
Failure replace(const std::string& path, const struct stat* old, const std::string& text,
                Clock::duration patience) {
  // A name of its own, for one made from `path` may be too long.
  const fs::path folder = fs::path(path).parent_path();
  std::string draft;
  UniqueFd file;
  for (int i = 0; !file && i < kDraftsMax; ++i) {
    draft = folder / (".hvdrun." + std::to_string(getpid()) + "." + std::to_string(i));
    file = UniqueFd(
        open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, old != nullptr ? 0600 : 0666));
    if (!file && errno != EEXIST) break;
  }
  if (!file) return {"open", errno};
  if (old != nullptr) take_after(file, path, *old);
  Failure failure = write_all(file, text, patience);
  file.reset();
  if (failure.error == 0 && std::rename(draft.c_str(), path.c_str()) != 0)
    failure = {"rename", errno};
  if (failure.error != 0) unlink(draft.c_str());
  return failure;
}

// Nothing may be put into the folder, or in the place of what is there (a file mounted by itself).
bool is_about_the_folder(int error) {
  return error == EACCES || error == EPERM || error == EROFS || error == EBUSY;
}

std::string reason(int error) {
  if (error == ENXIO || error == EPIPE) return "nobody has it open for reading";
  if (error == ETIMEDOUT) return "its reader takes nothing any more";
  return std::strerror(error);
}

// Without links, as far as it is there.
fs::path place_of(const std::string& folder) {
  std::error_code error;
  const fs::path below = fs::absolute(folder, error) / "x";
  const fs::path followed = fs::weakly_canonical(below, error);
  return (error ? below : followed).parent_path();
}

}  // namespace

bool is_folder_of_output(const std::string& folder, const std::string& output, int ranks) {
  const fs::path wanted = place_of(folder), made = place_of(output);
  const auto differs = std::mismatch(wanted.begin(), wanted.end(), made.begin(), made.end());
  if (differs.first == wanted.end()) return true;
  for (int rank = 0; rank < ranks; ++rank)
    if (wanted == rank_folder(made, rank, ranks)) return true;
  return false;
}

bool may_follow(const struct stat& link, const struct stat& folder, uid_t us) {
  const mode_t anybodys = S_ISVTX | S_IWOTH;
  return (folder.st_mode & anybodys) != anybodys || link.st_uid == us ||
         link.st_uid == folder.st_uid;
}

LinkRule our_link_rule() {
  return [us = geteuid()](const struct stat& link, const struct stat& folder) {
    return may_follow(link, folder, us);
  };
}

bool is_file_of_output(const std::string& file, const std::string& output, int ranks) {
  const fs::path wanted = place_of(file), made = place_of(output);
  for (int rank = 0; rank < ranks; ++rank)
    for (const char* name : kRankFiles)
      if (wanted == rank_folder(made, rank, ranks) + name) return true;
  return false;
}

void make_folder_of_result(const std::string& file, const std::string& output, int ranks) {
  const fs::path folder = fs::path(find_result_place(file).path).parent_path();
  if (folder.empty() || output.empty() || !is_folder_of_output(folder, output, ranks)) return;
  std::error_code ignored;
  fs::create_directories(folder, ignored);
}

ResultPlace find_result_place(const std::string& path, const LinkRule& rule) {
  fs::path here = path;
  for (int links = 0; links < kLinksMax; ++links) {
    std::error_code error;
    const fs::path parent = here.has_parent_path() ? here.parent_path() : fs::path(".");
    const fs::path folder = fs::canonical(parent, error);
    if (error) return {here};
    // The text of such a link names nothing that could be opened. Threads have such a folder, too.
    if (folder.filename() == "fd" &&
        folder.string().starts_with("/proc/" + std::to_string(getpid()) + "/")) {
      const int descriptor = number_of(here.filename());
      if (descriptor >= 0) return {path, descriptor};
    }
    struct stat link, around;
    if (lstat(here.c_str(), &link) != 0 || !S_ISLNK(link.st_mode)) return {here};
    if (stat(folder.c_str(), &around) != 0) return {here};
    if (!rule(link, around))
      return {.path = here,
              .refusal = "the link " + hvd::in_quotes(here.string()) + " belongs to user " +
                         std::to_string(link.st_uid) + ", in a folder where anybody may put one"};
    const fs::path target = fs::read_symlink(here, error);
    if (error) return {here};
    const fs::path next = folder / target;  // the target alone where it begins with a slash
    // Another process's descriptor may lead to what has no name: the kernel follows it.
    if (folder.string().starts_with("/proc/") && !fs::equivalent(here, next, error)) return {here};
    here = next;
  }
  return {path};
}

bool is_result_file(const std::string& path, const LinkRule& rule) {
  const ResultPlace place = find_result_place(path, rule);
  if (place.descriptor >= 0 || !place.refusal.empty()) return false;
  struct stat facts;
  return lstat(place.path.c_str(), &facts) == 0 ? S_ISREG(facts.st_mode) : errno == ENOENT;
}

std::string write_result_file(const std::string& path, const std::string& text,
                              std::chrono::milliseconds patience, const LinkRule& rule) {
  const auto said = [&](const Failure& failure) {
    return failure.error == 0 ? ""
                              : "cannot write the result file " + shell_word(path) + " (" +
                                    failure.step + "): " + reason(failure.error);
  };
  const ResultPlace place = find_result_place(path, rule);
  if (!place.refusal.empty())
    return "cannot write the result file " + shell_word(path) + ": " + place.refusal;
  if (place.descriptor >= 0) return said(write_in_place(place, text, patience));
  struct stat facts;
  const bool there = lstat(place.path.c_str(), &facts) == 0;
  if (!there && errno != ENOENT) return said({"open", errno});
  if (there && !S_ISREG(facts.st_mode)) return said(write_in_place(place, text, patience));
  const Failure failure = replace(place.path, there ? &facts : nullptr, text, patience);
  return said(there && is_about_the_folder(failure.error) ? write_in_place(place, text, patience)
                                                          : failure);
}

}  // namespace hvd
