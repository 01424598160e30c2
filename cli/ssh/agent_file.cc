#include "cli/ssh/agent_file.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>

#include "cli/pipe.h"
#include "rendezvous/digest.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

template <class T>
std::optional<T> value_at(std::span<const std::byte> bytes, uint64_t at) {
  if (at > bytes.size() || bytes.size() - at < sizeof(T)) return {};
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

uint64_t aligned(uint64_t size) { return (size + 3) & ~uint64_t(3); }

std::string build_id_in(std::span<const std::byte> notes) {
  while (const auto note = value_at<Elf64_Nhdr>(notes, 0)) {
    notes = notes.subspan(sizeof *note);
    const uint64_t name = aligned(note->n_namesz), value = aligned(note->n_descsz);
    if (name > notes.size() || value > notes.size() - name) break;
    if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == sizeof ELF_NOTE_GNU &&
        std::memcmp(notes.data(), ELF_NOTE_GNU, sizeof ELF_NOTE_GNU) == 0)
      return in_hex(notes.subspan(name, note->n_descsz));
    notes = notes.subspan(name + value);
  }
  return "";
}

// A file is no memory of its own, so that it is a limit that has no room for it.
std::string trouble(int error) {
  rlimit limit{};
  const bool limited =
      error == ENOMEM && getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return error_text(error) +
         (limited ? "; the limit on address space is " + std::to_string(limit.rlim_cur >> 10) +
                        " KiB: raise it (ulimit -v)"
                  : "");
}

// A file's bytes in memory, for as long as this lives.
class Mapping {
 public:
  Mapping(int fd, size_t bytes)
      : bytes_(bytes), start_(mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0)) {
    if (start_ == MAP_FAILED)
      throw Error(ErrorCode::kUnavailable,
                  "cannot read the program that is to be the agent: " + trouble(errno));
  }
  ~Mapping() { munmap(start_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(start_), bytes_};
  }

 private:
  size_t bytes_;
  void* start_;
};

size_t size_of(int fd) {
  struct stat status{};
  return fstat(fd, &status) == 0 && status.st_size > 0 ? size_t(status.st_size) : 0;
}

}  // namespace

ElfIdentity elf_identity(std::span<const std::byte> file) {
  const auto header = value_at<Elf64_Ehdr>(file, 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
      header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != ELFDATA2LSB ||
      header->e_phentsize != sizeof(Elf64_Phdr))
    return {};
  ElfIdentity identity;
  if (header->e_machine == EM_X86_64) identity.machine = "x86_64";
  if (header->e_machine == EM_AARCH64) identity.machine = "aarch64";
  for (uint64_t i = 0; i < header->e_phnum && identity.build_id.empty(); ++i) {
    const auto part = value_at<Elf64_Phdr>(file, header->e_phoff + i * sizeof(Elf64_Phdr));
    if (part && part->p_type == PT_NOTE && part->p_offset <= file.size() &&
        part->p_filesz <= file.size() - part->p_offset)
      identity.build_id = build_id_in(file.subspan(part->p_offset, part->p_filesz));
  }
  return identity;
}

std::string sha256_of(int fd) { return hvd::sha256(Mapping(fd, size_of(fd)).bytes()); }

AgentFile::AgentFile(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (!fd_)
    throw Error(ErrorCode::kUnavailable,
                "cannot open " + path + ", which is to be the agent: " + error_text(errno));
  bytes_ = size_of(fd_.get());
  const ElfIdentity identity = elf_identity(Mapping(fd_.get(), bytes_).bytes());
  machine_ = identity.machine;
  utsname here{};
  if (machine_.empty() && uname(&here) == 0) machine_ = here.machine;
  name_ = identity.build_id.empty() ? sha256() : identity.build_id + "_" + std::to_string(bytes_);
}

const std::string& AgentFile::sha256() {
  if (sha256_.empty()) sha256_ = sha256_of(fd_.get());
  return sha256_;
}

}  // namespace hvd
