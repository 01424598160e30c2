// A store in a folder of the test's: what is whole, what is asked for again, what goes.
#include "cli/ship/ship_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <thread>

#include "rendezvous/digest.h"
#include "runtime/base/error.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace hvd {
namespace {

namespace fs = std::filesystem;

proto::ShippedFile file_of(const std::string& text, bool executable = false) {
  proto::ShippedFile file;
  file.set_sum(sha256(std::as_bytes(std::span(text))));
  file.set_bytes(text.size());
  file.set_executable(executable);
  return file;
}

std::string text_of(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Bytes as they come from hvdrun: a few at once.
ShipStore::ReadSome reader(std::string text) {
  return [text = std::move(text), at = size_t(0)](char* bytes, size_t most) mutable {
    const size_t n = std::min({most, size_t(7), text.size() - at});
    if (n == 0) throw Error(ErrorCode::kUnavailable, "gone");
    std::memcpy(bytes, text.data() + at, n);
    at += n;
    return n;
  };
}

void take(ShipStore& store, const std::string& text, bool executable = false) {
  const proto::ShippedFile file = file_of(text, executable);
  store.take({&file}, [] {}, reader(text));
}

int entries(const fs::path& folder) {
  return int(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

struct Place {
  TemporaryDirectory folder;
  std::string path = (folder.path() / "hvdrun" / "shipped").string();
};

}  // namespace

TEST_CASE("ship_store: what was taken is there, with its mode, and once") {
  const Place place;
  ShipStore store(place.path);
  const proto::ShippedFile plain = file_of("hello world, this is a file"),
                           program = file_of("hello world, this is a file", true);
  CHECK_FALSE(store.has(plain));
  int asked = 0;
  store.take(
      {&plain, &program}, [&] { ++asked; },
      reader("hello world, this is a filehello world, this is a file"));
  CHECK(asked == 1);
  CHECK(store.has(plain));
  CHECK(store.has(program));
  CHECK_FALSE(store.has(file_of("hello world, this is a bile")));
  CHECK(ShipStore(place.path).has(plain));
  const proto::ShippedFile nothing = file_of("");
  store.take({&nothing}, [&] { ++asked; }, reader(""));
  CHECK(store.has(nothing));
  CHECK(asked == 1);  // for no bytes nobody is asked
  CHECK(entries(place.path) == 2);
}

TEST_CASE("ship_store: other bytes than those of the sum, and fewer, leave nothing") {
  const Place place;
  ShipStore store(place.path);
  const proto::ShippedFile file = file_of("the right bytes");
  CHECK_THROWS_AS(store.take({&file}, [] {}, reader("the wrong bytes")), Error);
  CHECK_THROWS_AS(store.take({&file}, [] {}, reader("the right")), Error);
  CHECK_FALSE(store.has(file));
  CHECK(entries(place.path + "/files") == 0);
  CHECK(entries(place.path) == 2);
  take(store, "the right bytes");
  CHECK(store.has(file));
}

TEST_CASE("ship_store: a file that was changed there is asked for again, and its tree made anew") {
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

TEST_CASE("ship_store: a tree that lacks something is made anew") {
  const Place place;
  ShipStore store(place.path);
  take(store, "abcdef", true);
  const proto::ShippedFile file = file_of("abcdef", true);
  UniqueFd lock;
  const std::string tree = store.tree({{"a", &file}}, lock);
  CHECK(store.tree({{"b", &file}}, lock) != tree);
  CHECK(access((tree + "/a").c_str(), X_OK) == 0);
  fs::remove(tree + "/a");
  CHECK(store.tree({{"a", &file}}, lock) == tree);
  CHECK(text_of(tree + "/a") == "abcdef");
  CHECK(entries(place.path + "/trees") == 2);
}

TEST_CASE("ship_store: any number may take and make the same at once") {
  const Place place;
  const proto::ShippedFile file = file_of("abcdef");
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

TEST_CASE("ship_store: more than there is room for is not asked for") {
  const Place place;
  ShipStore store(place.path);
  proto::ShippedFile file = file_of("abcdef");
  file.set_bytes(uint64_t(1) << 60);
  bool asked = false;
  CHECK_THROWS_AS(store.take({&file}, [&] { asked = true; }, reader("abcdef")), NoPlace);
  CHECK_FALSE(asked);
  CHECK(entries(place.path) == 2);
}

TEST_CASE("ship_store: what nobody uses goes, what is used or young stays") {
  const Place place;
  ShipStore store(place.path);
  take(store, "shared");
  take(store, "of the old one");
  take(store, "of none");
  const proto::ShippedFile shared = file_of("shared"), old = file_of("of the old one"),
                           none = file_of("of none");
  UniqueFd used, unused;
  const std::string old_tree = store.tree({{"a", &shared}, {"b", &old}}, unused);
  const std::string young_tree = store.tree({{"a", &shared}}, used);
  const timespec then[2] = {{1'000'000'000, 0}, {1'000'000'000, 0}};
  utimensat(AT_FDCWD, old_tree.c_str(), then, 0);
  const int64_t month = 30 * 24 * 3600;
  CHECK(clean_store(place.path, month, false).trees == 0);  // we use it
  unused.reset();
  const ShipRemoval told = clean_store(place.path, month, true);
  CHECK(told.trees == 1);
  CHECK(told.bytes == old.bytes());
  CHECK(store.has(old));
  const ShipRemoval done = clean_store(place.path, month, false);
  CHECK(done.trees == 1);
  CHECK(done.bytes == old.bytes());
  CHECK_FALSE(fs::exists(old_tree));
  CHECK(text_of(young_tree + "/a") == "shared");
  CHECK_FALSE(store.has(old));
  CHECK(store.has(shared));
  CHECK(store.has(none));  // of a job that was broken off just now, perhaps
  CHECK(clean_store((place.folder.path() / "nothing").string(), 0, false).trees == 0);
}

}  // namespace hvd
