// Memory that processes share by its descriptor.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/unique_fd.h"

namespace hvd {

// So many bytes of zeros that can neither shrink nor grow: else who has it could end all that map
// it by SIGBUS. Where the kernel can, not executable as a program. Throws std::system_error.
UniqueFd make_sealed_memory(const char* name, uint64_t bytes);

// Of a segment: who asks for more than twice this machine's memory is mistaken.
uint64_t segment_bytes_most();
// "segment 3 of 8192 bytes is outside the limit of 4096 (…)": why `what` is refused.
std::string outside_limit(const std::string& what, uint64_t bytes_most);

}  // namespace hvd
