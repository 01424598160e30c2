#include "cli/this_machine.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "cli/gpu_list.h"
#include "cli/read_file.h"
#include "runtime/base/env.h"
#include "runtime/base/present_gpus.h"

namespace hvd {
namespace {

constexpr size_t kFileBytesMax = 1 << 20;  // of /etc/hosts and /etc/passwd

// Lower case, without a final dot: names are compared so.
std::string plain_name(std::string_view name) {
  if (name.ends_with('.')) name.remove_suffix(1);
  std::string out(name);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return out;
}

// The address as inet_ntop writes it, without a zone; empty when `text` is none. Whatever ssh would
// take for one is: 127.1 too.
std::string plain_address(std::string_view text) {
  const std::string word(text.substr(0, text.find('%')));
  char out[INET6_ADDRSTRLEN];
  in_addr four;
  in6_addr six;
  if (inet_aton(word.c_str(), &four) != 0) return inet_ntop(AF_INET, &four, out, sizeof out);
  if (inet_pton(AF_INET6, word.c_str(), &six) == 1) {
    if (IN6_IS_ADDR_V4MAPPED(&six)) return inet_ntop(AF_INET, &six.s6_addr[12], out, sizeof out);
    return inet_ntop(AF_INET6, &six, out, sizeof out);
  }
  return "";
}

bool is_loopback(const std::string& address) {
  return address == "::1" || address.starts_with("127.");
}

bool is_ours(const std::string& address, const std::vector<std::string>& addresses) {
  return is_loopback(address) ||
         std::find(addresses.begin(), addresses.end(), address) != addresses.end();
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  constexpr std::string_view kBlanks = " \t\r";
  for (size_t at = line.find_first_not_of(kBlanks); at != line.npos;) {
    const size_t end = std::min(line.find_first_of(kBlanks, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(kBlanks, end);
  }
  return words;
}

std::string host_name() {
  char name[256] = "";
  if (gethostname(name, sizeof name - 1) != 0) return "";
  return name;
}

std::vector<std::string> bound_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::vector<std::string> addresses;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    char out[INET6_ADDRSTRLEN];
    const void* address = nullptr;
    if (entry->ifa_addr->sa_family == AF_INET) {
      address = &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr;
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      address = &reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr;
    }
    if (address != nullptr) {
      addresses.emplace_back(inet_ntop(entry->ifa_addr->sa_family, address, out, sizeof out));
    }
  }
  return addresses;
}

}  // namespace

bool is_this_machine(std::string_view host, const ThisMachine& machine) {
  const std::string address = plain_address(host);
  if (address == "0.0.0.0" || address == "::") return true;  // to a connect(), this machine
  if (!address.empty()) return is_ours(address, machine.addresses);
  const std::string name = plain_name(host);
  // As distributions' /etc/hosts call 127.0.0.1 and ::1.
  for (const char* local : {"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback",
                            "localhost6", "localhost6.localdomain6"})
    if (name == local) return true;
  return std::any_of(machine.names.begin(), machine.names.end(), [&](const std::string& own) {
    const std::string plain = plain_name(own);
    // A short name may stand for a long one of ours, but not the other way round: another domain
    // may have a machine of the same short name.
    return plain == name || (name.find('.') == name.npos && plain.starts_with(name + "."));
  });
}

std::vector<std::string> names_in_hosts_file(std::string_view text,
                                             const std::vector<std::string>& addresses) {
  std::vector<std::string> names;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::vector<std::string_view> words = words_of(line.substr(0, line.find('#')));
    if (words.empty() || !is_ours(plain_address(words[0]), addresses)) continue;
    names.insert(names.end(), words.begin() + 1, words.end());
  }
  return names;
}

std::vector<std::string> names_in_passwd(std::string_view text, unsigned uid) {
  std::vector<std::string> names;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    // NAME:PASSWORD:UID:…
    const size_t name_end = line.find(':');
    const size_t uid_begin = name_end == line.npos ? line.npos : line.find(':', name_end + 1);
    if (uid_begin == line.npos) continue;
    unsigned number = 0;
    const char* end = line.data() + line.size();
    const auto [stop, error] = std::from_chars(line.data() + uid_begin + 1, end, number);
    if (error == std::errc() && stop != end && *stop == ':' && number == uid)
      names.emplace_back(line.substr(0, name_end));
  }
  return names;
}

std::string why_descendants_are_unseen() {
  constexpr const char* kChildren = "/proc/thread-self/children";
  if (access(kChildren, R_OK) == 0) return {};
  return std::string(kChildren) + " cannot be read (" + std::strerror(errno) +
         "): without it nothing tells which processes the job has; that takes all of /proc, of a "
         "kernel that was built with CONFIG_PROC_CHILDREN";
}

int look_at_gpus() {
  return visible_gpus(present_gpus(), env::get("CUDA_VISIBLE_DEVICES"), gpus_are_divided());
}

ThisMachine look_at_this_machine(const std::optional<std::string>& cuda_visible_devices) {
  ThisMachine machine;
  machine.addresses = bound_addresses();
  machine.names = {host_name()};
  if (const auto text = read_file("/etc/hosts", kFileBytesMax); text.error == 0) {
    for (std::string& name : names_in_hosts_file(text.bytes, machine.addresses)) {
      machine.names.push_back(std::move(name));
    }
  }
  // The uid's names; where a directory server has them, the environment's word is taken.
  if (const auto text = read_file("/etc/passwd", kFileBytesMax); text.error == 0)
    machine.users = names_in_passwd(text.bytes, geteuid());
  for (const char* variable : {"USER", "LOGNAME"}) {
    if (machine.users.empty())
      if (auto name = env::get(variable)) machine.users.push_back(std::move(*name));
  }
  machine.gpus = visible_gpus(present_gpus(), cuda_visible_devices, gpus_are_divided());
  return machine;
}

}  // namespace hvd
