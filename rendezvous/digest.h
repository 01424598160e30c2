// Sums of bytes, for names and checks.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace hvd {

std::string in_hex(std::span<const std::byte> bytes);

// SHA-256, in hex.
std::string sha256(std::span<const std::byte> bytes);

}  // namespace hvd
