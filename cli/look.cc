#include "cli/look.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "runtime/base/unique_fd.h"

namespace hvd {
namespace {

constexpr uint64_t kPathBytesMax = 4096;

template <class T>
bool read_at(int fd, uint64_t at, T& value) {
  return pread(fd, &value, sizeof value, off_t(at)) == ssize_t(sizeof value);
}

// What programs of 32 and of 64 bit begin with.
struct ElfStart {
  unsigned char ident[EI_NIDENT];
  uint16_t type, machine;
};

std::optional<ElfStart> start_of(int fd) {
  ElfStart start;
  if (!read_at(fd, 0, start) || std::memcmp(start.ident, ELFMAG, SELFMAG) != 0 ||
      start.ident[EI_DATA] != ELFDATA2LSB)
    return std::nullopt;
  return start;
}

template <class Header, class Part>
std::string loader_in(int fd) {
  Header header;
  if (!read_at(fd, 0, header)) return "";
  for (uint64_t i = 0; i < header.e_phnum; ++i) {
    Part part;
    if (!read_at(fd, header.e_phoff + i * sizeof part, part)) return "";
    if (part.p_type != PT_INTERP || part.p_filesz == 0 || part.p_filesz > kPathBytesMax) continue;
    std::string path(part.p_filesz, '\0');
    if (pread(fd, path.data(), path.size(), off_t(part.p_offset)) != ssize_t(path.size()))
      return "";
    return path.substr(0, path.find('\0'));
  }
  return "";
}

}  // namespace

bool may(const std::string& path, int mode) {
  return faccessat(AT_FDCWD, path.c_str(), mode, AT_EACCESS) == 0;
}

Look look_at(const std::string& path) {
  struct stat facts;
  if (stat(path.c_str(), &facts) != 0) return {.error = errno};
  return {.is_file = S_ISREG(facts.st_mode),
          .is_directory = S_ISDIR(facts.st_mode),
          .is_socket = S_ISSOCK(facts.st_mode),
          .may_execute = may(path, X_OK)};
}

std::string loader_of(int fd) {
  const std::optional<ElfStart> start = start_of(fd);
  return start && start->ident[EI_CLASS] == ELFCLASS64 ? loader_in<Elf64_Ehdr, Elf64_Phdr>(fd) : "";
}

std::string native_loader_of(int fd) {
  const UniqueFd own(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  const std::optional<ElfStart> start = start_of(fd);
  const std::optional<ElfStart> ours = own ? start_of(own.get()) : std::nullopt;
  if (!start || !ours) return "";
  const bool is_native =
      start->machine == ours->machine || (start->machine == EM_386 && ours->machine == EM_X86_64);
  if (!is_native) return "";
  return start->ident[EI_CLASS] == ELFCLASS32 ? loader_in<Elf32_Ehdr, Elf32_Phdr>(fd)
                                              : loader_of(fd);
}

}  // namespace hvd
