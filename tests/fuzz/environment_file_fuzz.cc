// Fuzz target: environment files. What is accepted can be an entry of an environment and says
// nothing of a rank's place; what is refused is so in one printable line.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "cli/agent/worker_environment.h"
#include "cli/environment_settings.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), count);
  try {
    for (const hvd::EnvironmentSetting& one : hvd::parse_environment_file(text, "job.env")) {
      HVD_CHECK(one.value && one.ranks.empty(), "a line of a file sets a variable for all ranks");
      HVD_CHECK(!one.name.empty() && one.name.find('=') == std::string::npos, "a name is none");
      HVD_CHECK((one.name + *one.value).find('\0') == std::string::npos, "an entry ends early");
      HVD_CHECK(!hvd::is_of_place(one.name), "a file sets what is each rank's own");
    }
  } catch (const hvd::Error& error) {
    HVD_CHECK(hvd::is_shown(error.what()), "an error is not printable");
  }
  return 0;
}
