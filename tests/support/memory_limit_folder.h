// A folder for InProcessHost::limit_memory(): a machine of 1,000 kB, of which so many are left.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temporary_directory.h"

namespace hvd {

class MemoryLimitFolder {
 public:
  explicit MemoryLimitFolder(int left_kb) {
    std::filesystem::create_directory(folder_.path() / "proc");
    std::ofstream(folder_.path() / "proc/meminfo")
        << "MemTotal: 1000 kB\nMemAvailable: " << left_kb << " kB\n";
  }
  std::string path() const { return folder_.path(); }

 private:
  const TemporaryDirectory folder_;
};

}  // namespace hvd
