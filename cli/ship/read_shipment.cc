#include "cli/ship/read_shipment.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "cli/agent/worker_environment.h"
#include "cli/frame.h"
#include "cli/pipe.h"
#include "cli/quoted.h"
#include "cli/ship/ask_loader.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/digest.h"
#include "runtime/base/error.h"
#include "runtime/base/unique_fd.h"

namespace hvd {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPathsMax = 100'000, kPathBytesMax = 4096, kShownBytesMax = 300;
constexpr size_t kReadBytes = 1u << 20;

Error refusal(const std::string& path, const std::string& why) {
  return Error(ErrorCode::kInvalidArgument,
               "--ship: " + hvd::quoted(path, kShownBytesMax) + " " + why);
}

Error unreadable(const std::string& path) {
  return refusal(path, "cannot be read: " + error_text(errno));
}

// Without "." and "..", as it is spelt: links keep their names.
std::string plain(const fs::path& path) {
  std::string text = path.lexically_normal().string();
  while (text.size() > 1 && text.ends_with('/')) text.pop_back();
  return text;
}

using Identity = std::pair<dev_t, ino_t>;

Identity identity(const struct stat& facts) { return {facts.st_dev, facts.st_ino}; }

class Reader {
 public:
  Reader(const JobSpec& spec, std::string libraries)
      : spec_(spec), library_path_(std::move(libraries)), here_(fs::current_path().string()) {}

  ShipOffer read() {
    for (const std::string& given : spec_.ship) {
      if (given.empty()) throw refusal(given, "is an empty path");
      walk(plain(fs::path(here_) / given));
    }
    check_limit();
    for (const auto& [path, is_folder] : paths_) {
      proto::ShippedPath& one = *list_.add_paths();
      one.set_path(path);
      one.set_file(is_folder ? -1 : file(path));
    }
    find_words();
    for (const std::string& given : spec_.ship)
      if (const auto found = paths_.find(plain(fs::path(here_) / given));
          found != paths_.end() && !found->second)
        add_program(found->first);
    list_.set_home_will_do(spec_.directory.empty());
    offer_.list = list_.SerializeAsString();
    offer_.bytes_max = spec_.ship_limit;
    if (offer_.list.size() > kFrameBytesMax)
      throw Error(ErrorCode::kInvalidArgument,
                  "--ship: the names of so many files do not fit; pack them into one");
    return std::move(offer_);
  }

 private:
  void walk(const std::string& path) {
    struct stat facts{};
    if (stat(path.c_str(), &facts) != 0) throw unreadable(path);
    if (path.size() > kPathBytesMax) throw refusal(path, "is too long a path");
    const bool is_folder = S_ISDIR(facts.st_mode);
    if (!is_folder && !S_ISREG(facts.st_mode))
      throw refusal(path, "is neither a file nor a folder; leave it out");
    if (path == "/") throw refusal(path, "is everything; name what the command needs");
    if (!paths_.emplace(path, is_folder).second) return;
    if (paths_.size() > kPathsMax)
      throw refusal(path, "is one too many: " + std::to_string(kPathsMax) +
                              " files and folders at most; pack them into one");
    if (!is_folder) {
      if (seen_.insert(identity(facts)).second) sizes_.push_back({path, uint64_t(facts.st_size)});
      return;
    }
    if (std::ranges::find(above_, identity(facts)) != above_.end())
      throw refusal(path, "is a link to a folder that it is in; leave it out");
    above_.push_back(identity(facts));
    try {
      for (const auto& entry : fs::directory_iterator(path)) walk(entry.path().string());
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
    }
  }

  // Which words of the command name something that is shipped: those are said otherwise there.
  void find_words() {
    const fs::path directory = fs::path(here_) / spec_.directory;
    for (size_t i = 0; i < spec_.command.size(); ++i) {
      const std::string& word = spec_.command[i];
      if (word.empty() || word.size() > kPathBytesMax) continue;
      if (i == 0 && word.find('/') == word.npos) continue;  // is looked for in the PATH
      const auto found = paths_.find(plain(directory / word));
      if (found == paths_.end()) continue;
      proto::ShippedWord& one = *list_.add_words();
      one.set_index(int(i));
      one.set_path(found->first);
      if (!found->second) add_program(found->first);
    }
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
    for (const auto& [name, found] : answer.found) add_library(path, name, found);
  }

  void add_library(const std::string& program, const std::string& name, const std::string& path) {
    const int number = file(path);
    const auto [known, is_new] = libraries_.emplace(name, number);
    if (!is_new && known->second == number) return;
    if (!is_new)
      throw refusal(program, "needs another " + hvd::quoted(name) +
                                 " than the other programs that are shipped; start it by a job of "
                                 "its own");
    proto::ShippedLibrary& one = *list_.add_libraries();
    one.set_name(name);
    one.set_file(number);
  }

  const JobSpec& spec_;
  const std::string library_path_, here_;
  std::map<std::string, bool> paths_;  // and whether it is a folder
  std::vector<Identity> above_;        // folders that the walk is in
  std::set<Identity> seen_;
  std::vector<OfferedFile> sizes_;  // of the files among them
  std::map<Identity, std::string> sums_;
  std::map<std::pair<std::string, bool>, int> numbers_;  // by sum, and whether it is executable
  std::set<std::string> programs_;
  std::map<std::string, int> libraries_;
  std::vector<char> buffer_;
  proto::Shipment list_;
  ShipOffer offer_;
};

}  // namespace

ShipOffer read_shipment(const JobSpec& spec, std::span<const std::string> environment) {
  try {
    return Reader(spec, value_in(environment, "LD_LIBRARY_PATH", "")).read();
  } catch (const fs::filesystem_error& error) {  // the working directory is gone
    throw Error(
        ErrorCode::kInvalidArgument,
        std::string("--ship: the working directory cannot be used: ") + error.code().message());
  }
}

}  // namespace hvd
