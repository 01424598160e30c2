// Access lists of files, acl(5).
#pragma once

#include <sys/xattr.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "tests/support/temporary_directory.h"

namespace hvd {

inline constexpr const char* kAccessList = "system.posix_acl_access";
inline constexpr const char* kDefaultList = "system.posix_acl_default";

// Of permissions as chmod has them, 0 to 7; others may do nothing.
struct AccessList {
  uint16_t owner, user_12345, group, mask;

  std::string bytes() const {
    struct Entry {
      uint16_t tag, may;
      uint32_t id;
    };
    constexpr uint32_t kNoId = UINT32_MAX;
    const Entry entries[] = {{1, owner, kNoId},
                             {2, user_12345, 12345},
                             {4, group, kNoId},
                             {0x10, mask, kNoId},
                             {0x20, 0, kNoId}};
    const uint32_t version = 2;
    std::string all(reinterpret_cast<const char*>(&version), sizeof version);
    return all.append(reinterpret_cast<const char*>(entries), sizeof entries);
  }
};

inline bool set_list(const std::string& path, const char* name, const std::string& list) {
  return setxattr(path.c_str(), name, list.data(), list.size(), 0) == 0;
}

// Where files may have such lists, of the places that a test may use.
inline std::optional<std::filesystem::path> place_with_lists() {
  namespace fs = std::filesystem;
  for (const fs::path& where :
       {fs::temp_directory_path(), fs::path("/dev/shm"), fs::current_path()}) {
    if (access(where.c_str(), W_OK) != 0) continue;
    const TemporaryDirectory folder(where);
    const AccessList list{.owner = 6, .user_12345 = 4, .group = 0, .mask = 4};
    if (set_list(folder.path(), kDefaultList, list.bytes())) return where;
  }
  return std::nullopt;
}

}  // namespace hvd
