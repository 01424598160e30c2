// This machine's loader, asked about programs of this machine.
#include "cli/ship/ask_loader.h"

#include <fcntl.h>

#include <filesystem>

#include "cli/look.h"
#include "runtime/base/error.h"
#include "runtime/base/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace hvd {
namespace {

std::string own_loader() {
  const UniqueFd fd(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  REQUIRE(fd);
  return loader_of(fd.get());
}

}  // namespace

TEST_CASE("ask_loader: the loader lists what this very program needs") {
  const std::string loader = own_loader();
  const LoaderAnswer answer =
      ask_loader({loader, std::filesystem::read_symlink("/proc/self/exe").string(), ""});
  REQUIRE(answer.found.contains("libc.so.6"));
  CHECK(std::filesystem::exists(answer.found.at("libc.so.6")));
  CHECK(answer.missing.empty());
  CHECK(answer.too_old.empty());
}

TEST_CASE("ask_loader: the libraries of a folder come first") {
  const std::string loader = own_loader();
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const LoaderAnswer before = ask_loader({loader, program, ""});
  const TemporaryDirectory folder;
  std::filesystem::copy(before.found.at("libc.so.6"), folder.path() / "libc.so.6");
  const LoaderAnswer after = ask_loader({loader, program, folder.path().string()});
  CHECK(after.found.at("libc.so.6") == (folder.path() / "libc.so.6").string());
}

TEST_CASE("ask_loader: a loader that is none is an error that names it") {
  CHECK_THROWS_AS(ask_loader({"/nowhere/ld.so.1", "/bin/true", ""}), Error);
  CHECK_THROWS_AS(ask_loader({"/bin/cat", "/proc/self/exe", ""}), Error);  // runs nothing
  try {
    ask_loader({own_loader(), "/nowhere", ""});
    FAIL("it listed what is not there");
  } catch (const Error& error) {
    CHECK(std::string(error.what())
              .starts_with("cannot find out which libraries \"/nowhere\" needs: \"/lib"));
  }
}

}  // namespace hvd
