// Lists of GPUs: the words of --devices, and of CUDA_VISIBLE_DEVICES as CUDA reads them.
//
//   list := word {"," word};  word := index | "GPU-…" | "MIG-…"
//
// A name may be cut short where no other GPU's begins so. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hvd {

struct GpuName {
  enum class Kind { kIndex, kGpu, kMig };
  Kind kind = Kind::kIndex;
  int index = 0;     // of kIndex, as nvidia-smi counts
  std::string text;  // as it is given to CUDA
  friend bool operator==(const GpuName&, const GpuName&) = default;
};

// A GPU that is there, and what it is divided into.
struct ListedGpu {
  int index = 0;
  std::string uuid;                // "GPU-…"; empty: not known
  std::vector<std::string> parts;  // "MIG-…"; empty: it is not divided
};

// All of one kind, since CUDA passes over what follows a word of another. Throws kInvalidArgument,
// with the place of the word, for anything else and for one that is there twice.
std::vector<GpuName> parse_gpu_list(std::string_view source, std::string_view list);

std::string gpu_list_text(std::span<const GpuName> names);

// What of the value CUDA takes: it looks no further than the first word that is none, and shows
// nothing where one is there twice.
std::vector<GpuName> names_visible_to_cuda(std::string_view cuda_visible_devices);

// How many of the `present` devices the value of CUDA_VISIBLE_DEVICES leaves: of those that are
// `divided`, and of their parts, CUDA shows a process one part.
int visible_gpus(int present, const std::optional<std::string>& cuda_visible_devices,
                 bool divided = false);

// The place among the GPUs of the one that is named, or whose part is. Nothing: it is not there, or
// several are meant.
std::optional<size_t> find_gpu(const GpuName& name, std::span<const ListedGpu> gpus);
// The whole name of the part that is meant; empty: the GPU has none of that name, or several.
std::string find_part(const GpuName& name, const ListedGpu& gpu);
// The same list with whole names for shortened ones, which CUDA takes of GPUs alone; of what is not
// among these GPUs as it is.
std::vector<GpuName> whole_names(std::span<const GpuName> names, std::span<const ListedGpu> gpus);

// Throws kInvalidArgument, with the place of the word, when one names no GPU that is there, the
// same as one before it, or a divided GPU as a whole.
void check_gpu_list(std::string_view source, std::span<const GpuName> names,
                    std::span<const ListedGpu> gpus);
// The same when one is not among those that `visible`, of CUDA_VISIBLE_DEVICES, leaves: another
// job may have it. All `names` are there.
void check_visible(std::string_view source, std::span<const GpuName> names,
                   std::span<const GpuName> visible, std::span<const ListedGpu> gpus);
// The same when two are parts of one GPU: as NCCL takes a GPU for one rank's (topology and
// "Duplicate GPU" in its src/init.cc), it refuses the second on its host. All `names` are there.
void check_parts(std::string_view source, std::span<const GpuName> names,
                 std::span<const ListedGpu> gpus);

}  // namespace hvd
