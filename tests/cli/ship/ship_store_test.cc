// A store in a folder of the test's: what is whole, what is asked for again, what goes.
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

namespace hvd {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMonth = 30 * 24 * 3600;

void grow_old(const std::string& path) {
  const timespec then[2] = {{1'000'000'000, 0}, {1'000'000'000, 0}};
  utimensat(AT_FDCWD, path.c_str(), then, 0);
}

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
    while (text_of(at) == "others") std::this_thread::yield();
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
  const Place place;
  const std::string above = place.folder.path().string();
  for (const mode_t mode : {0777, 0770, 0707, 02775}) {
    chmod(above.c_str(), mode);
    CHECK_THROWS_AS(ShipStore(place.path), NoPlace);
    CHECK(entries(above) == 0);
  }
  chmod(above.c_str(), 01777);
  CHECK_NOTHROW(ShipStore(place.path));
  if (geteuid() != 0) return;
  chmod(above.c_str(), 0755);
  CHECK(chown(above.c_str(), 12345, 12345) == 0);
  CHECK_THROWS_AS(ShipStore(place.path), NoPlace);
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

TEST_CASE("ship_store: what nobody uses goes, what is used or young stays") {
  const Place place;
  std::optional<ShipStore> store(place.path);
  take(*store, "shared");
  take(*store, "of the old one");
  take(*store, "of none");
  const proto::ShippedFile shared = file_of("shared"), old = file_of("of the old one"),
                           none = file_of("of none");
  UniqueFd used, unused;
  const std::string old_tree =
      store->tree({{"a", &shared}, {"b", &old}, {"c", &old}, {"d", nullptr}}, unused);
  const std::string young_tree = store->tree({{"a", &shared}}, used);
  grow_old(old_tree);
  store.reset();
  CHECK(clean_store(place.path, kMonth, false).trees == 0);  // we use it
  unused.reset();
  const ShipRemoval told = clean_store(place.path, kMonth, true);
  CHECK(told.trees == 1);
  CHECK(told.bytes == old.bytes());
  CHECK(text_of(old_tree + "/c") == "of the old one");
  store.emplace(place.path);
  CHECK(store->has(old));
  CHECK(clean_store(place.path, kMonth, false).trees == 0);  // a job takes from it
  store.reset();
  const ShipRemoval done = clean_store(place.path, kMonth, false);
  CHECK(done.trees == 1);
  CHECK(done.bytes == old.bytes());
  CHECK_FALSE(fs::exists(old_tree));
  CHECK(text_of(young_tree + "/a") == "shared");
  CHECK(entries(place.path) == 2);
  store.emplace(place.path);
  CHECK_FALSE(store->has(old));
  CHECK(store->has(shared));
  CHECK(store->has(none));  // of a job that was broken off just now, perhaps
  CHECK(clean_store((place.folder.path() / "nothing").string(), 0, false).trees == 0);
}

TEST_CASE("ship_store: nothing is cleaned where somebody else has made what looks like a store") {
  const Place place;
  const fs::path home = place.folder.path() / "home", trap = fs::path(place.path).parent_path();
  fs::create_directories(home / "trees" / "work");
  fs::create_directories(home / "files");
  std::ofstream(home / "trees" / "work" / "thesis") << "years";
  grow_old((home / "trees" / "work").string());
  fs::create_directory(trap);
  chmod(home.c_str(), 0700);
  SECTION("a link to a folder") { fs::create_directory_symlink(home, place.path); }
  SECTION("a link in it") {
    fs::create_directories(place.path + "/files");
    fs::create_directory_symlink(home / "trees", place.path + "/trees");
  }
  SECTION("a folder that others may write to") {
    fs::rename(home, place.path);
    fs::create_directory_symlink(place.path, home);
    chmod(trap.c_str(), 0777);
  }
  CHECK(clean_store(place.path, kMonth, false).trees == 0);
  CHECK(text_of(home / "trees" / "work" / "thesis") == "years");
}

}  // namespace hvd
