// How many GPUs this machine, or the container it is, has.
//
// Here as a whole, since the LibTorch layer gets of other folders what libhvd.so shows.
#pragma once

#include <dirent.h>

#include <memory>
#include <string_view>

namespace hvd {

// NVIDIA's driver has one file for each in /dev, which `devices` is but in tests; their numbers may
// have gaps, as in a container that only some were let into. 0 where it cannot be looked at.
inline int present_gpus(const char* devices = "/dev") {
  constexpr std::string_view kName = "nvidia";
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(devices), closedir);
  if (folder == nullptr) return 0;
  int count = 0;
  while (const dirent* entry = readdir(folder.get())) {
    std::string_view name = entry->d_name;
    if (!name.starts_with(kName)) continue;
    name.remove_prefix(kName.size());
    count += !name.empty() && name.find_first_not_of("0123456789") == name.npos;
  }
  return count;
}

}  // namespace hvd
