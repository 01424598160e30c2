// What this build of hvdrun is and can do: --version and --check-build.
#pragma once

#include <string>

namespace hvd {

std::string version();  // "0.1.0"
std::string version_text();
// Laid out as Horovod's; with details, why something is missing.
std::string check_build_text(bool with_details);

}  // namespace hvd
