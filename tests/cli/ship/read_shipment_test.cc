// Files, folders and programs that a test makes, as they are read for other hosts.
#include "cli/ship/read_shipment.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "proto/rendezvous.pb.h"
#include "rendezvous/digest.h"
#include "runtime/base/error.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace hvd {
namespace {

namespace fs = std::filesystem;

struct Read {
  proto::Shipment list;
  ShipOffer offer;

  std::map<std::string, int> paths() const {
    std::map<std::string, int> all;
    for (const auto& one : list.paths()) all[one.path()] = one.file();
    return all;
  }
};

class Folder {
 public:
  Folder() : before_(fs::current_path()) { fs::current_path(directory_.path()); }
  ~Folder() { fs::current_path(before_); }
  std::string at(const std::string& name) const { return (fs::current_path() / name).string(); }
  static void write(const std::string& name, const std::string& text) {
    if (fs::path(name).has_parent_path()) fs::create_directories(fs::path(name).parent_path());
    std::ofstream(name, std::ios::binary) << text;
  }

 private:
  const TemporaryDirectory directory_;
  const fs::path before_;
};

Read read(const std::vector<std::string>& ship, const std::vector<std::string>& command = {"true"},
          uint64_t limit = 1u << 30) {
  JobSpec spec;
  spec.ship = ship;
  spec.command = command;
  spec.ship_limit = limit;
  Read seen;
  seen.offer = read_shipment(spec, {});
  REQUIRE(seen.list.ParseFromString(seen.offer.list));
  REQUIRE(seen.list.files_size() == int(seen.offer.files.size()));
  return seen;
}

std::string refusal(const std::vector<std::string>& ship, uint64_t limit = 1u << 30) {
  try {
    read(ship, {"true"}, limit);
    return "";
  } catch (const Error& error) {
    return error.code() == ErrorCode::kInvalidArgument ? error.what() : "wrong code";
  }
}

}  // namespace

TEST_CASE("read_shipment: folders come whole, contents once") {
  const Folder folder;
  folder.write("data/a.txt", "same");
  folder.write("data/sub/b.txt", "same");
  folder.write("data/sub/c.txt", "other");
  fs::create_directory("data/empty");
  folder.write("tool", "same");
  chmod("tool", 0755);
  const Read seen = read({"data", "./tool", "data/sub"});
  const auto paths = seen.paths();
  REQUIRE(paths.size() == 7);
  CHECK(paths.at(folder.at("data")) == -1);
  CHECK(paths.at(folder.at("data/empty")) == -1);
  CHECK(paths.at(folder.at("data/a.txt")) == paths.at(folder.at("data/sub/b.txt")));
  CHECK(paths.at(folder.at("data/a.txt")) != paths.at(folder.at("tool")));  // executable
  CHECK(seen.list.files_size() == 3);
  const auto& file = seen.list.files(paths.at(folder.at("data/sub/c.txt")));
  CHECK(file.sum() == sha256(std::as_bytes(std::span(std::string_view("other")))));
  CHECK(file.bytes() == 5);
  CHECK_FALSE(file.executable());
  CHECK(seen.list.programs_size() == 0);
  CHECK(seen.list.home_will_do());
}

TEST_CASE("read_shipment: links are followed, but not in a ring") {
  const Folder folder;
  folder.write("outside/file", "text");
  fs::create_directory("in");
  fs::create_symlink("../outside/file", "in/file");
  fs::create_directory_symlink("../outside", "in/folder");
  const auto paths = read({"in"}).paths();
  CHECK(paths.size() == 4);
  CHECK(paths.at(folder.at("in/folder/file")) == 0);
  fs::create_directory_symlink("..", "in/up");
  CHECK(refusal({"in"}) ==
        "--ship: \"" + folder.at("in/up") + "\" is a link to a folder that it is in; leave it out");
}

TEST_CASE("read_shipment: what is no file is named") {
  const Folder folder;
  CHECK(refusal({"nothing"}) ==
        "--ship: \"" + folder.at("nothing") + "\" cannot be read: No such file or directory");
  fs::create_directory("in");
  fs::create_symlink("nowhere", "in/dangling");
  CHECK(refusal({"in/dangling"}) ==
        "--ship: \"" + folder.at("in/dangling") + "\" cannot be read: No such file or directory");
  REQUIRE(mkfifo("in/pipe", 0600) == 0);
  CHECK(refusal({"in/pipe"}) ==
        "--ship: \"" + folder.at("in/pipe") + "\" is neither a file nor a folder; leave it out");
  CHECK(refusal({"gone/../in"}) ==
        "--ship: \"gone/../in\" cannot be read: No such file or directory");
  CHECK(refusal({""}) == "--ship: \"\" is an empty path");
  CHECK(refusal({"/"}) == "--ship: \"/\" is everything; name what the command needs");
}

TEST_CASE(
    "read_shipment: a file that may not be read ends the start, and how to go without is told") {
  const Folder folder;
  folder.write("in/file", "text");
  folder.write("in/secret", "text");
  REQUIRE(chmod("in/secret", 0) == 0);
  REQUIRE(chmod(".", 0755) == 0);
  const bool is_root = geteuid() == 0;  // who may read all
  if (is_root) REQUIRE(seteuid(12345) == 0);
  const std::string why = refusal({"in"});
  if (is_root) REQUIRE(seteuid(0) == 0);
  CHECK(why == "--ship: \"" + folder.at("in/secret") +
                   "\" cannot be read: Permission denied; let it be read, or name what the command "
                   "needs of the folder that it is in, one --ship for each");
}

TEST_CASE("read_shipment: what is no file is left out of a folder, and told") {
  const Folder folder;
  folder.write("in/deep/file", "text");
  fs::create_symlink("nowhere", "in/dangling");
  fs::create_symlink("ring", "in/ring");
  REQUIRE(mkfifo("in/deep/pipe", 0600) == 0);
  const Read seen = read({"in"});
  CHECK(seen.paths().size() == 3);
  CHECK(seen.offer.named == 1);
  std::vector<std::string> left_out = seen.offer.left_out;
  std::ranges::sort(left_out);
  CHECK(left_out == std::vector<std::string>{folder.at("in/dangling"), folder.at("in/deep/pipe"),
                                             folder.at("in/ring")});
}

TEST_CASE("read_shipment: more than the limit is refused before it is read") {
  const Folder folder;
  folder.write("large", "");
  fs::resize_file("large", uint64_t(1) << 40);  // which would take long to read
  CHECK(
      refusal({"large"}).starts_with("what is to be shipped comes to 1099.5 GB, and --ship-limit "
                                     "allows 1.1 GB; the largest: \"" +
                                     folder.at("large") + "\" (1099.5 GB); leave some out"));
}

TEST_CASE("read_shipment: words of the command that name something shipped are found") {
  const Folder folder;
  folder.write("data/a", "text");
  folder.write("train.py", "text");
  const Read seen = read({"data", "train.py"},
                         {"python3", "train.py", "--data", "./data/", "--data=data", "data/a", "b",
                          folder.at("data/../data"), "data/../../x", "gone/../data"});
  std::map<int, std::string> words;
  for (const auto& one : seen.list.words()) words[one.index()] = one.path();
  CHECK(words == std::map<int, std::string>{{1, folder.at("train.py")},
                                            {3, folder.at("data")},
                                            {5, folder.at("data/a")},
                                            {7, folder.at("data")}});
  // A first word without a slash is looked for on the PATH.
  folder.write("python3", "text");
  CHECK(read({"python3"}, {"python3"}).list.words_size() == 0);
  CHECK(read({"python3"}, {"./python3"}).list.words_size() == 1);
  folder.write("a program", "text");
  CHECK_THROWS_WITH(
      read({"a program"}, {"a program"}),
      "--ship: \"a program\" is shipped, but as a command it is looked for on the PATH, where none "
      "is; write './a program'");
}

TEST_CASE("read_shipment: a word may lead by other links to what is shipped") {
  const Folder folder;
  folder.write("disk/home/proj/data/a", "text");
  folder.write("disk/home/proj/train.py", "text");
  folder.write("disk/other/c", "text");
  folder.write("disk/data/b", "text");
  fs::create_directory_symlink("disk/home", "home");
  fs::create_directory_symlink("../../other", "disk/home/proj/link");
  std::map<int, std::string> words;
  const auto look = [&](const std::vector<std::string>& ship,
                        const std::vector<std::string>& command) {
    words.clear();
    const Read seen = read(ship, command);
    for (const auto& one : seen.list.words()) words[one.index()] = one.path();
    return seen;
  };
  const std::string proj = folder.at("home/proj"), real = folder.at("disk/home/proj");
  look({proj + "/data", proj + "/train.py"},
       {"python3", real + "/train.py", "disk/home/proj/data/a"});
  CHECK(words == std::map<int, std::string>{{1, proj + "/train.py"}, {2, proj + "/data/a"}});
  // Above a link there is what the file system says, not what is written.
  const Read seen = look({real + "/link/../data"},
                         {"cat", real + "/data", real + "/link/../data", "disk/data/b"});
  CHECK(seen.paths() ==
        std::map<std::string, int>{{folder.at("disk/data"), -1}, {folder.at("disk/data/b"), 0}});
  CHECK(words ==
        std::map<int, std::string>{{2, folder.at("disk/data")}, {3, folder.at("disk/data/b")}});
}

TEST_CASE("read_shipment: a word that names a link or another name of a shipped file stays") {
  const Folder folder;
  folder.write("bin/python3.11", "text");
  fs::create_directories("venv/bin");
  fs::create_symlink("../../bin/python3.11", "venv/bin/python3");
  fs::create_hard_link("bin/python3.11", "bin/other");
  fs::create_symlink("venv/bin/python3", "mine");
  const std::vector<std::string> ship = {"venv"};
  CHECK(read(ship, {"bin/python3.11", "bin/other", "./mine"}).list.words_size() == 0);
  CHECK(read(ship, {"venv/bin/python3"}).list.words_size() == 1);
}

TEST_CASE(
    "read_shipment: a script whose interpreter lies elsewhere there is refused with what to "
    "write") {
  const Folder folder;
  folder.write("venv/bin/python3", "text");
  folder.write("venv/bin/torchrun", "#!" + folder.at("venv/bin/python3") + " -E\nimport sys\n");
  folder.write("venv/bin/plain", "#!/bin/sh\n");
  JobSpec spec;
  spec.ship = {"venv"};
  spec.ship_limit = 1u << 30;
  spec.command = {"venv/bin/torchrun", "t.py"};
  try {
    read_shipment(spec, {});
    FAIL("it was taken");
  } catch (const Error& error) {
    CHECK(std::string(error.what()) ==
          "--ship: \"venv/bin/torchrun\" is a script for \"" + folder.at("venv/bin/python3") +
              "\", which is shipped too, and lies elsewhere there; write " +
              folder.at("venv/bin/python3") + " -E venv/bin/torchrun");
  }
  CHECK(read({"venv"}, {"venv/bin/plain"}).list.words_size() == 1);
  CHECK(read({"venv"}, {folder.at("venv/bin/python3"), "-E", "venv/bin/torchrun"})
            .list.words_size() == 2);
  CHECK(read({"venv/bin/torchrun"}, {"venv/bin/torchrun"}).list.words_size() == 1);
}

TEST_CASE("read_shipment: who waits hears how far it is") {
  const Folder folder;
  folder.write("data/a", std::string(3u << 20, 'a'));
  folder.write("data/b", std::string(1u << 20, 'b'));
  JobSpec spec;
  spec.ship = {"data"};
  spec.ship_limit = 1u << 30;
  std::vector<std::string> lines;
  ReadProgress progress{[&](const std::string& line) { lines.push_back(line); }};
  progress.first = progress.next = std::chrono::milliseconds(0);
  read_shipment(spec, {}, progress);
  const std::string words = "reading what --ship names: 4.2 MB, ";
  CHECK(lines ==
        std::vector<std::string>{words + "25 %", words + "50 %", words + "75 %", words + "100 %"});
  lines.clear();
  progress.first = std::chrono::hours(1);
  read_shipment(spec, {}, progress);
  CHECK(lines.empty());
}

TEST_CASE("read_shipment: a program comes with what its loader lists") {
  const Folder folder;
  fs::copy(fs::read_symlink("/proc/self/exe"), "train");
  for (const auto& [ship, command] :
       std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>>{
           {{"train"}, {"true"}}, {{"."}, {"./train"}}, {{"."}, {"env", "train"}}}) {
    const Read seen = read(ship, command);
    REQUIRE(seen.list.programs_size() == 1);
    CHECK(seen.list.programs(0).path() == folder.at("train"));
    std::map<std::string, std::string> libraries;
    for (const auto& one : seen.list.libraries())
      libraries[one.name()] = seen.offer.files[size_t(one.file())].path;
    CHECK(libraries.contains("libc.so.6"));
    CHECK(libraries.contains(fs::path(seen.list.programs(0).loader()).filename().string()));
    CHECK(seen.list.libraries_size() >= 3);
    CHECK(seen.offer.named == 1);
    CHECK(seen.offer.libraries_from == 1);
  }
  CHECK(read({"."}, {"true"}).list.programs_size() == 0);  // not looked at in a folder
}

TEST_CASE("read_shipment: a libhvd comes with its part for GPUs, which lies beside it") {
  const Folder folder;
  for (const char* name :
       {"lib/libhvd.so.0.1", "lib/libhvd_nccl.so", "lib/libother.so", "bare/libhvd.so"})
    folder.write(name, name);
  CHECK(read({"lib/libhvd.so.0.1"}).paths().contains(folder.at("lib/libhvd_nccl.so")));
  CHECK(read({"lib/libother.so"}).paths().size() == 1);
  CHECK(read({"bare/libhvd.so"}).paths().size() == 1);
  CHECK(read({"lib"}).paths().size() == 4);
}

}  // namespace hvd
