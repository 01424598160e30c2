// The shared memory of a process, looked at from another one.
//
// What is mapped where is the kernel's word (/proc/PID/maps), and contents are read through
// /proc/PID/mem: nothing of the code that is judged has a part in either. For a parent of the
// process, or root.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/unique_fd.h"

namespace hvd {

// One memfd as one process maps it, in the order of addresses.
struct SharedPiece {
  uint64_t inode = 0;
  std::string name;  // given to memfd_create()
  uintptr_t begin = 0;
  size_t bytes = 0;

  bool holds(uintptr_t address) const { return address >= begin && address - begin < bytes; }
};
std::vector<SharedPiece> shared_pieces(pid_t process);
// The piece that holds the address.
std::optional<SharedPiece> piece_at(pid_t process, uintptr_t address);

class ProcessMemory {
 public:
  explicit ProcessMemory(pid_t process);
  void read(uintptr_t address, std::span<std::byte> into) const;

 private:
  UniqueFd memory_;
};

// Which words of a process's shared memory have changed since this was made; a look now and then
// also finds words that go back to what they were.
class ChangeWatch {
 public:
  static constexpr size_t kWordBytes = 8;

  // `name`: memfds whose name begins so.
  ChangeWatch(pid_t process, const std::string& name);
  void look();
  // Offsets of changed words in bytes, by inode.
  const std::map<uint64_t, std::set<size_t>>& changed() const { return changed_; }

 private:
  std::vector<uint64_t> words_of(const SharedPiece& piece) const;

  const ProcessMemory memory_;
  std::vector<SharedPiece> pieces_;
  std::vector<std::vector<uint64_t>> first_;  // by piece
  std::map<uint64_t, std::set<size_t>> changed_;
};

}  // namespace hvd
