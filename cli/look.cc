#include "cli/look.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace hvd {
namespace {

constexpr uint64_t kPathBytesMax = 4096;

template <class T>
bool read_at(int fd, uint64_t at, T& value) {
  return pread(fd, &value, sizeof value, off_t(at)) == ssize_t(sizeof value);
}

}  // namespace

bool may(const std::string& path, int mode) {
  return faccessat(AT_FDCWD, path.c_str(), mode, AT_EACCESS) == 0;
}

Look look_at(const std::string& path) {
  struct stat facts;
  if (stat(path.c_str(), &facts) != 0) return {.error = errno};
  return {.is_directory = S_ISDIR(facts.st_mode),
          .is_socket = S_ISSOCK(facts.st_mode),
          .may_execute = may(path, X_OK)};
}

std::string loader_of(int fd) {
  Elf64_Ehdr header;
  if (!read_at(fd, 0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB)
    return "";
  for (uint64_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr part;
    if (!read_at(fd, header.e_phoff + i * sizeof part, part)) return "";
    if (part.p_type != PT_INTERP || part.p_filesz == 0 || part.p_filesz > kPathBytesMax) continue;
    std::string path(part.p_filesz, '\0');
    if (pread(fd, path.data(), path.size(), off_t(part.p_offset)) != ssize_t(path.size()))
      return "";
    return path.substr(0, path.find('\0'));
  }
  return "";
}

}  // namespace hvd
