// Fuzz target: nvidia-smi's answers. What is taken names GPUs in words that can be shown; what is
// refused is so in one printable line.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "cli/gpus.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"

namespace {

template <typename Read>
void expect_one_line(Read read) {
  try {
    read();
  } catch (const hvd::Error& error) {
    HVD_CHECK(error.code() == hvd::ErrorCode::kUnavailable, "an answer is taken for a usage error");
    HVD_CHECK(hvd::is_shown(error.what()), "an error is not printable");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), count);
  std::vector<hvd::Gpu> gpus(2);
  gpus[0].listed = {0, "GPU-a", {"MIG-a"}};
  gpus[1].listed = {1, "GPU-b", {}};
  hvd::read_uses(text, gpus);
  hvd::read_peers(text, gpus);
  hvd::read_parts(text, gpus);
  for (const hvd::GpuUse& use : gpus[0].uses)
    HVD_CHECK(hvd::is_shown(use.name), "the name of a process is not printable");
  expect_one_line([&] {
    for (const hvd::Gpu& gpu : hvd::read_gpus(text))
      HVD_CHECK(hvd::is_shown(gpu.listed.uuid + gpu.trouble + gpu.name + gpu.pci + gpu.mode +
                              gpu.driver) &&
                    hvd::is_shown(hvd::pci_folder(gpu.pci)),
                "words of a GPU are not printable");
  });
  expect_one_line([&] {
    for (const hvd::ListedGpu& gpu : hvd::read_list(text))
      HVD_CHECK(hvd::is_shown(gpu.uuid) && gpu.index >= 0, "a GPU of the list is none");
  });
  return 0;
}
