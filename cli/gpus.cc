#include "cli/gpus.h"

#include <algorithm>
#include <charconv>

#include "cli/quoted.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

constexpr size_t kWordsMax = 200;  // of nvidia-smi's, in a message
constexpr std::string_view kSeparator = ", ", kMpsServer = "nvidia-cuda-mps-server";

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kUnavailable, message);
}

[[noreturn]] void fail_to_understand(std::string_view line) {
  fail("nvidia-smi's answer is not understood: " + in_quotes(line, kWordsMax) +
       "; try nvidia-smi by hand");
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") + 1 - first);
}

// Whole ones; throws when the last was cut off. Escapes, as around a header, are taken out.
std::vector<std::string> lines_of(std::string_view answer) {
  std::vector<std::string> lines;
  while (!answer.empty()) {
    const size_t end = answer.find('\n');
    if (end == answer.npos)
      fail("nvidia-smi's answer ends in the middle: " + in_quotes(answer, kWordsMax) +
           "; try nvidia-smi by hand");
    std::string line(answer.substr(0, end));
    for (size_t at; (at = line.find("\x1b[")) != line.npos;)
      line.erase(at, std::min(line.find('m', at), line.size() - 1) + 1 - at);
    if (!trimmed(line).empty()) lines.push_back(std::move(line));
    answer.remove_prefix(end + 1);
  }
  return lines;
}

// Where it lists nothing it says why, in words.
[[noreturn]] void fail_without_rows(std::span<const std::string> lines) {
  const std::string_view words = lines.empty() ? std::string_view() : trimmed(lines[0]);
  fail("nvidia-smi says " + (lines.empty() ? "nothing" : in_quotes(words, kWordsMax)) + "; " +
       advice_on(words));
}

// "GPU is lost" of "[GPU is lost]", which stands where a GPU does not answer; empty: that is none.
std::string trouble_in(std::string_view field) {
  if (!field.starts_with('[')) return "";
  field.remove_prefix(1);
  return printable(field.substr(0, field.find(']')));
}

template <typename Number>
std::optional<Number> number(std::string_view text) {
  Number value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < 0) return std::nullopt;
  return value;
}

// "[N/A]" and the like are no number.
std::optional<long long> mib(std::string_view text) { return number<long long>(trimmed(text)); }

std::vector<std::string_view> fields_of(std::string_view row) {
  std::vector<std::string_view> fields;
  for (size_t at = 0; at <= row.size();) {
    const size_t end = std::min(row.find(kSeparator, at), row.size());
    fields.push_back(trimmed(row.substr(at, end - at)));
    at = end + kSeparator.size();
  }
  return fields;
}

// Of "(UUID: GPU-…)", at the end of a line; empty: there is none.
std::string_view uuid_in(std::string_view line) {
  constexpr std::string_view kStart = "(UUID: ";
  const size_t at = line.rfind(kStart), end = line.rfind(')');
  if (at == line.npos || end == line.npos || end < at) return {};
  return trimmed(line.substr(at + kStart.size(), end - at - kStart.size()));
}

Gpu* gpu_of(std::string_view uuid, std::span<Gpu> gpus) {
  if (uuid.empty()) return nullptr;
  const auto found = std::ranges::find_if(gpus, [&](const Gpu& gpu) {
    return gpu.listed.uuid == uuid ||
           std::ranges::find(gpu.listed.parts, uuid) != gpu.listed.parts.end();
  });
  return found == gpus.end() ? nullptr : &*found;
}

// "GPU3"
std::optional<int> matrix_index(std::string_view word) {
  constexpr std::string_view kStart = "GPU";
  if (!word.starts_with(kStart)) return std::nullopt;
  return number<int>(word.substr(kStart.size()));
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  for (line = trimmed(line); !line.empty();) {
    const size_t end = std::min(line.find_first_of(" \t"), line.size());
    words.push_back(line.substr(0, end));
    line = trimmed(line.substr(end));
  }
  return words;
}

}  // namespace

GpuQuestion gpu_question() {
  return {
      "--query-gpu=index,uuid,name,pci.bus_id,memory.free,memory.total,mig.mode.current,"
      "compute_mode,driver_version",
      "--format=csv,noheader,nounits"};
}

bool says_no_gpu(std::string_view answer) { return answer.starts_with("No devices were found"); }

std::string advice_on(std::string_view words) {
  const auto say = [&](std::string_view part) { return words.find(part) != words.npos; };
  if (say("ersion mismatch"))  // "Driver/library", "API"
    return "the driver was updated while its module is loaded: reboot, or unload the module and "
           "load the new one";
  if (say("No devices were found") || say("blocked by the operating system") ||
      say("Insufficient Permissions"))
    return "give the container or the job its GPUs";
  if (say("couldn't communicate") || say("Driver Not Loaded"))
    return "load NVIDIA's driver, or install it anew";
  if (say("Unknown Error"))
    return "start a container that had GPUs before anew, or load NVIDIA's driver or install it "
           "anew";
  return "load or install NVIDIA's driver, or give the container its GPUs";
}

std::vector<Gpu> read_gpus(std::string_view answer) {
  const std::vector<std::string> lines = lines_of(answer);
  std::vector<Gpu> gpus;
  for (const std::string& line : lines) {
    const std::vector<std::string_view> fields = fields_of(line);
    const std::optional<int> index = number<int>(fields[0]);
    if (!index) continue;  // a warning, of a damaged board say
    if (fields.size() != 9) fail_to_understand(line);
    Gpu gpu;
    gpu.listed.index = *index;
    gpu.trouble = trouble_in(fields[1]);
    gpu.name = printable(fields[2]);
    gpu.pci = printable(fields[3]);
    gpu.driver = trouble_in(fields[8]).empty() ? printable(fields[8]) : "";
    if (gpu.trouble.empty()) {
      if (!fields[1].starts_with("GPU-")) fail_to_understand(line);
      gpu.listed.uuid = printable(fields[1]);
      gpu.free_mib = mib(fields[4]);
      gpu.total_mib = mib(fields[5]);
      gpu.divided = fields[6] == "Enabled";
      gpu.mode = trouble_in(fields[7]).empty() ? printable(fields[7]) : "";
    }
    gpus.push_back(std::move(gpu));
  }
  if (gpus.empty()) fail_without_rows(lines);
  return gpus;
}

GpuQuestion use_question() {
  return {"--query-compute-apps=gpu_uuid,pid,process_name,used_memory",
          "--format=csv,noheader,nounits"};
}

void read_uses(std::string_view answer, std::span<Gpu> gpus) try {
  for (const std::string& line : lines_of(answer)) {
    const std::vector<std::string_view> fields = fields_of(line);
    Gpu* const gpu = gpu_of(fields[0], gpus);
    if (gpu == nullptr) continue;
    const std::optional<int> pid = fields.size() < 4 ? std::nullopt : number<int>(fields[1]);
    if (!pid) {
      gpu->uses_unknown = true;
      continue;
    }
    std::string name(fields[2]);  // which may hold the separator itself
    for (size_t at = 3; at + 1 < fields.size(); ++at) name.append(kSeparator).append(fields[at]);
    if (name.substr(name.rfind('/') + 1) == kMpsServer)
      gpu->mps = true;  // it computes for others alone, who are listed themselves
    else
      gpu->uses.push_back({*pid, printable(name), mib(fields.back()),
                           fields[0] == gpu->listed.uuid ? "" : std::string(fields[0])});
  }
} catch (const Error&) {
  for (Gpu& gpu : gpus) gpu.uses_unknown = true;
}

GpuQuestion peer_question() { return {"topo", "-p2p", "r"}; }

void read_peers(std::string_view answer, std::span<Gpu> gpus) try {
  std::vector<int> columns;
  for (const std::string& line : lines_of(answer)) {
    const std::vector<std::string_view> words = words_of(line);
    if (columns.empty()) {
      for (const std::string_view word : words)
        if (const auto index = matrix_index(word)) columns.push_back(*index);
      if (columns.size() != words.size()) columns.clear();
      continue;
    }
    const std::optional<int> row = matrix_index(words[0]);
    if (!row) break;  // the legend
    if (words.size() != columns.size() + 1) continue;
    const auto gpu =
        std::ranges::find_if(gpus, [&](const Gpu& one) { return one.listed.index == *row; });
    if (gpu == gpus.end()) continue;
    gpu->peers_known = true;
    for (size_t at = 0; at < columns.size(); ++at)
      if (words[at + 1] == "OK") gpu->peers.push_back(columns[at]);
  }
} catch (const Error&) {
  for (Gpu& gpu : gpus) gpu.peers_known = false;
}

GpuQuestion list_question() { return {"-L"}; }

std::vector<ListedGpu> read_list(std::string_view answer) {
  const std::vector<std::string> lines = lines_of(answer);
  std::vector<ListedGpu> gpus;
  for (const std::string& line : lines) {
    const std::string_view text = trimmed(line), uuid = uuid_in(text);
    const size_t colon = std::min(text.find(':'), text.size());
    const std::optional<int> index = text.starts_with("GPU ") && colon > 4
                                         ? number<int>(text.substr(4, colon - 4))
                                         : std::nullopt;
    if (index && (uuid.starts_with("GPU-") || uuid.starts_with('[')))
      gpus.push_back({*index, uuid[0] == '[' ? "" : printable(uuid), {}});
    else if (text.starts_with("MIG ") && uuid.starts_with("MIG-") && !gpus.empty())
      gpus.back().parts.push_back(printable(uuid));
    else if (index || text.starts_with("MIG "))
      fail_to_understand(text);
  }
  if (gpus.empty()) fail_without_rows(lines);
  return gpus;
}

void read_parts(std::string_view answer, std::span<Gpu> gpus) try {
  for (ListedGpu& one : read_list(answer))
    if (Gpu* const gpu = gpu_of(one.uuid, gpus)) gpu->listed.parts = std::move(one.parts);
} catch (const Error&) {
  for (Gpu& gpu : gpus) gpu.parts_unknown = true;
}

std::string pci_folder(std::string_view pci) {
  std::string name(pci);
  const size_t digits = std::min(name.find(':'), name.size());
  if (digits > 4) name.erase(0, std::min(name.find_first_not_of('0'), digits - 4));
  std::ranges::transform(name, name.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  });
  return name;
}

}  // namespace hvd
