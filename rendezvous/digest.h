// Sums of bytes, for names and checks.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace hvd {

std::string in_hex(std::span<const std::byte> bytes);

// SHA-256, in hex.
std::string sha256(std::span<const std::byte> bytes);

// Of bytes that come piece by piece.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void add(std::span<const std::byte> bytes);
  std::string hex();  // once

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace hvd
