// What nvidia-smi says of this machine's GPUs.
//
// Pure. No program here opens CUDA: nvidia-smi is there wherever NVIDIA's driver is. Its questions
// stand beside the functions that read the answers. Where these do not know what GPUs there are
// they say so, as kUnavailable; what else they do not understand is not known. The formats are
// those of its manual and of published output; no answer of a real device has been through here
// yet.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/gpu_list.h"

namespace hvd {

struct GpuUse {
  int pid = 0;
  std::string name;  // printable
  std::optional<long long> mib;
  std::string part = {};  // "MIG-…", that it computes on; empty: the whole, or not told
};

struct Gpu {
  ListedGpu listed;
  std::string trouble;            // "GPU is lost", printable: nothing below is known; empty: none
  std::string name, pci, driver;  // printable
  std::string mode;               // for compute, printable: "Default"; empty: not known
  std::optional<long long> free_mib, total_mib;
  bool divided = false;          // MIG is on
  bool parts_unknown = false;    // what it is divided into was not understood
  std::optional<int> numa_node;  // which the machine's folders say, not nvidia-smi
  bool peers_known = false;
  std::vector<int> peers;     // indices of the GPUs whose memory it can read
  std::vector<GpuUse> uses;   // processes that compute on it
  bool uses_unknown = false;  // there may be more
  bool mps = false;           // CUDA's MPS server runs on it, and lets processes share it
};

using GpuQuestion = std::vector<std::string>;  // nvidia-smi's arguments

GpuQuestion gpu_question();
bool says_no_gpu(std::string_view answer);  // there is a driver, which finds none
// What to do where these are nvidia-smi's words in place of an answer.
std::string advice_on(std::string_view words);
// At least one. The words of a GPU that does not answer stand in place of its name: it is among
// them, in trouble.
std::vector<Gpu> read_gpus(std::string_view answer);

GpuQuestion use_question();
void read_uses(std::string_view answer, std::span<Gpu> gpus);

GpuQuestion peer_question();
void read_peers(std::string_view answer, std::span<Gpu> gpus);

GpuQuestion list_question();
// At least one. A GPU that does not answer has no UUID.
std::vector<ListedGpu> read_list(std::string_view answer);
void read_parts(std::string_view answer, std::span<Gpu> gpus);

// "0000:19:00.0" of "00000000:19:00.0": as the folders of /sys/bus/pci/devices are called, with at
// least four digits for the domain.
std::string pci_folder(std::string_view pci);

}  // namespace hvd
