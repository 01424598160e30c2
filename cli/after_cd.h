// Where `cd TO` in the directory `from` leads, by name.
//
// Pure.
#pragma once

#include <filesystem>
#include <string>

namespace hvd {

// As POSIX has it without -P: of "a/.." nothing stays, be "a" a link or not, and nothing of "." and
// of slashes that name nothing. A relative path that begins with ".." keeps that where `from` is
// empty. Unlike cd, nothing asks whether a name that ".." takes back is there.
inline std::string after_cd(const std::string& from, const std::string& to) {
  const std::filesystem::path path = (std::filesystem::path(from) / to).lexically_normal();
  return path.has_filename() || !path.has_relative_path() ? path : path.parent_path();
}

}  // namespace hvd
