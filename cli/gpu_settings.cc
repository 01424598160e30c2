#include "cli/gpu_settings.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "cli/after_cd.h"
#include "cli/agent/worker_environment.h"
#include "cli/gpu_list.h"
#include "cli/quoted.h"
#include "cli/rank_folder.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";

using Value = std::pair<const char*, const char*>;
constexpr Value kNeededToShare[] = {{"NCCL_NET", "Socket"},
                                    {"NCCL_IB_DISABLE", "1"},
                                    {"NCCL_MNNVL_ENABLE", "0"},
                                    {"NCCL_NVLS_ENABLE", "0"}};
constexpr Value kBestToShare[] = {{"NCCL_MAX_CTAS", "1"},
                                  {"NCCL_ALGO", "Ring"},
                                  {"NCCL_PROTO", "Simple"},
                                  {"NCCL_RAS_ENABLE", "0"}};

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

// Being filled, beside what the user has set.
class Additions {
 public:
  Additions(const JobSpec& spec, std::span<const std::string> environment)
      : spec_(spec), users_(with_settings(environment, spec.environment)) {}

  // For these ranks, or all; not where the user has set it for all, or an option before.
  void set(const std::string& name, std::string value, std::vector<int> ranks = {}) {
    if (is_set_in(users_, name)) return;
    if (ranks.empty() && !for_all_.insert(name).second) return;
    all_.variables.push_back({name, std::move(value), std::move(ranks), true});
  }

  // As set(); `option` cannot do without.
  void need(const char* option, const std::string& name, std::string value,
            std::vector<int> ranks = {}) {
    const std::string wanted = ranks.empty() ? value : "another for each rank";
    if (is_set_in(users_, name) && (!ranks.empty() || value_in(users_, name, "") != value))
      note(name + " is set to something else than " + option + " needs (" + wanted +
           ") and wins; leave it out if that does not work");
    set(name, std::move(value), std::move(ranks));
  }

  void note(const std::string& words) {
    if (std::ranges::find(all_.notes, words) == all_.notes.end()) all_.notes.push_back(words);
  }

  // By -x or --env-file, for some ranks at least.
  bool gives(std::string_view name, bool for_all_alone = false) const {
    return std::ranges::any_of(spec_.environment, [&](const EnvironmentSetting& one) {
      return one.name == name && (one.ranks.empty() || !for_all_alone);
    });
  }

  // Whatever the environment says.
  void override_environment(const std::string& name, std::string value, std::vector<int> ranks) {
    all_.variables.push_back({name, std::move(value), std::move(ranks), true});
  }

  std::string value(const char* name) const { return value_in(users_, name, ""); }

  GpuSettings take() { return std::move(all_); }

 private:
  const JobSpec& spec_;
  const std::vector<std::string> users_;
  std::set<std::string> for_all_;  // names
  GpuSettings all_;
};

std::map<int, int> ranks_of_hosts(std::span<const Slot> slots) {
  std::map<int, int> counts;
  for (const Slot& slot : slots) ++counts[slot.host];
  return counts;
}

void check_named_gpus(const JobSpec& spec, std::span<const Slot> slots,
                      const Additions& additions) {
  const std::vector<GpuName>& devices = spec.gpus.devices;
  if (additions.gives(kVisible))
    refuse(std::string("--devices and -x ") + kVisible +
           " both say which GPUs ranks use; leave one of them out");
  const size_t hosts = ranks_of_hosts(slots).size();
  if (devices[0].kind != GpuName::Kind::kIndex && hosts > 1)
    refuse("--devices names GPUs of one host, but there are ranks on " + std::to_string(hosts) +
           "; give indices, which each host has");
  check_ranks_of_gpus(spec, slots);
}

// As indices count in what nvidia-smi and hvdrun devices show.
void order_by_bus(Additions& additions) {
  constexpr const char *kOrder = "CUDA_DEVICE_ORDER", *kByBus = "PCI_BUS_ID";
  if (additions.gives(kOrder))
    additions.need("--devices", kOrder, kByBus);
  else
    additions.override_environment(kOrder, kByBus, {});
}

// All ranks of a host see one list, so that cuda:LOCAL_RANK is each one's own; but of the parts of
// divided GPUs CUDA shows a process the first alone.
void add_devices(const JobSpec& spec, std::span<const Slot> slots, Additions& additions) {
  const std::vector<GpuName>& devices = spec.gpus.devices;
  if (devices[0].kind != GpuName::Kind::kMig) {
    additions.override_environment(kVisible, gpu_list_text(devices), {});
    if (devices[0].kind == GpuName::Kind::kIndex) order_by_bus(additions);
    return;
  }
  std::map<size_t, std::vector<int>> ranks;
  for (const Slot& slot : slots)
    ranks[size_t(slot.world.local_rank) % devices.size()].push_back(slot.world.rank);
  for (auto& [place, own] : ranks)
    additions.override_environment(kVisible, devices[place].text, std::move(own));
}

// NCCL refuses two ranks with one GPU on what it takes for one host. As hosts of their own they
// have but sockets between them, and the GPU runs their processes in turn: one small kernel each.
void add_sharing(std::span<const Slot> slots, Additions& additions) {
  constexpr const char* kOption = "--share-gpu";
  for (const Slot& slot : slots)
    additions.need(kOption, "NCCL_HOSTID", "hvd-" + std::to_string(slot.world.rank),
                   {slot.world.rank});
  additions.set("HVD_SHARE_GPU", "1");
  for (const auto& [name, value] : kNeededToShare) additions.need(kOption, name, value);
  for (const auto& [name, value] : kBestToShare) additions.set(name, value);
  additions.note(
      "--share-gpu is for trying a program out: NCCL moves everything through sockets, slowly");
}

// The bits of a sum depend on its order, and that on algorithm, protocol and channels, of which
// NCCL otherwise chooses as it measures; so do cuBLAS's, on workspaces that streams share. Of sums
// in registered windows NCCL chooses the kernel before it looks at any of these
// (src/scheduler/symmetric_sched.cc of 2.28).
void add_deterministic(const JobSpec& spec, Additions& additions) {
  constexpr const char* kOption = "--deterministic";
  const char* const channels = spec.gpus.share ? "1" : "8";
  additions.need(kOption, "NCCL_ALGO", "Ring");
  additions.need(kOption, "NCCL_PROTO", "Simple");
  additions.need(kOption, "NCCL_WIN_ENABLE", "0");
  additions.need(kOption, "NCCL_MIN_NCHANNELS", channels);
  additions.need(kOption, "NCCL_MAX_NCHANNELS", channels);
  constexpr const char* kWorkspace = "CUBLAS_WORKSPACE_CONFIG";
  if (additions.value(kWorkspace) != ":16:8") additions.need(kOption, kWorkspace, ":4096:8");
}

// NCCL opens its file itself, so only of ranks here it is in their folder; what others print on
// standard error comes to the file for that.
void add_debug(const JobSpec& spec, std::span<const Slot> slots, const std::string& directory,
               Additions& additions) {
  constexpr const char *kDebug = "NCCL_DEBUG", *kFile = "NCCL_DEBUG_FILE";
  const std::vector<int>& ranks = spec.gpus.debug_ranks;
  if (ranks.back() >= spec.size)
    refuse("--nccl-debug names rank " + std::to_string(ranks.back()) + ", but the last of " +
           std::to_string(spec.size) + " ranks is " + std::to_string(spec.size - 1) +
           "; leave it out or start more ranks");
  if (additions.gives(kDebug, true))
    return additions.note(
        std::string(kDebug) +
        " is given to all ranks and wins over --nccl-debug; leave one of them out");
  additions.override_environment(kDebug, "INFO", ranks);
  std::vector<int> elsewhere;
  for (const int rank : ranks) {
    if (spec.output_directory.empty() || spec.hosts.at(size_t(slots[size_t(rank)].host)).remote) {
      elsewhere.push_back(rank);
      continue;
    }
    std::string file;
    for (const char letter :
         after_cd(directory, rank_folder(spec.output_directory, rank, spec.size)) + "/nccl")
      file += letter == '%' ? "%%" : std::string(1, letter);  // NCCL puts words for %h and %p
    additions.set(kFile, std::move(file), {rank});
  }
  if (!elsewhere.empty()) additions.set(kFile, "/dev/stderr", std::move(elsewhere));
}

}  // namespace

void check_ranks_of_gpus(const JobSpec& spec, std::span<const Slot> slots) {
  const int gpus = int(spec.gpus.devices.size());
  if (gpus == 0 || spec.gpus.share) return;
  const std::string count = std::to_string(gpus);
  for (const auto& [host, ranks] : ranks_of_hosts(slots))
    if (ranks > gpus)
      refuse(std::to_string(ranks) + " ranks on " +
             hvd::in_quotes(spec.hosts.at(size_t(host)).name) + ", but --devices names " + count +
             (gpus == 1 ? " GPU" : " GPUs") + "; start " + count +
             " there, name more GPUs, or let ranks share by --share-gpu");
}

void check_devices_of(const JobSpec& spec, const std::string& host, int gpus) {
  const auto is_index = [](const GpuName& one) { return one.kind == GpuName::Kind::kIndex; };
  if (gpus == 0 || !std::ranges::all_of(spec.gpus.devices, is_index)) return;
  std::vector<ListedGpu> there;
  for (int index = 0; index < gpus; ++index) there.push_back({index, "", {}});
  try {
    check_gpu_list("--devices", spec.gpus.devices, there);
  } catch (const Error& error) {
    throw Error(error.code(), host + ": " + error.what());
  }
}

GpuSettings gpu_settings(const JobSpec& spec, std::span<const Slot> slots,
                         std::span<const std::string> environment, const std::string& directory) {
  Additions additions(spec, environment);
  const GpuOptions& gpus = spec.gpus;
  if (!gpus.devices.empty()) {
    check_named_gpus(spec, slots, additions);
    add_devices(spec, slots, additions);
  }
  // A rank that finds none says so and ends, instead of training on its CPU.
  if (!gpus.devices.empty() || gpus.share) additions.set("HVD_EXPECT_GPU", "1");
  if (gpus.share && spec.size_open)
    throw Error(
        ErrorCode::kInvalidArgument,
        "--share-gpu needs to know how many ranks share; say -np, or HOST:SLOTS for each host");
  if (gpus.share) add_sharing(slots, additions);
  if (gpus.deterministic) add_deterministic(spec, additions);
  if (gpus.launch_blocking) additions.need("--launch-blocking", "CUDA_LAUNCH_BLOCKING", "1");
  if (!gpus.debug_ranks.empty()) add_debug(spec, slots, directory, additions);
  return additions.take();
}

void take_whole_names(JobSpec& spec, std::span<const ListedGpu> gpus) {
  if (spec.gpus.devices.empty()) return;
  spec.gpus.devices = whole_names(spec.gpus.devices, gpus);
  for (EnvironmentSetting& one : spec.environment)  // no other says it where --devices does
    if (one.name == kVisible && one.value)
      one.value = gpu_list_text(whole_names(names_visible_to_cuda(*one.value), gpus));
}

}  // namespace hvd
