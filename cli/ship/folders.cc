#include "cli/ship/folders.h"

#include <linux/magic.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "cli/read_file.h"

namespace hvd {
namespace {

constexpr size_t kAccountBytesMax = 16u << 20;
constexpr long kZfs = 0x2fc12fc1;  // no header of Linux has it
constexpr long kOfOneKernel[] = {EXT4_SUPER_MAGIC,
                                 XFS_SUPER_MAGIC,
                                 BTRFS_SUPER_MAGIC,
                                 TMPFS_MAGIC,
                                 OVERLAYFS_SUPER_MAGIC,
                                 F2FS_SUPER_MAGIC,
                                 kZfs};

// Up to the next `separator`, which goes as well.
std::string_view take_up_to(char separator, std::string_view& text) {
  const std::string_view taken = text.substr(0, text.find(separator));
  text.remove_prefix(std::min(taken.size() + 1, text.size()));
  return taken;
}

}  // namespace

std::vector<std::string> distinct_folders(const std::vector<std::string>& folders) {
  std::vector<std::string> distinct;
  std::set<std::pair<dev_t, ino_t>> seen;
  for (const std::string& one : folders) {
    struct stat facts{};
    if (stat(one.c_str(), &facts) != 0 || seen.emplace(facts.st_dev, facts.st_ino).second)
      distinct.push_back(one);
  }
  return distinct;
}

bool is_group_of_one(std::string_view passwd, std::string_view group, uid_t user, gid_t gid) {
  const std::string users_id = std::to_string(user), groups_id = std::to_string(gid);
  std::string_view name;
  while (!passwd.empty()) {  // NAME:PASSWORD:USER:GROUP:…
    std::string_view line = take_up_to('\n', passwd);
    const std::string_view of_line = take_up_to(':', line);
    take_up_to(':', line);
    const std::string_view id = take_up_to(':', line);
    if (take_up_to(':', line) != groups_id) continue;
    if (id != users_id) return false;
    name = of_line;
  }
  bool is_known = false;
  while (!group.empty()) {  // NAME:PASSWORD:GROUP:MEMBERS
    std::string_view line = take_up_to('\n', group);
    take_up_to(':', line);
    take_up_to(':', line);
    if (take_up_to(':', line) != groups_id) continue;
    if (!line.empty() && line != name) return false;
    is_known = true;
  }
  return is_known && !name.empty();
}

bool others_may_write(const std::string& folder, const struct stat& facts) {
  if ((facts.st_mode & S_IWOTH) != 0) return true;
  if ((facts.st_mode & S_IWGRP) == 0) return false;
  const bool has_list = lgetxattr(folder.c_str(), "system.posix_acl_access", nullptr, 0) >= 0;
  return has_list ||  // whose entries the bits of the group stand for then, whoever they name
         !is_group_of_one(read_file("/etc/passwd", kAccountBytesMax).bytes,
                          read_file("/etc/group", kAccountBytesMax).bytes, geteuid(), facts.st_gid);
}

std::string unsafe_on_the_way(const std::string& folder) {
  std::filesystem::path way;
  for (const std::filesystem::path& name : std::filesystem::path(folder)) {
    way /= name;
    struct stat facts{};
    const bool ours = lstat(way.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode) &&
                      (facts.st_uid == 0 || facts.st_uid == geteuid());
    if (!ours || ((facts.st_mode & S_ISVTX) == 0 && others_may_write(way.string(), facts)))
      return way.string();
  }
  return "";
}

bool other_hosts_may_use(const std::string& path) {
  struct statfs facts{};
  return statfs(path.c_str(), &facts) != 0 ||
         std::ranges::find(kOfOneKernel, long(facts.f_type)) == std::end(kOfOneKernel);
}

}  // namespace hvd
