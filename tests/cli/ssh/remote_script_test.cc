// What any login shell reads alike: the letters of the script.
#include "cli/ssh/remote_script.h"

#include <algorithm>

#include "tests/support/catch.h"

namespace hvd {

TEST_CASE("remote_script: holds nothing that a login shell takes otherwise") {
  const std::string script = remote_script(
      {.name = "3f2a", .bytes = 19'000'000, .machine = "x86_64", .role = {"--remote", "--ship"}},
      "0123");
  const std::string begin = "exec /bin/sh -c '";
  REQUIRE(script.starts_with(begin));
  REQUIRE(script.ends_with("'"));
  const std::string inside = script.substr(begin.size(), script.size() - begin.size() - 1);
  CHECK(inside.find_first_of("'\\\n\r\t") == std::string::npos);
  CHECK(std::ranges::all_of(inside, [](unsigned char c) { return c >= ' ' && c < 0x7f; }));
  // A csh takes one for a word of its history unless a blank follows.
  for (size_t at = inside.find('!'); at != std::string::npos; at = inside.find('!', at + 1))
    CHECK(inside.substr(at, 2) == "! ");
}

}  // namespace hvd
