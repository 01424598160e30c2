#include "cli/features.h"

#include <string_view>

// Set for this file by cli/CMakeLists.txt; empty: not in this build.
#ifndef HVD_VERSION
#error "HVD_VERSION and HVD_*_VERSION are defined where this file is built"
#endif

namespace hvd {
namespace {

constexpr std::string_view kTorch = HVD_TORCH_VERSION, kNccl = HVD_NCCL_VERSION;

struct Library {
  std::string_view name, version;
};

constexpr Library kLinked[] = {{"gRPC", HVD_GRPC_VERSION},
                               {"Protocol Buffers", HVD_PROTOBUF_VERSION},
                               {"OpenSSL", HVD_OPENSSL_VERSION},
                               {"CLI11", HVD_CLI11_VERSION}};

struct Feature {
  std::string_view name;
  bool available;
  std::string_view detail;
};

constexpr Feature kFrameworks[] = {
    {"TensorFlow", false, "hvdrun is for PyTorch"},
    {"PyTorch", !kTorch.empty(),
     kTorch.empty() ? "built without LibTorch" : "in C++, LibTorch " HVD_TORCH_VERSION},
    {"MXNet", false, "hvdrun is for PyTorch"},
};
constexpr Feature kControllers[] = {
    {"hvdrun", true, "starts and connects the ranks itself"},
    {"MPI", false, "not needed"},
    {"Gloo", false, "not needed"},
};
constexpr Feature kOperations[] = {
    {"shared memory", true, "among the ranks of one machine"},
    {"tcp", true, "between hosts"},
    {"hierarchical", true, "both, between hosts with several ranks each"},
    {"NCCL", !kNccl.empty(),
     kNccl.empty() ? "built without CUDA"
                   : "among GPUs, a plug-in of this build's libhvd, for NCCL " HVD_NCCL_VERSION},
    {"DDL", false, "not needed"},
    {"CCL", false, "not needed"},
    {"MPI", false, "not needed"},
    {"Gloo", false, "not needed"},
};

template <size_t kCount>
std::string list(const char* title, const Feature (&features)[kCount], bool with_details) {
  std::string out = std::string("\n") + title + ":\n";
  for (const Feature& feature : features) {
    out += feature.available ? "    [X] " : "    [ ] ";
    out += feature.name;
    if (with_details) out += " (" + std::string(feature.detail) + ")";
    out += "\n";
  }
  return out;
}

}  // namespace

std::string version() { return HVD_VERSION; }

std::string version_text() {
  std::string out = "hvdrun " HVD_VERSION "\n";
  for (const Library& library : kLinked) {
    if (library.version.empty()) continue;
    out += "  " + std::string(library.name) + " " + std::string(library.version) + "\n";
  }
  return out;
}

std::string check_build_text(bool with_details) {
  return "hvdrun v" HVD_VERSION ":\n" + list("Available Frameworks", kFrameworks, with_details) +
         list("Available Controllers", kControllers, with_details) +
         list("Available Tensor Operations", kOperations, with_details);
}

}  // namespace hvd
