// The agent's program as a file: what it is called on other hosts, and its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/unique_fd.h"

namespace hvd {

// What an ELF file says of itself; both empty where it does not.
struct ElfIdentity {
  std::string machine;   // as uname -m has it
  std::string build_id;  // in hex: the linker's hash of what it wrote
};
ElfIdentity elf_identity(std::span<const std::byte> file);

// In hex. Throws kUnavailable when the file cannot be read.
std::string sha256_of(int fd);

class AgentFile {
 public:
  // Throws kUnavailable.
  explicit AgentFile(const std::string& path);

  int fd() const { return fd_.get(); }
  uint64_t bytes() const { return bytes_; }
  const std::string& machine() const { return machine_; }
  // Hexadecimal digits, and perhaps one '_'. The build id, which costs nothing to look up, and the
  // length, by which a stripped file differs from the one that it was made of; without a build id
  // the sum.
  const std::string& name() const { return name_; }
  const std::string& sha256();  // reads the whole file, once

 private:
  UniqueFd fd_;
  uint64_t bytes_ = 0;
  std::string machine_, name_, sha256_;
};

}  // namespace hvd
