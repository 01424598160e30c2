#include "cli/gpu_list.h"

#include <algorithm>
#include <charconv>

#include "cli/quoted.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

[[noreturn]] void refuse(std::string_view source, size_t place, const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument,
              std::string(source) + ": word " + std::to_string(place + 1) + ", " + message);
}

std::vector<std::string_view> split_words(std::string_view list) {
  constexpr std::string_view kBlanks = " \t";
  std::vector<std::string_view> words;
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    std::string_view word = list.substr(at, comma - at);
    word.remove_prefix(std::min(word.find_first_not_of(kBlanks), word.size()));
    words.push_back(word.substr(0, word.find_last_not_of(kBlanks) + 1));
    at = comma + 1;
  }
  return words;
}

std::optional<GpuName> read_name(std::string_view word) {
  for (const auto& [start, kind] : {std::pair(std::string_view("GPU-"), GpuName::Kind::kGpu),
                                    std::pair(std::string_view("MIG-"), GpuName::Kind::kMig)})
    if (word.starts_with(start) && word.size() > start.size())
      return GpuName{kind, 0, std::string(word)};
  int index = 0;
  const char* end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, index);
  if (error != std::errc() || stop != end || index < 0) return std::nullopt;
  return GpuName{GpuName::Kind::kIndex, index, std::to_string(index)};
}

// "MIG-a,MIG-b"
std::string joined(std::span<const std::string> names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ",") + name;
  return out;
}

// Whether who may use `visible` may use what `name` says: a part of it, or the same.
bool covers(const GpuName& visible, const GpuName& name, std::span<const ListedGpu> gpus) {
  constexpr auto kPart = GpuName::Kind::kMig;
  if (visible.kind == kPart)
    return name.kind == kPart &&
           (visible.text.starts_with(name.text) || name.text.starts_with(visible.text));
  const std::optional<size_t> place = find_gpu(visible, gpus);
  return place && place == find_gpu(name, gpus);
}

}  // namespace

std::vector<GpuName> parse_gpu_list(std::string_view source, std::string_view list) {
  std::vector<GpuName> names;
  for (const std::string_view word : split_words(list)) {
    const size_t place = names.size();
    std::optional<GpuName> name = read_name(word);
    if (!name)
      refuse(source, place,
             in_quotes(word) +
                 ", is no GPU: write 0,1, or names such as GPU-8932f937 or MIG-c6d4f1ef");
    if (!names.empty() && name->kind != names[0].kind)
      refuse(source, place,
             in_quotes(word) +
                 ", is of another kind than the first; CUDA takes indices, names of "
                 "GPUs or names of MIG devices, but of one kind");
    const auto same = std::ranges::find(names, *name);
    if (same != names.end())
      refuse(source, place,
             in_quotes(word) + ", is there as word " + std::to_string(same - names.begin() + 1) +
                 " already; name each GPU once");
    names.push_back(std::move(*name));
  }
  return names;
}

std::string gpu_list_text(std::span<const GpuName> names) {
  std::string text;
  for (const GpuName& one : names) text.append(text.empty() ? "" : ",").append(one.text);
  return text;
}

std::vector<GpuName> names_visible_to_cuda(std::string_view cuda_visible_devices) {
  std::vector<GpuName> names;
  for (const std::string_view word : split_words(cuda_visible_devices)) {
    std::optional<GpuName> name = read_name(word);
    if (!name || (!names.empty() && name->kind != names[0].kind)) break;
    if (std::ranges::find(names, *name) != names.end()) return {};
    names.push_back(std::move(*name));
  }
  return names;
}

int visible_gpus(int present, const std::optional<std::string>& cuda_visible_devices,
                 bool divided) {
  if (!cuda_visible_devices) return divided ? std::min(present, 1) : present;
  std::vector<GpuName> names = names_visible_to_cuda(*cuda_visible_devices);
  const auto absent = std::ranges::find_if(names, [&](const GpuName& one) {
    return one.kind == GpuName::Kind::kIndex && one.index >= present;
  });
  names.erase(absent, names.end());
  // Of the parts of divided GPUs CUDA shows a process one.
  const bool parts = !names.empty() && names[0].kind == GpuName::Kind::kMig;
  return std::min({present, static_cast<int>(names.size()), parts ? 1 : present});
}

std::optional<size_t> find_gpu(const GpuName& name, std::span<const ListedGpu> gpus) {
  std::vector<size_t> begins;
  for (size_t place = 0; place < gpus.size(); ++place) {
    const ListedGpu& gpu = gpus[place];
    if (name.kind == GpuName::Kind::kIndex) {
      if (gpu.index == name.index) return place;
      continue;
    }
    const std::span<const std::string> own(&gpu.uuid, 1);
    for (const std::string& one :
         name.kind == GpuName::Kind::kGpu ? own : std::span<const std::string>(gpu.parts)) {
      if (one == name.text) return place;
      if (one.starts_with(name.text)) begins.push_back(place);
    }
  }
  return begins.size() == 1 ? std::optional(begins[0]) : std::nullopt;
}

std::string find_part(const GpuName& name, const ListedGpu& gpu) {
  if (name.kind != GpuName::Kind::kMig) return "";
  if (std::ranges::find(gpu.parts, name.text) != gpu.parts.end()) return name.text;
  const auto begins = [&](const std::string& part) { return part.starts_with(name.text); };
  const auto found = std::ranges::find_if(gpu.parts, begins);
  return std::ranges::count_if(gpu.parts, begins) == 1 ? *found : "";
}

std::vector<GpuName> whole_names(std::span<const GpuName> names, std::span<const ListedGpu> gpus) {
  std::vector<GpuName> whole(names.begin(), names.end());
  for (GpuName& name : whole) {
    const std::optional<size_t> place = find_gpu(name, gpus);
    if (!place || name.kind == GpuName::Kind::kIndex) continue;
    name.text =
        name.kind == GpuName::Kind::kGpu ? gpus[*place].uuid : find_part(name, gpus[*place]);
  }
  return whole;
}

void check_gpu_list(std::string_view source, std::span<const GpuName> names,
                    std::span<const ListedGpu> gpus) {
  std::vector<size_t> found;
  for (size_t place = 0; place < names.size(); ++place) {
    const GpuName& name = names[place];
    const std::optional<size_t> gpu = find_gpu(name, gpus);
    if (!gpu)
      refuse(source, place,
             in_quotes(name.text) + ", names none of the " + std::to_string(gpus.size()) +
                 (gpus.size() == 1 ? " GPU" : " GPUs") + " here" +
                 (name.kind == GpuName::Kind::kIndex ? "" : ", or more than one") +
                 "; hvdrun devices lists them");
    const auto same = std::ranges::find(found, *gpu);
    if (same != found.end() && name.kind != GpuName::Kind::kMig)
      refuse(source, place,
             in_quotes(name.text) + ", is the same GPU as word " +
                 std::to_string(same - found.begin() + 1) + "; name each GPU once");
    const std::vector<std::string>& parts = gpus[*gpu].parts;
    if (!parts.empty() && name.kind != GpuName::Kind::kMig)
      refuse(source, place,
             in_quotes(name.text) +
                 ", is divided (MIG), and CUDA uses its parts alone; name MIG "
                 "devices: " +
                 joined(parts));
    found.push_back(*gpu);
  }
}

void check_visible(std::string_view source, std::span<const GpuName> names,
                   std::span<const GpuName> visible, std::span<const ListedGpu> gpus) {
  for (size_t place = 0; place < names.size(); ++place)
    if (std::ranges::none_of(visible,
                             [&](const GpuName& one) { return covers(one, names[place], gpus); }))
      refuse(source, place,
             in_quotes(names[place].text) +
                 ", is not among what CUDA_VISIBLE_DEVICES leaves; name one that is, or unset it");
}

void check_parts(std::string_view source, std::span<const GpuName> names,
                 std::span<const ListedGpu> gpus) {
  std::vector<std::optional<size_t>> found;
  for (size_t place = 0; place < names.size(); ++place) {
    const std::optional<size_t> gpu = find_gpu(names[place], gpus);
    const auto same = std::ranges::find(found, gpu);
    if (gpu && same != found.end())
      refuse(source, place,
             in_quotes(names[place].text) + ", is a part of the same GPU as word " +
                 std::to_string(same - found.begin() + 1) +
                 ", and NCCL takes no two ranks of one; start a rank for each GPU, or let ranks "
                 "share by --share-gpu");
    found.push_back(gpu);
  }
}

}  // namespace hvd
