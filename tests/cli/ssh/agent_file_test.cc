// What names an agent's file, and files that lie.
#include "cli/ssh/agent_file.h"

#include <elf.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <vector>

#include "runtime/base/error.h"
#include "tests/support/catch.h"
#include "tests/support/seed.h"
#include "tests/support/temporary_directory.h"

namespace hvd {
namespace {

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// An ELF file of nothing but one note.
std::string small_elf(uint16_t machine, const std::string& id, uint32_t type = NT_GNU_BUILD_ID) {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_machine = machine;
  header.e_phoff = sizeof header;
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = 1;
  Elf64_Phdr part{};
  part.p_type = PT_NOTE;
  part.p_offset = sizeof header + sizeof part;
  Elf64_Nhdr note{sizeof ELF_NOTE_GNU, uint32_t(id.size()), type};
  const Elf64_Nhdr other{sizeof ELF_NOTE_GNU, 0, NT_GNU_ABI_TAG};
  part.p_filesz = sizeof other + sizeof note + 2 * sizeof ELF_NOTE_GNU + id.size();
  std::string file;
  const auto add = [&](const void* bytes, size_t count) {
    file.append(static_cast<const char*>(bytes), count);
  };
  add(&header, sizeof header);
  add(&part, sizeof part);
  add(&other, sizeof other);
  add(ELF_NOTE_GNU, sizeof ELF_NOTE_GNU);
  add(&note, sizeof note);
  add(ELF_NOTE_GNU, sizeof ELF_NOTE_GNU);
  return file + id;
}

}  // namespace

TEST_CASE("agent_file: an ELF file says its processor and its build id") {
  const ElfIdentity found = elf_identity(as_bytes(small_elf(EM_X86_64,
                                                            "\x01\xff"
                                                            "AB")));
  REQUIRE(found.machine == "x86_64");
  REQUIRE(found.build_id == "01ff4142");
  REQUIRE(elf_identity(as_bytes(small_elf(EM_AARCH64, "ABCD"))).machine == "aarch64");
  REQUIRE(elf_identity(as_bytes(small_elf(EM_X86_64, "ABCD", 99))).build_id.empty());
  REQUIRE(elf_identity(as_bytes(std::string("#!/bin/sh\n"))).machine.empty());
}

TEST_CASE("agent_file: a file that is cut or scribbled on is read inside its bounds") {
  const std::string whole = small_elf(EM_X86_64, "ABCD");
  for (size_t length = 0; length < whole.size(); ++length)
    REQUIRE(elf_identity(as_bytes(whole.substr(0, length))).build_id.empty());
  const unsigned seed = random_seed();
  INFO("HVD_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 20'000; ++i) {
    std::string file = whole;
    for (int j = 0; j < 4; ++j) file[random() % file.size()] = char(random());
    elf_identity(as_bytes(file));
  }
}

TEST_CASE(
    "agent_file: two files have two names, also of one build; one without a build id is named by "
    "its sum") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() / "agent";
  const auto name_of = [&](const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
    return AgentFile(path).name();
  };
  const std::string stripped = small_elf(EM_X86_64, "ABCD");
  REQUIRE(name_of(stripped) == "41424344_156");
  REQUIRE(name_of(stripped + "debug information") == "41424344_173");
  REQUIRE(name_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  AgentFile self("/proc/self/exe");
  REQUIRE_FALSE(self.machine().empty());
  REQUIRE(self.sha256().size() == 64);
  REQUIRE_THROWS_WITH(AgentFile("/nowhere/agent"),
                      Catch::Matchers::Contains("cannot open /nowhere/agent"));
}

TEST_CASE("agent_file: one that a limit leaves no address space for names the limit") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() / "agent";
  std::ofstream(path) << "abc";
  std::filesystem::resize_file(path, 1u << 30);  // of holes
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  rlimit low = before;
  low.rlim_cur = pages * rlim_t(sysconf(_SC_PAGESIZE)) + (64u << 20);
  REQUIRE(setrlimit(RLIMIT_AS, &low) == 0);
  std::string why;
  try {
    AgentFile{path};
  } catch (const Error& error) {
    why = error.what();
  }
  setrlimit(RLIMIT_AS, &before);
  REQUIRE_THAT(
      why, Catch::Contains("the limit on address space is " + std::to_string(low.rlim_cur >> 10) +
                           " KiB: raise it (ulimit -v)"));
}

}  // namespace hvd
