#include "cli/ship/read_shipment.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/agent/worker_environment.h"
#include "cli/command_check.h"
#include "cli/frame.h"
#include "cli/look.h"
#include "cli/pipe.h"
#include "cli/quoted.h"
#include "cli/ship/ask_loader.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/digest.h"
#include "runtime/base/deadline.h"
#include "runtime/base/error.h"
#include "runtime/base/unique_fd.h"

namespace hvd {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPathsMax = 100'000, kPathBytesMax = 4096, kShownBytesMax = 300;
constexpr size_t kReadBytes = 1u << 20, kScriptLineMax = 256;

Error refusal(const std::string& path, const std::string& why) {
  return Error(ErrorCode::kInvalidArgument,
               "--ship: " + hvd::in_quotes(path, kShownBytesMax) + " " + why);
}

// A job without one of its files would fail later, and elsewhere, or compute something else.
Error unreadable(const std::string& path) {
  const bool is_forbidden = errno == EACCES;
  return refusal(path, "cannot be read: " + error_text(errno) +
                           (is_forbidden ? "; let it be read, or name what the command needs of "
                                           "the folder that it is in, one --ship for each"
                                         : ""));
}

// Without "." and "..", as it is spelt: links keep their names, but where ".." leads from one is
// for the file system to say. Empty where that is nowhere; errno says why.
std::string plain(const fs::path& path) {
  fs::path at = "/";
  std::error_code failed;
  for (const fs::path& name : path) {
    if (name == "..") at = fs::canonical(at / name, failed);
    if (failed) {
      errno = failed.value();
      return "";
    }
    if (name != ".." && name != "." && !name.empty() && name.native().front() != '/') at /= name;
  }
  return at.string();
}

// Where it lies, whatever links led there; its own name is kept. Empty: nowhere.
std::string location(const std::string& path) {
  std::error_code failed;
  const fs::path folder = fs::canonical(fs::path(path).parent_path(), failed);
  return failed ? "" : (folder / fs::path(path).filename()).string();
}

// The last name in the path that is a link.
std::string link_in(const std::string& path) {
  std::error_code failed;
  for (fs::path at = path; at != at.parent_path(); at = at.parent_path())
    if (fs::is_symlink(at, failed)) return at.string();
  return path;
}

// The words behind the "#!" of a script; none: it is none.
std::vector<std::string> interpreter_of(int fd) {
  char bytes[kScriptLineMax];
  const ssize_t n = pread(fd, bytes, sizeof bytes, 0);
  const std::string_view line(bytes, n > 0 ? size_t(n) : 0);
  if (!line.starts_with("#!")) return {};
  std::istringstream text(std::string(line.substr(2, line.find('\n') - 2)));
  std::vector<std::string> words;
  for (std::string word; text >> word;) words.push_back(word);
  return words;
}

// Of the libhvd at this path; empty: there is none.
std::string plug_in_of(const std::string& libhvd) {
  const std::string path = fs::path(libhvd).replace_filename(kPlugIn).string();
  std::error_code failed;
  return fs::is_regular_file(path, failed) ? path : "";
}

using Identity = std::pair<dev_t, ino_t>;

Identity identity(const struct stat& facts) { return {facts.st_dev, facts.st_ino}; }

class Reader {
 public:
  Reader(const JobSpec& spec, std::span<const std::string> environment,
         const ReadProgress& progress)
      : spec_(spec),
        library_path_(value_in(environment, "LD_LIBRARY_PATH", "")),
        path_(value_in(environment, "PATH", kDefaultPath)),
        here_(fs::current_path().string()),
        progress_(progress),
        say_at_(Deadline::in(progress.first)) {}

  ShipOffer read() {
    for (const std::string& given : spec_.ship) {
      if (given.empty()) throw refusal(given, "is an empty path");
      const std::string path = plain(fs::path(here_) / given);
      if (path.empty()) throw unreadable(given);
      walk(path, location(path));
      given_.push_back(path);
      if (!is_libhvd(fs::path(path).filename().native())) continue;
      if (const std::string beside = plug_in_of(path); !beside.empty())
        walk(beside, location(beside));
    }
    check_limit();
    for (const OfferedFile& one : sizes_) to_read_ += one.bytes;
    for (const auto& [path, is_folder] : paths_) {
      proto::ShippedPath& one = *list_.add_paths();
      one.set_path(path);
      one.set_file(is_folder ? -1 : file(path));
      offer_.named += is_folder ? 0 : 1;
    }
    offer_.libraries_from = offer_.files.size();
    find_words();
    for (const std::string& path : given_)
      if (!paths_.at(path)) add_program(path);
    list_.set_home_will_do(spec_.directory.empty());
    offer_.list = list_.SerializeAsString();
    offer_.bytes_max = spec_.ship_limit;
    if (offer_.list.size() > kFrameBytesMax)
      throw Error(ErrorCode::kInvalidArgument,
                  "--ship: the names of so many files do not fit; pack them into one");
    return std::move(offer_);
  }

 private:
  // What lies in a folder and cannot be shipped, a socket say, was hardly meant.
  bool is_left_out(const std::string& path) {
    struct stat facts{};
    const bool leads_on = stat(path.c_str(), &facts) == 0;
    if (above_.empty() || (!leads_on && errno != ENOENT && errno != ELOOP)) return false;
    if (!leads_on && lstat(path.c_str(), &facts) != 0) return false;
    if (S_ISREG(facts.st_mode) || S_ISDIR(facts.st_mode)) return false;
    offer_.left_out.push_back(path);
    return true;
  }

  void walk(const std::string& path, const std::string& place) {
    struct stat facts{};
    if (is_left_out(path)) return;
    if (stat(path.c_str(), &facts) != 0) throw unreadable(path);
    if (path.size() > kPathBytesMax) throw refusal(path, "is too long a path");
    const bool is_folder = S_ISDIR(facts.st_mode);
    if (!is_folder && !S_ISREG(facts.st_mode))
      throw refusal(path, "is neither a file nor a folder; leave it out");
    if (path == "/") throw refusal(path, "is everything; name what the command needs");
    if (!paths_.emplace(path, is_folder).second) return;
    places_.emplace(place, path);
    if (paths_.size() > kPathsMax)
      throw refusal(path, "is one too many: " + std::to_string(kPathsMax) +
                              " files and folders at most; pack them into one");
    if (!is_folder) {
      if (seen_.insert(identity(facts)).second) sizes_.push_back({path, uint64_t(facts.st_size)});
      return;
    }
    if (std::ranges::find(above_, identity(facts)) != above_.end())
      throw refusal(link_in(path), "is a link to a folder that it is in; leave it out");
    above_.push_back(identity(facts));
    try {
      const fs::path real = fs::canonical(path);
      for (const auto& entry : fs::directory_iterator(path))
        walk(entry.path().string(), (real / entry.path().filename()).string());
    } catch (const fs::filesystem_error& error) {
      errno = error.code().value();
      throw unreadable(path);
    }
    above_.pop_back();
  }

  // Before anything is read to its end.
  void check_limit() const {
    if (const std::string why = limit_objection(sizes_, spec_.ship_limit); !why.empty())
      throw Error(ErrorCode::kInvalidArgument, why);
  }

  // Its number in the list.
  int file(const std::string& path) {
    const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
    struct stat before{}, after{};
    if (!fd || fstat(fd.get(), &before) != 0) throw unreadable(path);
    const bool executable = (before.st_mode & 0111) != 0;
    const auto known = sums_.find(identity(before));
    std::string sum = known == sums_.end() ? sum_of(fd.get(), path) : known->second;
    if (fstat(fd.get(), &after) != 0) throw unreadable(path);
    if (before.st_size != after.st_size || changed_ns(before) != changed_ns(after))
      throw refusal(path, "has changed while it was read; start again when it is whole");
    sums_[identity(before)] = sum;
    const auto [place, is_new] =
        numbers_.emplace(std::pair(sum, executable), int(offer_.files.size()));
    if (is_new) {
      proto::ShippedFile& one = *list_.add_files();
      one.set_sum(std::move(sum));
      one.set_bytes(uint64_t(before.st_size));
      one.set_executable(executable);
      offer_.files.push_back({path, uint64_t(before.st_size), changed_ns(before)});
    }
    return place->second;
  }

  std::string sum_of(int fd, const std::string& path) {
    buffer_.resize(kReadBytes);
    Sha256 sum;
    for (;;) {
      const ssize_t n = ::read(fd, buffer_.data(), buffer_.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw unreadable(path);
      if (n == 0) return sum.hex();
      sum.add(std::as_bytes(std::span(buffer_.data(), size_t(n))));
      read_ += uint64_t(n);
      if (progress_.say && say_at_.passed()) say_progress();
    }
  }

  // Libraries are not counted before they are known, and few.
  void say_progress() {
    if (read_ > to_read_) return;
    const auto share = uint64_t(100 * double(read_) / double(std::max<uint64_t>(to_read_, 1)));
    progress_.say("reading what --ship names: " + size_text(to_read_) + ", " +
                  std::to_string(share) + " %");
    say_at_ = Deadline::in(progress_.next);
  }

  // What is shipped by this name, or lies where it leads; empty: nothing. What it is a link to does
  // not count: a program may be another by another name.
  std::string shipped_as(const std::string& word) const {
    if (word.empty() || word.size() > kPathBytesMax) return "";
    const std::string path = plain(fs::path(here_) / spec_.directory / word);
    if (paths_.contains(path)) return path;
    const auto found = places_.find(path.empty() ? "" : location(path));
    return found == places_.end() ? "" : found->second;
  }

  // Which words of the command name something that is shipped: those are said otherwise there.
  void find_words() {
    for (size_t i = 0; i < spec_.command.size(); ++i) {
      const std::string& word = spec_.command[i];
      const std::string path = shipped_as(word);
      if (path.empty()) continue;
      if (i == 0 && word.find('/') == word.npos) {
        if (paths_.at(path) || is_on_path({.command = spec_.command,
                                           .program = "",
                                           .directory = spec_.directory,
                                           .path = path_,
                                           .start = ""}))
          continue;
        throw refusal(word,
                      "is shipped, but as a command it is looked for on the PATH, where none "
                      "is; write " +
                          shell_word("./" + word));
      }
      proto::ShippedWord& one = *list_.add_words();
      one.set_index(int(i));
      one.set_path(path);
      if (paths_.at(path)) continue;
      if (i == 0) check_script(word, path);
      add_program(path);
    }
  }

  // The kernel starts a script by the path that it holds, which leads nowhere there.
  void check_script(const std::string& word, const std::string& path) const {
    const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
    std::vector<std::string> words = fd ? interpreter_of(fd.get()) : std::vector<std::string>();
    if (words.empty() || shipped_as(words[0]).empty()) return;
    const std::string interpreter = words[0];
    words.push_back(word);
    throw refusal(word, "is a script for " + hvd::in_quotes(interpreter, kShownBytesMax) +
                            ", which is shipped too, and lies elsewhere there; write " +
                            shell_words(words, kShownBytesMax));
  }

  void add_program(const std::string& path) {
    const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
    const std::string loader = fd ? loader_of(fd.get()) : "";
    if (loader.empty() || !programs_.insert(path).second) return;
    proto::ShippedProgram& program = *list_.add_programs();
    program.set_path(path);
    program.set_loader(loader);
    const LoaderAnswer answer = ask_loader({loader, path, library_path_});
    add_library(path, loader.substr(loader.rfind('/') + 1), loader);
    for (const auto& [name, found] : answer.found) {
      add_library(path, name, found);
      if (!is_libhvd(name)) continue;
      if (const std::string beside = plug_in_of(found); !beside.empty())
        add_library(path, std::string(kPlugIn), beside);
    }
  }

  void add_library(const std::string& program, const std::string& name, const std::string& path) {
    const int number = file(path);
    const auto [known, is_new] = libraries_.emplace(name, number);
    if (!is_new && known->second == number) return;
    if (!is_new)
      throw refusal(program, "needs another " + hvd::in_quotes(name) +
                                 " than the other programs that are shipped; start it by a job of "
                                 "its own");
    proto::ShippedLibrary& one = *list_.add_libraries();
    one.set_name(name);
    one.set_file(number);
  }

  const JobSpec& spec_;
  const std::string library_path_, path_, here_;
  std::vector<std::string> given_;
  std::map<std::string, bool> paths_;          // and whether it is a folder
  std::map<std::string, std::string> places_;  // where they lie, whatever links led there
  std::vector<Identity> above_;                // folders that the walk is in
  std::set<Identity> seen_;
  std::vector<OfferedFile> sizes_;  // of the files among them
  std::map<Identity, std::string> sums_;
  std::map<std::pair<std::string, bool>, int> numbers_;  // by sum, and whether it is executable
  std::set<std::string> programs_;
  std::map<std::string, int> libraries_;
  const ReadProgress& progress_;
  Deadline say_at_;
  uint64_t read_ = 0, to_read_ = 0;  // bytes
  std::vector<char> buffer_;
  proto::Shipment list_;
  ShipOffer offer_;
};

}  // namespace

ShipOffer read_shipment(const JobSpec& spec, std::span<const std::string> environment,
                        const ReadProgress& progress) {
  try {
    return Reader(spec, environment, progress).read();
  } catch (const fs::filesystem_error& error) {  // the working directory is gone
    throw Error(
        ErrorCode::kInvalidArgument,
        std::string("--ship: the working directory cannot be used: ") + error.code().message());
  }
}

}  // namespace hvd
