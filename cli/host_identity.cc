#include "cli/host_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include "cli/read_file.h"

namespace hvd {
namespace {

constexpr size_t kBootBytesMax = 64;

uint64_t inode_of(const char* path) {
  struct stat facts{};
  return stat(path, &facts) == 0 ? uint64_t(facts.st_ino) : 0;
}

}  // namespace

bool is_one_host(const HostIdentity& one, const HostIdentity& other) {
  return !one.boot.empty() && one == other;
}

bool is_one_machine(const HostIdentity& one, const HostIdentity& other) {
  return !one.boot.empty() && one.boot == other.boot;
}

bool is_one_network(const HostIdentity& one, const HostIdentity& other) {
  return is_one_machine(one, other) && one.network == other.network;
}

HostIdentity look_at_this_host() {
  HostIdentity identity;
  const FileText boot = read_file("/proc/sys/kernel/random/boot_id", kBootBytesMax);
  if (boot.error == 0) identity.boot = boot.bytes.substr(0, boot.bytes.find('\n'));
  identity.network = inode_of("/proc/self/ns/net");
  identity.mounts = inode_of("/proc/self/ns/mnt");
  identity.processes = inode_of("/proc/self/ns/pid");
  // Without them two hosts might seem to be one.
  if (identity.network == 0 || identity.mounts == 0 || identity.processes == 0) identity = {};
  identity.user = geteuid();
  return identity;
}

}  // namespace hvd
