// The result file: whole or not there, and nothing destroyed that is no file.
#include "cli/result_place.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>

#include "runtime/base/unique_fd.h"
#include "tests/support/access_list.h"
#include "tests/support/catch.h"
#include "tests/support/left_out.h"
#include "tests/support/temporary_directory.h"

namespace hvd {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

std::string content(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

size_t files_in(const fs::path& folder) {
  return size_t(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

std::string read_all(int fd) {
  std::string all;
  char piece[4096];
  for (ssize_t n; (n = read(fd, piece, sizeof piece)) > 0;) all.append(piece, size_t(n));
  return all;
}

struct stat facts_of(const std::string& path) {
  struct stat facts{};
  REQUIRE(lstat(path.c_str(), &facts) == 0);
  return facts;
}

std::string list_of(const std::string& path) {
  char bytes[256];
  const ssize_t n = getxattr(path.c_str(), kAccessList, bytes, sizeof bytes);
  return n < 0 ? "" : std::string(bytes, size_t(n));
}

std::string fd_path(int fd) { return "/dev/fd/" + std::to_string(fd); }

// Root may do everything, so while this lives the test is somebody else.
class Nobody {
 public:
  static constexpr uid_t kId = 65534;
  Nobody() : was_root_(geteuid() == 0) {
    if (was_root_) REQUIRE(seteuid(kId) == 0);
  }
  ~Nobody() {
    if (was_root_ && seteuid(0) != 0) std::abort();
  }
  Nobody(const Nobody&) = delete;
  Nobody& operator=(const Nobody&) = delete;

 private:
  const bool was_root_;
};

}  // namespace

TEST_CASE("result place: a file is there as a whole, and no draft of it") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() / "result.json";
  for (const char* text : {"one\n", "two\n"}) {
    CHECK(write_result_file(path, text).empty());
    CHECK(content(path) == text);
  }
  CHECK(files_in(folder.path()) == 1);
  const std::string longest = folder.path() / std::string(NAME_MAX, 'n');
  CHECK(write_result_file(longest, "x").empty());
  CHECK(files_in(folder.path()) == 2);
  const std::string gone = folder.path() / "gone/result.json";
  CHECK(write_result_file(gone, "x") ==
        "cannot write the result file " + gone + " (open): No such file or directory");
  CHECK(write_result_file("/gone\n/result.json", "x") ==
        "cannot write the result file $'/gone\\x0a/result.json' (open): No such file or directory");
}

TEST_CASE("result place: a reader of the old file keeps all of it") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() / "result.json";
  CHECK(write_result_file(path, "old\n").empty());
  const UniqueFd reader(open(path.c_str(), O_RDONLY));
  CHECK(write_result_file(path, "new\n").empty());
  CHECK(read_all(reader.get()) == "old\n");
}

TEST_CASE("result place: a file that takes another's place is no more open than that one was") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() / "result.json";
  std::ofstream(path) << "old\n";
  const mode_t before = umask(022);
  for (const mode_t mode : {0600u, 0640u, 0666u, 0444u, 04755u}) {
    REQUIRE(chmod(path.c_str(), mode) == 0);
    CHECK(write_result_file(path, "new\n").empty());
    CHECK(facts_of(path).st_mode == (S_IFREG | (mode & 0777)));
  }
  const std::string fresh = folder.path() / "fresh.json";
  CHECK(write_result_file(fresh, "new\n").empty());
  CHECK(facts_of(fresh).st_mode == (S_IFREG | 0644));
  umask(before);
}

TEST_CASE("result place: the owner and the group stay, as far as the writer may give files away") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() / "result.json";
  std::ofstream(path) << "old\n";
  if (geteuid() != 0) {  // nobody else's files to be had: ours stays ours
    CHECK(write_result_file(path, "new\n").empty());
    CHECK(facts_of(path).st_uid == geteuid());
    return;
  }
  constexpr gid_t kGroup = 4321;
  REQUIRE(chown(path.c_str(), Nobody::kId, kGroup) == 0);
  REQUIRE(chmod(path.c_str(), 0664) == 0);
  CHECK(write_result_file(path, "new\n").empty());
  CHECK(content(path) == "new\n");
  CHECK(facts_of(path).st_uid == Nobody::kId);
  CHECK(facts_of(path).st_gid == kGroup);
  CHECK(facts_of(path).st_mode == (S_IFREG | 0664));

  REQUIRE(chown(path.c_str(), 0, kGroup) == 0);
  REQUIRE(chmod(folder.path().c_str(), 0777) == 0);
  {
    const Nobody nobody;
    CHECK(write_result_file(path, "newer\n").empty());
  }
  CHECK(content(path) == "newer\n");
  CHECK(facts_of(path).st_uid == Nobody::kId);
  CHECK(facts_of(path).st_gid != kGroup);
  CHECK(facts_of(path).st_mode == (S_IFREG | 0644));  // another group may do what all may
}

TEST_CASE("result place: who may read the old file by a list may read the new one, nobody else") {
  const auto where = place_with_lists();
  if (!where) {
    note_left_out("result_place_test: access lists", "no file system here knows them");
    return;
  }
  const TemporaryDirectory folder(*where);
  AccessList entries{.owner = 6, .user_12345 = 4, .group = 0, .mask = 4};
  const std::string path = folder.path() / "result.json", list = entries.bytes();
  std::ofstream(path) << "old\n";
  REQUIRE(set_list(path, kAccessList, list));
  CHECK(write_result_file(path, "new\n").empty());
  CHECK(content(path) == "new\n");
  CHECK(list_of(path) == list);
  CHECK(facts_of(path).st_mode == (S_IFREG | 0640));
  if (geteuid() == 0) {  // who cannot give it to that group keeps it from ours
    REQUIRE(chown(path.c_str(), 0, 4321) == 0);
    REQUIRE(chmod(folder.path().c_str(), 0777) == 0);
    {
      const Nobody nobody;
      CHECK(write_result_file(path, "newer\n").empty());
    }
    CHECK(content(path) == "newer\n");
    CHECK(list_of(path).empty());
    CHECK(facts_of(path).st_mode == (S_IFREG | 0600));
  }
  // What the folder gives to new files is not what the old one had.
  REQUIRE(chmod(path.c_str(), 0640) == 0);
  removexattr(path.c_str(), kAccessList);
  entries.user_12345 = 6;
  REQUIRE(set_list(folder.path(), kDefaultList, entries.bytes()));
  CHECK(write_result_file(path, "newest\n").empty());
  CHECK(list_of(path).empty());
  CHECK(facts_of(path).st_mode == (S_IFREG | 0640));
  CHECK(write_result_file(folder.path() / "fresh.json", "new\n").empty());
  CHECK_FALSE(list_of(folder.path() / "fresh.json").empty());
}

TEST_CASE("result place: what links lead to is written, be it there or not, and the links stay") {
  const TemporaryDirectory folder;
  fs::create_directory(folder.path() / "deep");
  fs::create_symlink("deep/second", folder.path() / "first");
  fs::create_symlink("../result.json", folder.path() / "deep/second");
  for (const char* text : {"one\n", "two\n"}) {
    CHECK(write_result_file(folder.path() / "first", text).empty());
    CHECK(content(folder.path() / "result.json") == text);
  }
  CHECK(fs::is_symlink(folder.path() / "first"));
  CHECK(fs::is_symlink(folder.path() / "deep/second"));
  CHECK(files_in(folder.path()) == 3);
  fs::create_symlink("round", folder.path() / "round");
  CHECK(write_result_file(folder.path() / "round", "x").find("Too many levels") !=
        std::string::npos);
}

TEST_CASE("result place: whose links are followed where") {
  constexpr uid_t kUs = 1000, kOther = 1001, kRoot = 0;
  const struct {
    mode_t folder_mode;
    uid_t folder_owner, link_owner, us;
    bool followed;
  } rows[] = {
      {01777, kRoot, kOther, kUs, false},    // somebody else's in /tmp
      {01777, kRoot, kOther, kRoot, false},  // root is no exception
      {01777, kRoot, kUs, kRoot, false},    {01777, kRoot, kUs, kUs, true},  // our own
      {01777, kRoot, kRoot, kUs, true},  // of who owns the folder
      {01777, kOther, kOther, kUs, true},   {01777, kUs, kOther, kUs, false},
      {01775, kRoot, kOther, kUs, true},  // not everybody may write there
      {00777, kRoot, kOther, kUs, true},  // there any name may be taken: links are the least
      {00755, kRoot, kOther, kUs, true},    {03777, kRoot, kOther, kUs, false},
  };
  for (const auto& row : rows) {
    struct stat link{}, folder{};
    link.st_mode = S_IFLNK | 0777;
    link.st_uid = row.link_owner;
    folder.st_mode = S_IFDIR | row.folder_mode;
    folder.st_uid = row.folder_owner;
    INFO(row.folder_mode << ' ' << row.folder_owner << ' ' << row.link_owner << ' ' << row.us);
    CHECK(may_follow(link, folder, row.us) == row.followed);
  }
}

TEST_CASE("result place: a link that is not to be followed is named, and what it leads to stays") {
  const TemporaryDirectory folder;
  const std::string victim = folder.path() / "victim", link = folder.path() / "tmp/result.json",
                    first = folder.path() / "first";
  std::ofstream(victim) << "precious\n";
  fs::create_directory(folder.path() / "tmp");
  fs::create_symlink("../victim", link);
  fs::create_symlink("tmp/result.json", first);
  const auto never_in_tmp = [&](const struct stat&, const struct stat& around) {
    return around.st_ino != facts_of(folder.path() / "tmp").st_ino;
  };
  const std::string why = "the link \"" + fs::canonical(folder.path() / "tmp").string() +
                          "/result.json\" belongs to user " + std::to_string(geteuid()) +
                          ", in a folder where anybody may put one";
  CHECK(find_result_place(first, never_in_tmp).refusal == why);
  CHECK(write_result_file(first, "x", 1s, never_in_tmp) ==
        "cannot write the result file " + first + ": " + why);
  CHECK(content(victim) == "precious\n");
  CHECK(fs::is_symlink(link));
  CHECK(files_in(folder.path() / "tmp") == 1);
  CHECK(fs::equivalent(find_result_place(first).path, victim));
  // By the rule itself, with links of somebody else's.
  if (geteuid() != 0) return note_left_out("result_place_test: another user's link", kNotRoot);
  REQUIRE(chmod((folder.path() / "tmp").c_str(), 01777) == 0);
  REQUIRE(lchown(link.c_str(), Nobody::kId, Nobody::kId) == 0);
  CHECK(write_result_file(link, "x").find("belongs to user 65534") != std::string::npos);
  CHECK(content(victim) == "precious\n");
  REQUIRE(chmod((folder.path() / "tmp").c_str(), 0777) == 0);
  CHECK(write_result_file(link, "new\n").empty());
  CHECK(content(victim) == "new\n");
}

TEST_CASE("result place: whether a file is written, or what has a reader") {
  const TemporaryDirectory folder;
  const std::string file = folder.path() / "result.json", fresh = folder.path() / "fresh",
                    pipe = folder.path() / "pipe";
  std::ofstream(file) << "old\n";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  const UniqueFd opened(open(file.c_str(), O_WRONLY | O_CLOEXEC));
  const int closed = UniqueFd(dup(opened.get())).get();
  const auto link_to = [&](const std::string& target) {
    const fs::path link = folder.path() / "link";
    fs::remove(link);
    fs::create_symlink(target, link);
    return link.string();
  };
  for (const std::string& path : {file, fresh}) {
    CHECK(is_result_file(path));
    CHECK(is_result_file(link_to(path)));
  }
  for (const std::string& path : {pipe, std::string("/dev/null"), folder.path().string(),
                                  fd_path(opened.get()), fd_path(closed), file + "/below"}) {
    INFO(path);
    CHECK_FALSE(is_result_file(path));
    CHECK_FALSE(is_result_file(link_to(path)));
  }
  CHECK_FALSE(
      is_result_file(link_to(file), [](const struct stat&, const struct stat&) { return false; }));
}

TEST_CASE("result place: a pipe with a name is written to, stays, and needs a reader") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() / "pipe";
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  CHECK(write_result_file(path, "x").find("nobody has it open for reading") != std::string::npos);
  const UniqueFd reader(open(path.c_str(), O_RDONLY | O_NONBLOCK));
  CHECK(write_result_file(path, "result\n").empty());
  CHECK(read_all(reader.get()) == "result\n");
  CHECK(fs::is_fifo(path));
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE(
    "result place: a reader that takes nothing is waited for so long, one that reads longer") {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const std::string text(1 << 20, 'x');
  CHECK(write_result_file(fd_path(ends[1]), text, 20ms).find("its reader takes nothing") !=
        std::string::npos);
  std::string seen;
  std::thread other([&] { seen = read_all(reader.get()); });
  CHECK(write_result_file(fd_path(ends[1]), text, 30s).empty());
  writer.reset();
  other.join();
  CHECK(seen.size() > text.size());
}

TEST_CASE("result place: a descriptor goes on where it is") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() / "log", link = folder.path() / "link";
  const UniqueFd log(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(write(log.get(), "before\n", 7) == 7);
  fs::create_symlink(fd_path(log.get()), link);
  CHECK(write_result_file(link, "result\n").empty());
  REQUIRE(write(log.get(), "after\n", 6) == 6);
  CHECK(content(path) == "before\nresult\nafter\n");
  fs::remove(path);  // its name leads nowhere any more
  CHECK(write_result_file(fd_path(log.get()), "result\n").empty());
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("result place: another process's descriptor is written, with a name or without") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() / "log";
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd held(ends[0]);
  UniqueFd held_by_us(ends[1]);
  const UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  const UniqueFd nameless(memfd_create("result", MFD_CLOEXEC));
  const pid_t holder = fork();
  if (holder == 0) {
    held_by_us.reset();
    char end;
    (void)!read(held.get(), &end, 1);
    _exit(0);
  }
  const std::string its_fds = "/proc/" + std::to_string(holder) + "/fd/";
  CHECK(write_result_file(its_fds + std::to_string(file.get()), "result\n").empty());
  CHECK(content(path) == "result\n");
  CHECK(write_result_file(its_fds + std::to_string(nameless.get()), "nameless\n").empty());
  CHECK(content(fd_path(nameless.get())) == "nameless\n");
  held_by_us.reset();
  REQUIRE(waitpid(holder, nullptr, 0) == holder);
}

TEST_CASE("result place: in a folder where nothing may be made the file itself is written") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() / "result.json";
  std::ofstream(path) << "longer than the new one\n";
  if (geteuid() == 0) REQUIRE(chown(path.c_str(), Nobody::kId, Nobody::kId) == 0);
  REQUIRE(chmod(folder.path().c_str(), 0555) == 0);
  {
    const Nobody nobody;
    CHECK(write_result_file(path, "new\n").empty());
    CHECK(write_result_file(folder.path() / "other", "x").find("(open): Permission denied") !=
          std::string::npos);
  }
  REQUIRE(chmod(folder.path().c_str(), 0755) == 0);
  CHECK(content(path) == "new\n");
}

}  // namespace hvd
