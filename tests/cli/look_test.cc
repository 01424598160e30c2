#include "cli/look.h"

#include <elf.h>
#include <fcntl.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "runtime/base/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace hvd {
namespace {

std::string loader_at(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  REQUIRE(fd);
  return loader_of(fd.get());
}

}  // namespace

TEST_CASE("look: programs name a loader, other files none") {
  const std::string loader = loader_at("/proc/self/exe");
  REQUIRE(std::filesystem::exists(loader));
  CHECK(loader_at(loader).empty());  // a library, and static
  const TemporaryDirectory folder;
  std::ifstream whole("/proc/self/exe", std::ios::binary);
  std::string bytes(4096, '\0');
  whole.read(bytes.data(), std::streamsize(bytes.size()));
  for (const size_t length : {0, 3, 63, 64, 100, 500}) {
    std::ofstream(folder.path() / "cut", std::ios::binary)
        << std::string_view(bytes).substr(0, length);
    CHECK(loader_at((folder.path() / "cut").string()).empty());
  }
  std::ofstream(folder.path() / "script") << "#!/bin/sh\n";
  CHECK(loader_at((folder.path() / "script").string()).empty());
}

// As i386 on x86-64.
TEST_CASE("look: a program of 32 bit may be this machine's, one of another machine is not") {
  std::ifstream whole("/proc/self/exe", std::ios::binary);
  Elf64_Ehdr own;
  whole.read(reinterpret_cast<char*>(&own), sizeof own);
  const std::string loader = "/lib/ld-linux.so.2";
  struct {
    Elf32_Ehdr header = {};
    Elf32_Phdr part = {};
    char loader[32] = {};
  } program;
  loader.copy(program.loader, loader.size());
  std::copy(std::begin(own.e_ident), std::end(own.e_ident), program.header.e_ident);
  program.header.e_ident[EI_CLASS] = ELFCLASS32;
  program.header.e_phoff = sizeof program.header;
  program.header.e_phnum = 1;
  program.part.p_type = PT_INTERP;
  program.part.p_offset = sizeof program.header + sizeof program.part;
  program.part.p_filesz = Elf32_Word(loader.size() + 1);
  const TemporaryDirectory folder;
  const std::string path = (folder.path() / "program").string();
  const auto native_loader = [&](int machine) {
    program.header.e_machine = Elf32_Half(machine);
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(&program), sizeof program);
    const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    return native_loader_of(fd.get());
  };
  CHECK(native_loader(own.e_machine == EM_X86_64 ? EM_386 : own.e_machine) == loader);
  CHECK(loader_at(path).empty());
  CHECK(native_loader(EM_S390).empty());
  const UniqueFd fd(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  CHECK(native_loader_of(fd.get()) == loader_at("/proc/self/exe"));
}

}  // namespace hvd
