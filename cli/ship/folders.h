// Folders of this host: which are one, who may change what is in them, and whether other hosts use
// their file systems too.
#pragma once

#include <sys/stat.h>

#include <string>
#include <string_view>
#include <vector>

namespace hvd {

// Each once, by the name that comes first; those that are not there stay.
std::vector<std::string> distinct_folders(const std::vector<std::string>& folders);

// Pure. As far as these files know (/etc/passwd and /etc/group), nobody but this user is in that
// group: many systems give each user such a one, and let it write what the user makes.
bool is_group_of_one(std::string_view passwd, std::string_view group, uid_t user, gid_t gid);

// Others, a group that is not this user's alone, or somebody of an access list, as far as `facts`
// of lstat() and the list tell. One that lets nobody but this user write counts, too.
bool others_may_write(const std::string& folder, const struct stat& facts);

// The first folder on the way from "/" down to this one, which is there and has no link on its way,
// where somebody but root and this user could put another in the place of what it holds; empty:
// none. All have to be root's or this user's, and others may write to none, unless it is sticky, as
// /tmp is. The script that finds the agent goes by the same rule (cli/ssh/remote_script).
std::string unsafe_on_the_way(const std::string& folder);

// Its file system is none of those that one kernel has to itself: neither locks nor processes tell
// who uses what is there.
bool other_hosts_may_use(const std::string& path);

}  // namespace hvd
