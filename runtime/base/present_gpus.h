// How many GPUs this machine, or the container it is, has for this process, by the driver's files.
//
// Here as a whole, since the LibTorch layer gets of other folders what libhvd.so shows. `root` is
// the file system's, and `devices` its /dev, but in tests.
#pragma once

#include <dirent.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace hvd {

// What is called `start` and a number in a folder: these numbers. None where it cannot be read.
inline std::vector<std::string> numbered_files(const std::string& folder, std::string_view start) {
  std::vector<std::string> numbers;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(opendir(folder.c_str()), closedir);
  while (const dirent* entry = open == nullptr ? nullptr : readdir(open.get())) {
    std::string_view name = entry->d_name;
    if (!name.starts_with(start)) continue;
    name.remove_prefix(start.size());
    if (!name.empty() && name.find_first_not_of("0123456789") == name.npos)
      numbers.emplace_back(name);
  }
  return numbers;
}

// NVIDIA's driver has one file for each in /dev; their numbers may have gaps, as in a container
// that only some were let into. One that may not be opened, as by the rules of a job's cgroup, is
// none.
inline std::vector<std::string> numbers_of_gpus(const std::string& devices) {
  std::vector<std::string> numbers = numbered_files(devices, "nvidia");
  std::erase_if(numbers, [&](const std::string& number) {
    return access((devices + "/nvidia" + number).c_str(), R_OK | W_OK) != 0;
  });
  return numbers;
}

inline int present_gpus(const char* devices = "/dev") {
  return static_cast<int>(numbers_of_gpus(devices).size());
}

// Whether any of them is divided into MIG devices: then CUDA shows a program one of these, and no
// other GPU, unless CUDA_VISIBLE_DEVICES names some. The driver has a folder for each part.
inline bool gpus_are_divided(const std::string& root = "") {
  const std::string capabilities = root + "/proc/driver/nvidia/capabilities/gpu";
  for (const std::string& number : numbers_of_gpus(root + "/dev")) {
    const std::string gpu = capabilities + number + "/mig";
    for (const std::string& part : numbered_files(gpu, "gi"))
      if (!numbered_files(gpu + "/gi" + part, "ci").empty()) return true;
  }
  return false;
}

// Whether nvidia-smi may know of GPUs: also where present_gpus() counts none, since the driver
// lists some that nobody here may open, or they are Windows's (WSL).
inline bool may_have_gpus(const std::string& root = "") {
  if (present_gpus((root + "/dev").c_str()) > 0) return true;
  if (access((root + "/dev/dxg").c_str(), F_OK) == 0) return true;
  const std::string listed = root + "/proc/driver/nvidia/gpus";
  const std::unique_ptr<DIR, int (*)(DIR*)> open(opendir(listed.c_str()), closedir);
  while (const dirent* entry = open == nullptr ? nullptr : readdir(open.get()))
    if (entry->d_name[0] != '.') return true;
  return false;
}

}  // namespace hvd
