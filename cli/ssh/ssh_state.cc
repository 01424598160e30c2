#include "cli/ssh/ssh_state.h"

#include <dirent.h>
#include <sys/xattr.h>

#include <memory>
#include <string>
#include <string_view>

#include "cli/read_file.h"

namespace hvd {
namespace {

constexpr size_t kFileBytesMax = 4096;

// "TCP" and "TCPv6" alone are ways to an sshd: name servers are asked through UDP, a cache of names
// through a unix socket.
bool is_tcp(const std::string& descriptor) {
  char name[16];
  const ssize_t length = getxattr(descriptor.c_str(), "system.sockprotoname", name, sizeof name);
  return length > 0 && std::string_view(name, size_t(length)).starts_with("TCP");
}

}  // namespace

bool is_resolving(pid_t ssh) {
  const std::string number = std::to_string(ssh), process = "/proc/" + number;
  if (read_file(process + "/comm", kFileBytesMax).bytes != "ssh\n") return false;
  const FileText children = read_file(process + "/task/" + number + "/children", kFileBytesMax);
  if (children.error != 0 || !children.bytes.empty()) return false;
  const std::string folder = process + "/fd";
  const std::unique_ptr<DIR, int (*)(DIR*)> descriptors(opendir(folder.c_str()), closedir);
  if (descriptors == nullptr) return false;
  while (const dirent* entry = readdir(descriptors.get()))
    if (is_tcp(folder + "/" + entry->d_name)) return false;
  return true;
}

}  // namespace hvd
