// Fuzz target: what a host's dynamic loader prints, which is the host's. Only what is offered is
// sent, nothing twice; what cannot be mended is said in one printable line.
//
// Standard output and error are split at the first byte 0.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "cli/ship/loader_answer.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), count);
  const size_t end = std::min(text.find('\0'), text.size());
  const hvd::LoaderAnswer answer =
      hvd::read_loader_answer(text.substr(0, end), text.substr(std::min(end + 1, text.size())));
  HVD_CHECK(hvd::is_shown(answer.trouble), "a loader's own words are not printable");
  for (const auto& [name, path] : answer.found)
    HVD_CHECK(name.find('/') == name.npos && path.starts_with('/'), "no library was found there");
  const std::set<std::string> offered = {"ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6",
                                         "libstdc++.so.6",       "libhvd.so", "libhvd_nccl.so"};
  const std::set<std::string> sent = {"libstdc++.so.6"};
  try {
    for (const std::string& name : hvd::libraries_to_send(answer, sent, offered).names)
      HVD_CHECK(offered.contains(name) && !sent.contains(name), "it cannot be sent, or was");
  } catch (const hvd::Error& error) {
    HVD_CHECK(error.code() == hvd::ErrorCode::kUnavailable, "a loader's answer is no usage error");
    HVD_CHECK(hvd::is_shown(error.what()), "an error is not printable");
  }
  return 0;
}
