#include "cli/ship/ship_cleaning.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <list>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "cli/ship/folders.h"
#include "cli/ship/store_layout.h"
#include "rendezvous/digest.h"

namespace hvd {
namespace {

namespace fs = std::filesystem;

constexpr size_t kReadBytes = 256u << 10;
constexpr int64_t kScrapS = 24 * 3600;
constexpr int kTreesNamedMax = 10;  // they go through a frame of some size

bool is_older(time_t then, int64_t seconds) { return time(nullptr) - then > seconds; }

// __pycache__/NAME.pyc
bool can_be_made_again(const fs::path& path) {
  return path.parent_path().filename() == "__pycache__" && path.extension() == ".pyc";
}

// It bears the mark of its own bytes: nobody but us has put that on it.
bool has_its_sum(const fs::path& path, const struct stat& facts) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) return false;
  Sha256 sum;
  std::vector<char> bytes(kReadBytes);
  for (ssize_t n; (n = read(fd.get(), bytes.data(), bytes.size())) != 0;) {
    if (n < 0) return false;
    sum.add(std::as_bytes(std::span(bytes.data(), size_t(n))));
  }
  return is_marked(facts, sum.hex(), (facts.st_mode & S_IXUSR) != 0);
}

// What goes, and what it comes to.
class Cleaning {
 public:
  Cleaning(const std::string& store, int64_t unused_s, bool dry_run,
           proto::CleanReport::Store& report)
      : store_(store), unused_s_(unused_s), dry_run_(dry_run), report_(report) {}

  // While nobody takes from the store; short, since who wants to has to wait.
  void choose() {
    for (const std::string& name : names_in(store_ + "/files")) know_file(name);
    for (const std::string& name : names_in(store_ + "/trees"))
      look_at_tree(store_ + "/trees/" + name);
    for (const auto& [number, file] : files_) look_at_file(file);
    for (const std::string& name : names_in(store_))
      if (name.starts_with(kBeingMade)) look_at_scrap(store_ + "/" + name);
  }

  // No job can find what goes as a whole any more; who wants a tree of which a part goes waits.
  void remove() {
    for (const Emptied& tree : emptied_) empty(tree);
    emptied_.clear();
    gone_.clear();
  }

 private:
  struct File {
    std::string path;  // empty: it has a name in trees alone
    struct stat facts;
    bool whole;      // as it was shipped, in all its names
    nlink_t go = 0;  // of its names in trees
  };
  // A tree that stays for what ranks wrote there.
  struct Emptied {
    std::string path;
    UniqueFd lock;
    struct stat facts;
    std::vector<fs::path> files = {}, folders = {};  // that go, and that do if nothing is in them
  };

  void know_file(const std::string& name) {
    File file{store_ + "/files/" + name, {}, false};
    const bool executable = name.ends_with('x');
    if (lstat(file.path.c_str(), &file.facts) != 0 || file.facts.st_uid != geteuid()) return;
    file.whole =
        is_marked(file.facts, name.substr(0, name.size() - size_t(executable)), executable);
    files_.emplace(file.facts.st_ino, std::move(file));
  }

  void look_at_tree(const std::string& path) {
    Emptied tree{path, open_folder(path), {}};
    if (!tree.lock || fstat(tree.lock.get(), &tree.facts) != 0 || tree.facts.st_uid != geteuid() ||
        !is_older(tree.facts.st_mtim.tv_sec, unused_s_) ||
        flock(tree.lock.get(), LOCK_EX | LOCK_NB) != 0)
      return;
    proto::CleanReport::Written written;
    std::error_code failed;
    for (fs::recursive_directory_iterator one(path, failed), end; !failed && one != end;
         one.increment(failed))
      look_at_entry(one->path(), tree, written);
    if (failed) written.set_files(written.files() + 1);  // nobody knows what is in there
    if (written.files() == 0) {
      report_.set_trees(report_.trees() + 1);
      return take_away(path);
    }
    written.set_tree(path);
    if (report_.written_size() < kTreesNamedMax)
      *report_.add_written() = written;
    else
      report_.set_more_written(report_.more_written() + 1);
    if (!dry_run_) emptied_.push_back(std::move(tree));
  }

  void look_at_entry(const fs::path& path, Emptied& tree, proto::CleanReport::Written& written) {
    struct stat facts{};
    if (lstat(path.c_str(), &facts) != 0) return;
    if (S_ISDIR(facts.st_mode)) return tree.folders.push_back(path);
    auto known = files_.find(facts.st_ino);
    // Another job's file has taken the name of this one in the store, or the name is gone.
    if (known == files_.end() && bears_a_mark(facts))
      known = files_.emplace(facts.st_ino, File{"", facts, has_its_sum(path, facts)}).first;
    const bool is_shipped =
        known != files_.end() && known->second.whole && known->second.facts.st_dev == facts.st_dev;
    if (is_shipped) ++known->second.go;
    if (is_shipped || can_be_made_again(path)) return tree.files.push_back(path);
    written.set_files(written.files() + 1);
    written.set_bytes(written.bytes() + uint64_t(facts.st_size));
  }

  // One that only those trees had, or that came for a job that never started.
  void look_at_file(const File& file) {
    const bool in_store = !file.path.empty();
    const bool was_theirs = file.go > 0 && file.facts.st_nlink == file.go + nlink_t(in_store);
    const bool is_left =
        in_store && file.facts.st_nlink == 1 && is_older(file.facts.st_ctim.tv_sec, kScrapS);
    if (!was_theirs && !is_left) return;
    report_.set_bytes(report_.bytes() + uint64_t(file.facts.st_size));
    if (in_store) take_away(file.path);
  }

  void look_at_scrap(const std::string& path) {
    struct stat facts{};
    if (lstat(path.c_str(), &facts) == 0 && facts.st_uid == geteuid() &&
        is_older(facts.st_ctim.tv_sec, kScrapS))
      take_away(path);
  }

  void take_away(const std::string& path) {
    if (dry_run_) return;
    const std::string aside = new_in(store_);
    if (::rename(path.c_str(), aside.c_str()) == 0) gone_.emplace_back(aside);
  }

  // It is as old as before: what stays is told again the next time.
  static void empty(const Emptied& tree) {
    for (const fs::path& one : tree.files) ::unlink(one.c_str());
    for (size_t i = tree.folders.size(); i > 0; --i) ::rmdir(tree.folders[i - 1].c_str());
    const timespec times[2] = {tree.facts.st_atim, tree.facts.st_mtim};
    futimens(tree.lock.get(), times);
  }

  const std::string& store_;
  const int64_t unused_s_;
  const bool dry_run_;
  proto::CleanReport::Store& report_;
  std::map<ino_t, File> files_;
  std::vector<Emptied> emptied_;
  std::list<Scratch> gone_;
};

}  // namespace

proto::CleanReport::Store clean_store(const std::string& folder, int64_t unused_s, bool dry_run) {
  proto::CleanReport::Store report;
  report.set_path(folder);
  struct stat facts{};
  if (lstat(folder.c_str(), &facts) != 0) return report;  // nobody has made one
  std::string store;
  try {
    store = way_to_store(folder);
    for (const std::string& one : own_folders(store)) check_own(one);
  } catch (const NoPlace&) {
    report.set_state(proto::CleanReport::Store::UNSAFE);
    return report;
  }
  const bool shared = other_hosts_may_use(store);
  Cleaning cleaning(store, unused_s, dry_run || shared, report);
  {
    const UniqueFd lock = open_folder(store);
    if (!lock || flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
      report.set_state(errno == EWOULDBLOCK ? proto::CleanReport::Store::BUSY
                                            : proto::CleanReport::Store::NO_LOCKS);
      return report;
    }
    cleaning.choose();
  }
  if (shared) report.set_state(proto::CleanReport::Store::SHARED);
  cleaning.remove();
  return report;
}

}  // namespace hvd
