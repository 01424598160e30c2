// Fuzz target: host lists and host files. What is accepted can be given to a program as a word, and
// what is refused is so in one printable line.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/hosts.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"

namespace {

void check(const std::vector<hvd::GivenHost>& hosts) {
  for (const hvd::GivenHost& host : hosts) {
    HVD_CHECK(!host.name.empty() && host.name[0] != '-' && host.name.size() <= 253,
              "a host's name is none");
    HVD_CHECK(host.name.find_first_of(" ,@[]$/\\\"'`;&|<>\n") == std::string::npos,
              "a host's name means something to a shell");
    HVD_CHECK(host.user.empty() || host.user[0] != '-', "a user is an option");
  }
}

template <class Parse>
void expect_hosts_or_words(const Parse& parse) {
  try {
    check(parse());
  } catch (const hvd::Error& error) {
    HVD_CHECK(hvd::is_shown(error.what()), "an error is not printable");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), count);
  expect_hosts_or_words([&] { return hvd::parse_host_list(text); });
  expect_hosts_or_words([&] { return hvd::parse_host_file(text, "hosts"); });
  return 0;
}
