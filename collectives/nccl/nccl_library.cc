#include "collectives/nccl/nccl_library.h"

#include <link.h>

#include <string_view>
#include <vector>

namespace hvd {
namespace {

// Of this process: paths of what is loaded under NCCL's name.
std::vector<std::string> loaded_copies() {
  std::vector<std::string> paths;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* found) {
        const std::string_view path = info->dlpi_name;
        if (path.substr(path.rfind('/') + 1).starts_with("libnccl.so"))
          static_cast<std::vector<std::string>*>(found)->emplace_back(path);
        return 0;
      },
      &paths);
  return paths;
}

}  // namespace

std::string nccl_version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

#define HVD_CALL(name) nccl.library_.find(#name, nccl.name);
#define HVD_NEW_CALL(name) nccl.library_.find_if_there(#name, nccl.name);

NcclLibrary NcclLibrary::load(const std::string& path) {
  const std::vector<std::string> loaded = loaded_copies();
  if (loaded.size() > 1)
    throw Error(ErrorCode::kUnavailable,
                "this process has two copies of NCCL, " + loaded[0] + " and " + loaded[1] +
                    ", of which each knows nothing of the other; load one");
  NcclLibrary nccl;
  nccl.library_ = DynamicLibrary(!loaded.empty() ? loaded[0]
                                 : !path.empty() ? path
                                                 : std::string("libnccl.so.2"),
                                 "NCCL",
                                 "install NCCL " + nccl_version_text(kOldest) +
                                     " or newer, or name one by HVD_NCCL_LIBRARY, as with -x "
                                     "HVD_NCCL_LIBRARY=PATH where it was installed for Python");
  HVD_NCCL_CALLS(HVD_CALL)
  HVD_NEW_NCCL_CALLS(HVD_NEW_CALL)
  const ncclResult_t result = nccl.ncclGetVersion(&nccl.version);
  if (result != ncclSuccess)
    throw Error(ErrorCode::kUnavailable,
                "NCCL does not tell its version: " + nccl.text_of(result, nullptr));
  if (nccl.version < kOldest)
    throw Error(ErrorCode::kUnavailable, "NCCL " + nccl_version_text(nccl.version) + " in " +
                                             nccl.library_.path() + " is too old; " +
                                             nccl_version_text(kOldest) + " is needed");
  return nccl;
}

#undef HVD_NEW_CALL
#undef HVD_CALL

std::string NcclLibrary::text_of(ncclResult_t result, ncclComm_t communicator) const {
  const char* name = ncclGetErrorString(result);
  const char* noted = ncclGetLastError(communicator);
  std::string text = name == nullptr ? "NCCL error " + std::to_string(int(result)) : name;
  if (noted != nullptr && *noted != 0) text += std::string(": ") + noted;
  return text;
}

}  // namespace hvd
