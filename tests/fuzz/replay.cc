// Runs a fuzz target over the files of folders, each whole and cut short, where there is no
// libFuzzer.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count);

int main(int argc, char** argv) {
  size_t inputs = 0;
  for (int i = 1; i < argc; ++i)
    for (const auto& file : std::filesystem::directory_iterator(argv[i])) {
      std::ifstream in(file.path(), std::ios::binary);
      const std::vector<char> all{std::istreambuf_iterator<char>(in), {}};
      for (size_t count = 0; count <= all.size(); ++count, ++inputs) {
        // A copy of just that size, so that AddressSanitizer sees who reads on.
        const std::vector<uint8_t> bytes(all.begin(), all.begin() + std::ptrdiff_t(count));
        LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
      }
    }
  std::printf("%zu inputs\n", inputs);
  return inputs == 0 ? 1 : 0;
}
