// Writes numbered lines of 200 bytes to stdout: output_producer MEBIBYTES block|line.
//
// `block` writes 64 KiB at a time, `line` one line at a time. A line says its rank and its number
// and ends in '#', so that output_consumer finds one that was torn, lost, or written twice.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "runtime/base/env.h"

namespace {

constexpr size_t kLineBytes = 200;
constexpr size_t kLinesPerBlock = 65'536 / kLineBytes;
constexpr int kHeadBytes = 20;  // "R0000 N000000000000 "
constexpr unsigned long long kNumbers = 1'000'000'000'000;

unsigned rank() {
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"})
    if (auto value = hvd::env::get_integer(name)) return static_cast<unsigned>(*value);
  return 0;
}

bool write_all(const char* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = write(STDOUT_FILENO, data, bytes);
    if (n <= 0) return false;
    data += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return std::fputs("usage: output_producer MEBIBYTES block|line\n", stderr), 2;
  const bool whole_blocks = std::strcmp(argv[2], "block") == 0;
  const auto lines = static_cast<unsigned long long>(std::atof(argv[1]) * (1 << 20) / kLineBytes);

  std::string block;
  for (size_t i = 0; i < kLinesPerBlock; ++i)
    block += std::string(kHeadBytes, ' ') +
             std::string(kLineBytes - kHeadBytes - 2, char('a' + i % 26)) + "#\n";
  const unsigned me = rank();
  for (unsigned long long number = 0; number < lines;) {
    size_t filled = 0;
    for (; filled < kLinesPerBlock && number < lines; ++filled, ++number) {
      char head[kHeadBytes + 1];
      std::snprintf(head, sizeof head, "R%04u N%012llu ", me % 10'000, number % kNumbers);
      std::memcpy(block.data() + filled * kLineBytes, head, kHeadBytes);
      if (!whole_blocks && !write_all(block.data() + filled * kLineBytes, kLineBytes)) return 1;
    }
    if (whole_blocks && !write_all(block.data(), filled * kLineBytes)) return 1;
  }
}
