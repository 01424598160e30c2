// Lists that are refused, and how a command starts from what was shipped.
#include "cli/ship/shipped.h"

#include <filesystem>

#include "runtime/base/error.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace hvd {
namespace {

proto::Shipment good_list() {
  proto::Shipment list;
  list.add_files()->set_sum(std::string(64, 'a'));
  proto::ShippedPath& path = *list.add_paths();
  path.set_path("/home/ann/train");
  path.set_file(0);
  proto::ShippedPath& folder = *list.add_paths();
  folder.set_path("/home/ann/data");
  folder.set_file(-1);
  proto::ShippedLibrary& library = *list.add_libraries();
  library.set_name("libc.so.6");
  library.set_file(0);
  proto::ShippedProgram& program = *list.add_programs();
  program.set_path("/home/ann/train");
  program.set_loader("/lib64/ld-linux-x86-64.so.2");
  proto::ShippedWord& word = *list.add_words();
  word.set_index(0);
  word.set_path("/home/ann/train");
  return list;
}

proto::StartWorkers command(std::initializer_list<const char*> words) {
  proto::StartWorkers start;
  for (const char* word : words) start.add_argv(word);
  return start;
}

std::vector<std::string> argv(const proto::StartWorkers& start) {
  return {start.argv().begin(), start.argv().end()};
}

Shipped at(const std::string& folder, const std::string& libraries = "",
           const std::string& loader = "") {
  Shipped shipped;
  shipped.folder = folder;
  shipped.libraries = libraries;
  shipped.loader = loader;
  const proto::Shipment list = good_list();
  shipped.words.assign(list.words().begin(), list.words().end());
  return shipped;
}

}  // namespace

TEST_CASE("shipped: a path that leads elsewhere is refused") {
  CHECK_NOTHROW(check_shipment(good_list()));
  for (const char* bad : {"", "/", "train", "../train", "/a/../../etc/passwd", "/a/./b", "/a//b",
                          "/a/", "/..", "//a"}) {
    proto::Shipment list = good_list();
    list.add_paths()->set_path(bad);
    INFO(bad);
    CHECK_THROWS_AS(check_shipment(list), Error);
  }
  for (const std::string& bad : {std::string("/a\0b", 4), "/" + std::string(256, 'a')}) {
    proto::Shipment list = good_list();
    list.add_paths()->set_path(bad);
    CHECK_THROWS_AS(check_shipment(list), Error);
  }
}

TEST_CASE("shipped: numbers, names and sums that are none are refused") {
  const auto refused = [](const auto& change) {
    proto::Shipment list = good_list();
    change(list);
    CHECK_THROWS_AS(check_shipment(list), Error);
  };
  refused([](auto& list) { list.mutable_files(0)->set_sum("../../x"); });
  refused([](auto& list) { list.mutable_files(0)->set_sum(std::string(64, 'G')); });
  refused([](auto& list) { list.mutable_paths(0)->set_file(1); });
  refused([](auto& list) { list.mutable_paths(0)->set_file(-2); });
  refused([](auto& list) { list.mutable_libraries(0)->set_file(-1); });
  refused([](auto& list) { list.mutable_libraries(0)->set_name("../libc.so.6"); });
  refused([](auto& list) { list.mutable_libraries(0)->set_name(".."); });
  refused([](auto& list) { list.mutable_programs(0)->set_path("/bin/sh"); });
  refused([](auto& list) { list.mutable_programs(0)->set_loader("ld.so"); });
  refused([](auto& list) { list.mutable_words(0)->set_path("/bin/sh"); });
  refused([](auto& list) { list.mutable_words(0)->set_index(-1); });
}

TEST_CASE("shipped: words of the command become paths there") {
  proto::StartWorkers start = command({"./train", "./train"});
  start_from_shipped(at("/c/trees/1"), start);
  CHECK(argv(start) == std::vector<std::string>{"/c/trees/1/home/ann/train", "./train"});
  CHECK(start.environment_size() == 0);
}

TEST_CASE("shipped: libraries come before the user's, for all ranks and for certain ones") {
  proto::StartWorkers start = command({"./train"});
  start.add_environment("LD_LIBRARY_PATH=/a:/b");
  start.add_environment("LD_LIBRARY_PATHS=/c");
  start.add_of_ranks()->set_entry("A=1");
  start.add_of_ranks()->set_entry("LD_LIBRARY_PATH=/d");
  start_from_shipped(at("/t", "/l"), start);
  CHECK(std::vector<std::string>(start.environment().begin(), start.environment().end()) ==
        std::vector<std::string>{"LD_LIBRARY_PATHS=/c", "LD_LIBRARY_PATH=/l:/a:/b"});
  CHECK(start.of_ranks(0).entry() == "A=1");
  CHECK(start.of_ranks(1).entry() == "LD_LIBRARY_PATH=/l:/d");
  start = command({"./train"});
  start_from_shipped(at("/t", "/l"), start);
  CHECK(start.environment(0) == "LD_LIBRARY_PATH=/l");
}

TEST_CASE("shipped: a loader from here is given the libraries, and no program that is started") {
  proto::StartWorkers start = command({"./train", "--epochs", "3"});
  start.add_environment("LD_LIBRARY_PATH=/a");
  start_from_shipped(at("/t", "/l", "/l/ld.so"), start);
  CHECK(argv(start) == std::vector<std::string>{"/l/ld.so", "--library-path", "/l:/a",
                                                "/t/home/ann/train", "--epochs", "3"});
  CHECK(start.environment(0) == "LD_LIBRARY_PATH=/a");
}

TEST_CASE("shipped: ranks start at home where nothing else was asked for and is there") {
  const TemporaryDirectory folder;
  const std::string there = folder.path().string(), missing = there + "/missing";
  Shipped shipped;
  CHECK(where_to_start(shipped, missing) == missing);
  shipped.home_will_do = true;
  CHECK(where_to_start(shipped, there) == there);
  const char* before = std::getenv("HOME");
  const std::string home = before == nullptr ? "" : before;
  setenv("HOME", there.c_str(), 1);
  CHECK(where_to_start(shipped, missing) == there);
  setenv("HOME", missing.c_str(), 1);
  CHECK(where_to_start(shipped, missing) == "/");
  before == nullptr ? unsetenv("HOME") : setenv("HOME", home.c_str(), 1);
}

}  // namespace hvd
