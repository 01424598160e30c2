// Memory that processes share by its descriptor.
#pragma once

#include <cstdint>

#include "runtime/base/unique_fd.h"

namespace hvd {

// So many bytes of zeros that can neither shrink nor grow: else who has it could end all that map
// it by SIGBUS. Where the kernel can, not executable as a program. Throws std::system_error.
UniqueFd make_sealed_memory(const char* name, uint64_t bytes);

}  // namespace hvd
