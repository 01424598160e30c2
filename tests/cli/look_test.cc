#include "cli/look.h"

#include <fcntl.h>

#include <filesystem>
#include <fstream>

#include "runtime/base/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace hvd {
namespace {

std::string loader_at(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  REQUIRE(fd);
  return loader_of(fd.get());
}

}  // namespace

TEST_CASE("look: programs name a loader, other files none") {
  const std::string loader = loader_at("/proc/self/exe");
  REQUIRE(std::filesystem::exists(loader));
  CHECK(loader_at(loader).empty());  // a library, and static
  const TemporaryDirectory folder;
  std::ifstream whole("/proc/self/exe", std::ios::binary);
  std::string bytes(4096, '\0');
  whole.read(bytes.data(), std::streamsize(bytes.size()));
  for (const size_t length : {0, 3, 63, 64, 100, 500}) {
    std::ofstream(folder.path() / "cut", std::ios::binary)
        << std::string_view(bytes).substr(0, length);
    CHECK(loader_at((folder.path() / "cut").string()).empty());
  }
  std::ofstream(folder.path() / "script") << "#!/bin/sh\n";
  CHECK(loader_at((folder.path() / "script").string()).empty());
}

}  // namespace hvd
