#include "tests/collectives/nccl/standin/fatbin.h"

#include <cstdint>
#include <cstring>

namespace hvd {
namespace {

constexpr uint32_t kMagic = 0xba55ed50;
constexpr uint16_t kPtx = 1, kMachineCode = 2;

template <class Number>
Number number_at(const char* at) {
  Number number;
  std::memcpy(&number, at, sizeof number);
  return number;
}

// What follows the word, as "8.0" in ".version 8.0": 80.
int tenfold_after(std::string_view text, std::string_view word) {
  const size_t found = text.find(word);
  if (found == std::string_view::npos) return 0;
  int number = 0;
  for (const char c : text.substr(found + word.size())) {
    if (c >= '0' && c <= '9')
      number = 10 * number + (c - '0');
    else if (c != '.')
      break;
  }
  return number;
}

std::vector<DeviceCode> code_of_text(std::string_view text) {
  const int version = tenfold_after(text, "\n.version ");
  if (version == 0) return {};
  return {{true, tenfold_after(text, "\n.target sm_"),
           (version / 10 + 4) * 1000 + version % 10 * 10, text}};
}

}  // namespace

std::vector<DeviceCode> device_codes(const void* image) {
  const auto* at = static_cast<const char*>(image);
  // Byte by byte: what is none may be shorter.
  for (size_t k = 0; k < sizeof kMagic; ++k)
    if (static_cast<unsigned char>(at[k]) != (kMagic >> 8 * k & 0xff)) return code_of_text(at);
  const char* entry = at + number_at<uint16_t>(at + 6);
  const char* const end = entry + number_at<uint64_t>(at + 8);
  std::vector<DeviceCode> codes;
  while (entry < end) {
    const auto kind = number_at<uint16_t>(entry);
    const char* const bytes = entry + number_at<uint32_t>(entry + 4);
    const auto length = number_at<uint64_t>(entry + 8);
    if (kind == kPtx || kind == kMachineCode)
      codes.push_back({.is_ptx = kind == kPtx,
                       .architecture = static_cast<int>(number_at<uint32_t>(entry + 28)),
                       .bytes = std::string_view(bytes, length)});
    entry = bytes + length;
  }
  return codes;
}

bool runs_on(const DeviceCode& code, int architecture, int driver) {
  if (code.is_ptx ? code.cuda > driver : code.cuda / 1000 > driver / 1000) return false;
  return code.architecture <= architecture &&
         (code.is_ptx || code.architecture / 10 == architecture / 10);
}

// In PTX a declaration; in machine code, an ELF file, a section.
bool has_kernel(const DeviceCode& code, const std::string& name) {
  const std::string mark =
      code.is_ptx ? ".entry " + name + "(" : std::string(1, '\0') + ".text." + name + '\0';
  return code.bytes.find(mark) != std::string_view::npos;
}

}  // namespace hvd
