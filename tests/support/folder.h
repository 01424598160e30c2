// A directory of a test's own with files in it, as paths are written in commands.
#pragma once

#include <sys/stat.h>

#include <fstream>
#include <string>

#include "tests/support/temporary_directory.h"

namespace hvd {

class Folder {
 public:
  std::string path() const { return directory_.path(); }
  std::string in(const std::string& name) const { return path() + "/" + name; }
  void write(const std::string& name, const std::string& text, mode_t mode) const {
    std::ofstream(in(name)) << text;
    chmod(in(name).c_str(), mode);
  }

 private:
  TemporaryDirectory directory_;
};

}  // namespace hvd
