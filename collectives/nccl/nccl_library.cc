#include "collectives/nccl/nccl_library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace hvd {
namespace {

struct Loaded {
  std::string path;  // empty: the program
  uintptr_t begin = UINTPTR_MAX, end = 0;
};

std::vector<Loaded> all_loaded() {
  std::vector<Loaded> all;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* to) {
        Loaded one{info->dlpi_name};
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& part = info->dlpi_phdr[i];
          if (part.p_type != PT_LOAD) continue;
          one.begin = std::min<uintptr_t>(one.begin, info->dlpi_addr + part.p_vaddr);
          one.end = std::max<uintptr_t>(one.end, info->dlpi_addr + part.p_vaddr + part.p_memsz);
        }
        static_cast<std::vector<Loaded>*>(to)->push_back(std::move(one));
        return 0;
      },
      &all);
  return all;
}

// Not one that it only needs, in which the loader looks, too.
bool is_nccl(const Loaded& loaded) {
  const char* path = loaded.path.empty() ? nullptr : loaded.path.c_str();
  void* const handle = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return false;
  const auto found = reinterpret_cast<uintptr_t>(dlsym(handle, "ncclGetVersion"));
  dlclose(handle);
  return loaded.begin <= found && found < loaded.end;
}

// Of this process, by what they define: a framework may have NCCL in a library of its own name.
std::vector<std::string> loaded_copies() {
  std::vector<std::string> paths;
  for (const Loaded& one : all_loaded())
    if (is_nccl(one)) paths.push_back(one.path);
  return paths;
}

std::string shown(const std::string& path) { return path.empty() ? "the program's own" : path; }

}  // namespace

std::string nccl_version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

#define HVD_CALL(name) nccl.handle_.find(#name, nccl.name);
#define HVD_NEW_CALL(name) nccl.handle_.find_if_there(#name, nccl.name);

NcclLibrary NcclLibrary::load(const std::string& path) {
  const std::vector<std::string> loaded = loaded_copies();
  if (loaded.size() > 1)
    throw Error(ErrorCode::kUnavailable,
                "this process has two copies of NCCL, " + shown(loaded[0]) + " and " +
                    shown(loaded[1]) + ", of which each knows nothing of the other; load one");
  NcclLibrary nccl;
  nccl.handle_ = DynamicLibrary(!loaded.empty() ? loaded[0]
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
                                             nccl.handle_.path() + " is too old; " +
                                             nccl_version_text(kOldest) + " is needed");
  return nccl;
}

#undef HVD_NEW_CALL
#undef HVD_CALL

std::string NcclLibrary::last_words(ncclComm_t communicator) const {
  const char* noted = ncclGetLastError(communicator);
  return noted == nullptr ? "" : noted;
}

std::string NcclLibrary::text_of(ncclResult_t result, ncclComm_t communicator,
                                 const std::string& before) const {
  const char* name = ncclGetErrorString(result);
  const std::string noted = last_words(communicator);
  std::string text = name == nullptr ? "NCCL error " + std::to_string(int(result)) : name;
  if (!noted.empty())
    text += noted != before ? ": " + noted
                            : " (the last that NCCL said, before or again: " + noted + ")";
  return text;
}

}  // namespace hvd
