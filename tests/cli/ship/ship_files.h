// Files for a store of shipped ones, and a folder for it.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <string>

#include "cli/ship/ship_store.h"
#include "rendezvous/digest.h"
#include "runtime/base/error.h"
#include "tests/support/temporary_directory.h"

namespace hvd {

inline proto::ShippedFile file_of(const std::string& text, bool executable = false) {
  proto::ShippedFile file;
  file.set_sum(sha256(std::as_bytes(std::span(text))));
  file.set_bytes(text.size());
  file.set_executable(executable);
  return file;
}

inline std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Bytes as they come from hvdrun: a few at once.
inline ShipStore::ReadSome reader(std::string text, size_t at_once = 7) {
  return [text = std::move(text), at_once, at = size_t(0)](char* bytes, size_t most) mutable {
    const size_t n = std::min({most, at_once, text.size() - at});
    if (n == 0) throw Error(ErrorCode::kUnavailable, "gone");
    std::memcpy(bytes, text.data() + at, n);
    at += n;
    return n;
  };
}

inline void take(ShipStore& store, const std::string& text, bool executable = false) {
  const proto::ShippedFile file = file_of(text, executable);
  store.take({{&file, "file"}}, [] {}, reader(text));
}

inline int entries(const std::filesystem::path& folder) {
  return int(std::distance(std::filesystem::directory_iterator(folder),
                           std::filesystem::directory_iterator()));
}

struct Place {
  TemporaryDirectory folder;
  std::string path = (folder.path() / "hvdrun" / "shipped").string();
};

}  // namespace hvd
