// A store in a folder of the test's: what is whole, what is asked for again, where it may be.
#include "cli/ship/ship_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "tests/cli/ship/ship_files.h"
#include "tests/support/catch.h"
#include "tests/support/left_out.h"
#include "tests/support/until.h"

namespace hvd {
namespace {

namespace fs = std::filesystem;

}  // namespace

TEST_CASE("ship_store: what was taken is there, with its mode, and once") {
  const Place place;
  ShipStore store(place.path);
  const proto::ShippedFile plain = file_of("hello world, this is a file"),
                           program = file_of("hello world, this is a file", true);
  CHECK_FALSE(store.has(plain));
  int asked = 0;
  store.take(
      {{&plain, "plain"}, {&program, "program"}}, [&] { ++asked; },
      reader("hello world, this is a filehello world, this is a file"));
  CHECK(asked == 1);
  CHECK(store.has(plain));
  CHECK(store.has(program));
  CHECK_FALSE(store.has(file_of("hello world, this is a bile")));
  CHECK(ShipStore(place.path).has(plain));
  const proto::ShippedFile nothing = file_of("");
  store.take({{&nothing, "nothing"}}, [&] { ++asked; }, reader(""));
  CHECK(store.has(nothing));
  CHECK(asked == 1);  // for no bytes nobody is asked
  CHECK(entries(place.path) == 2);
}

// So long a one is on disk in several pieces while the rest of it comes.
TEST_CASE("ship_store: a long file is taken") {
  const Place place;
  ShipStore store(place.path);
  const std::string text(130u << 20, 'x');
  const proto::ShippedFile file = file_of(text);
  store.take({{&file, "file"}}, [] {}, reader(text, 1 << 20));
  CHECK(store.has(file));
}

TEST_CASE("ship_store: other bytes than those of the sum, and fewer, leave nothing") {
  const Place place;
  ShipStore store(place.path);
  const proto::ShippedFile file = file_of("the right bytes");
  try {
    store.take({{&file, "/data/a"}}, [] {}, reader("the wrong bytes"));
    FAIL("it was taken");
  } catch (const Error& error) {
    CHECK(std::string(error.what()) ==
          "\"/data/a\" arrived with another SHA-256 sum than hvdrun had read; start again");
  }
  CHECK_THROWS_AS(store.take({{&file, "file"}}, [] {}, reader("the right")), Error);
  CHECK_FALSE(store.has(file));
  CHECK(entries(place.path + "/files") == 0);
  CHECK(entries(place.path) == 2);
  take(store, "the right bytes");
  CHECK(store.has(file));
}

TEST_CASE(
    "ship_store: a file that was changed there is asked for again, and put back in its tree") {
  const Place place;
  ShipStore store(place.path);
  take(store, "abcdef");
  const proto::ShippedFile file = file_of("abcdef");
  UniqueFd lock;
  const std::string tree = store.tree({{"a/b", &file}, {"c", nullptr}}, lock);
  CHECK(text_of(tree + "/a/b") == "abcdef");
  CHECK(fs::is_directory(tree + "/c"));
  CHECK(store.tree({{"a/b", &file}, {"c", nullptr}}, lock) == tree);

  SECTION("by a write of as many bytes") {
    chmod((tree + "/a/b").c_str(), 0600);
    std::ofstream(tree + "/a/b", std::ios::binary) << "abcdeg";
    chmod((tree + "/a/b").c_str(), 0400);
  }
  SECTION("cut off") {
    chmod((tree + "/a/b").c_str(), 0600);
    fs::resize_file(tree + "/a/b", 0);
    chmod((tree + "/a/b").c_str(), 0400);
  }
  CHECK_FALSE(store.has(file));
  take(store, "abcdef");
  CHECK(store.tree({{"a/b", &file}, {"c", nullptr}}, lock) == tree);
  CHECK(text_of(tree + "/a/b") == "abcdef");
  CHECK(entries(place.path) == 2);
}

TEST_CASE("ship_store: what ranks put into a tree stays, what they changed of it is put back") {
  const Place place;
  ShipStore store(place.path);
  take(store, "abcdef", true);
  take(store, "ghi");
  const proto::ShippedFile program = file_of("abcdef", true), file = file_of("ghi");
  const ShipStore::Names names = {
      {"p", nullptr}, {"p/a", &program}, {"p/b", &file}, {"p/c", &file}, {"q", nullptr}};
  UniqueFd first, second, other;
  const std::string tree = store.tree(names, first);
  CHECK(store.tree({{"b", &file}}, other) != tree);
  CHECK(access((tree + "/p/a").c_str(), X_OK) == 0);

  std::ofstream(tree + "/p/checkpoint") << "weights";
  std::ofstream(tree + "/p/new") << "compiled";
  fs::rename(tree + "/p/new", tree + "/p/b");  // as python does with what it compiles
  fs::remove(tree + "/p/a");
  fs::remove(tree + "/q");
  const int watched = open((tree + "/p").c_str(), O_RDONLY | O_DIRECTORY);  // a rank works in it
  CHECK(store.tree(names, second) == tree);
  CHECK(text_of(tree + "/p/checkpoint") == "weights");
  CHECK(text_of(tree + "/p/a") == "abcdef");
  CHECK(text_of(tree + "/p/b") == "ghi");
  CHECK(fs::is_directory(tree + "/q"));
  struct stat before{}, after{};
  CHECK(fstat(watched, &before) == 0);
  CHECK(stat((tree + "/p").c_str(), &after) == 0);
  CHECK(before.st_ino == after.st_ino);
  CHECK(fstat(first.get(), &before) == 0);
  CHECK(stat(tree.c_str(), &after) == 0);
  CHECK(before.st_ino == after.st_ino);  // so that the first job's lock still keeps it
  close(watched);
  CHECK(entries(place.path + "/trees") == 2);
  CHECK(entries(place.path) == 2);
}

TEST_CASE("ship_store: what is in the way of a file or a folder stays, and another place is used") {
  const Place place;
  ShipStore store(place.path);
  take(store, "abcdef");
  const proto::ShippedFile file = file_of("abcdef");
  const ShipStore::Names names = {{"a", &file}, {"q", nullptr}};
  UniqueFd lock;
  const std::string tree = store.tree(names, lock);
  std::string precious;
  SECTION("a folder") {
    fs::remove(tree + "/a");
    fs::create_directory(tree + "/a");
    precious = tree + "/a/checkpoint";
  }
  SECTION("a file") {
    fs::remove(tree + "/q");
    precious = tree + "/q";
  }
  std::ofstream(precious) << "weights";
  CHECK_THROWS_AS(store.tree(names, lock), NoPlace);
  CHECK(text_of(precious) == "weights");
  CHECK(entries(place.path) == 2);
}

TEST_CASE("ship_store: any number may put back the same at once, and a reader always finds it") {
  const Place place;
  const proto::ShippedFile file = file_of("abcdef");
  UniqueFd lock;
  std::optional<ShipStore> store(place.path);
  take(*store, "abcdef");
  const std::string tree = store->tree({{"x", &file}}, lock), at = tree + "/x";
  for (int i = 0; i < 50; ++i) {
    std::ofstream(tree + "/new") << "others";
    fs::rename(tree + "/new", at);
    std::vector<std::jthread> all;
    for (int k = 0; k < 4; ++k)
      all.emplace_back([&] {
        UniqueFd own;
        ShipStore(place.path).tree({{"x", &file}}, own);
      });
    until("it is put back", [&] { return text_of(at) != "others"; });
    CHECK(text_of(at) == "abcdef");
  }
  CHECK(entries(tree) == 1);
  CHECK(entries(place.path) == 2);
}

TEST_CASE("ship_store: any number may take and make the same at once") {
  const proto::ShippedFile file = file_of("abcdef");
  for (int round = 0; round < 20; ++round) {
    const Place place;
    std::vector<std::string> trees(8);
    {
      std::vector<std::jthread> all;
      for (std::string& tree : trees)
        all.emplace_back([&] {
          ShipStore store(place.path);
          if (!store.has(file)) take(store, "abcdef");
          UniqueFd lock;
          tree = store.tree({{"x/y", &file}}, lock);
          if (text_of(tree + "/x/y") != "abcdef") tree = "";
        });
    }
    for (const std::string& tree : trees) CHECK(tree == trees[0]);
    CHECK_FALSE(trees[0].empty());
    CHECK(entries(place.path) == 2);
  }
}

TEST_CASE("ship_store: a folder of somebody else's or for everybody is not entered") {
  const Place place;
  fs::create_directories(place.path);
  chmod(place.path.c_str(), 0777);
  CHECK_THROWS_AS(ShipStore(place.path), NoPlace);
  fs::remove(place.path);
  fs::create_directory(place.folder.path() / "elsewhere");
  fs::create_symlink("../elsewhere", place.path);
  CHECK_THROWS_AS(ShipStore(place.path), NoPlace);
  CHECK_THROWS_AS(ShipStore((place.folder.path() / "no" / "hvdrun" / "shipped").string()), NoPlace);
}

TEST_CASE("ship_store: a folder in which others may put another in its place is not entered") {
  const TemporaryDirectory top;
  const fs::path above = top.path() / "above";
  fs::create_directory(above);
  const bool is_root = geteuid() == 0;
  // Nobody's group, where there may be one: this user's own may write.
  const gid_t group = is_root ? 12345 : getegid();
  const std::string store = (above / "hvdrun" / "shipped").string();
  for (const fs::path& unsafe : {above, top.path()}) {
    CHECK(chown(unsafe.c_str(), uid_t(-1), group) == 0);
    for (const mode_t mode : {0777, 0770, 0707, 02775}) {
      if (!is_root && (mode & 2) == 0) continue;
      chmod(unsafe.c_str(), mode);
      CHECK_THROWS_AS(ShipStore(store), NoPlace);
      CHECK(fs::is_empty(above));
    }
    chmod(unsafe.c_str(), 0700);
  }
  chmod(above.c_str(), 01777);
  CHECK_NOTHROW(ShipStore(store));
  if (!is_root) return note_left_out("ship_store_test: another user's folder", kNotRoot);
  for (const mode_t mode : {0755, 01777}) {  // whoever owns a folder may change what is in it
    chmod(above.c_str(), mode);
    CHECK(chown(above.c_str(), 12345, 12345) == 0);
    CHECK_THROWS_AS(ShipStore(store), NoPlace);
  }
}

TEST_CASE("ship_store: a link that leads to a safe folder is followed once") {
  const TemporaryDirectory top;
  const fs::path real = top.path() / "disk", link = top.path() / "home" / ".cache";
  fs::create_directory(real);
  fs::create_directory(link.parent_path());
  fs::create_directory_symlink(real, link);
  ShipStore store((link / "hvdrun" / "shipped").string());
  take(store, "abcdef");
  const proto::ShippedFile file = file_of("abcdef");
  UniqueFd lock;
  const std::string tree = store.tree({{"a", &file}}, lock);
  CHECK(tree.starts_with(fs::canonical(real).string() + "/hvdrun/shipped/trees/"));
  fs::remove(link);
  CHECK(text_of(tree + "/a") == "abcdef");
}

TEST_CASE("ship_store: more than there is room for is not asked for") {
  const Place place;
  ShipStore store(place.path);
  proto::ShippedFile file = file_of("abcdef");
  file.set_bytes(uint64_t(1) << 60);
  bool asked = false;
  CHECK_THROWS_AS(store.take({{&file, "file"}}, [&] { asked = true; }, reader("abcdef")), NoPlace);
  CHECK_FALSE(asked);
  CHECK(entries(place.path) == 2);
}

}  // namespace hvd
