// Reading /proc/PID/maps and /proc/PID/mem.
#include "tests/support/shared_memory_view.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <system_error>

namespace hvd {

// Lines "7f0000000000-7f0000001000 rw-s 00000000 00:01 1234   /memfd:name (deleted)".
std::vector<SharedPiece> shared_pieces(pid_t process) {
  std::ifstream maps("/proc/" + std::to_string(process) + "/maps");
  std::vector<SharedPiece> pieces;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    uint64_t inode = 0;
    int at = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %" SCNu64 " /memfd:%n",
                    &begin, &end, &inode, &at) != 3 ||
        at == 0)
      continue;
    const std::string name = line.substr(static_cast<size_t>(at), line.rfind(" (") - at);
    // What mprotect() has divided is one piece all the same.
    if (!pieces.empty() && pieces.back().inode == inode &&
        pieces.back().begin + pieces.back().bytes == begin)
      pieces.back().bytes += end - begin;
    else
      pieces.push_back({inode, name, begin, end - begin});
  }
  return pieces;
}

std::optional<SharedPiece> piece_at(pid_t process, uintptr_t address) {
  for (SharedPiece& piece : shared_pieces(process))
    if (piece.holds(address)) return std::move(piece);
  return std::nullopt;
}

ProcessMemory::ProcessMemory(pid_t process) {
  const std::string path = "/proc/" + std::to_string(process) + "/mem";
  memory_.reset(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!memory_) throw std::system_error(errno, std::generic_category(), path);
}

void ProcessMemory::read(uintptr_t address, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t got = pread(memory_.get(), into.data(), into.size(), static_cast<off_t>(address));
    if (got <= 0) throw std::system_error(errno, std::generic_category(), "/proc/PID/mem");
    into = into.subspan(static_cast<size_t>(got));
    address += static_cast<size_t>(got);
  }
}

ChangeWatch::ChangeWatch(pid_t process, const std::string& name) : memory_(process) {
  for (const SharedPiece& piece : shared_pieces(process)) {
    if (!piece.name.starts_with(name)) continue;
    pieces_.push_back(piece);
    first_.push_back(words_of(piece));
  }
}

void ChangeWatch::look() {
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const std::vector<uint64_t> now = words_of(pieces_[i]);
    for (size_t word = 0; word < now.size(); ++word)
      if (now[word] != first_[i][word]) changed_[pieces_[i].inode].insert(word * kWordBytes);
  }
}

std::vector<uint64_t> ChangeWatch::words_of(const SharedPiece& piece) const {
  std::vector<uint64_t> words(piece.bytes / kWordBytes);
  memory_.read(piece.begin, std::as_writable_bytes(std::span(words)));
  return words;
}

}  // namespace hvd
