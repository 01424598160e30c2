#include "rendezvous/listener.h"

#include <dirent.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <system_error>

#include "runtime/base/error.h"
#include "runtime/base/utf8.h"

namespace hvd {
namespace {

namespace fs = std::filesystem;

constexpr int kHoldersMax = 3;  // that an error names

// Returns 0, or the error. A port of a job that ended a moment ago is free again only to whom
// shares it; but to them so is one that another job keeps for its rank 0, and does not listen on.
int try_to_listen(SocketAddress address, bool shares, Listener& made) {
  made.socket.reset(
      socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!made.socket) return errno;
  const int on = 1;
  if (address.family() == AF_INET6)
    setsockopt(made.socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  const auto share = [&] {
    setsockopt(made.socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  };
  if (shares) share();
  if (bind(made.socket.get(), address.get(), address.size()) != 0) return errno;
  share();  // for the next job
  if (listen(made.socket.get(), SOMAXCONN) != 0) return errno;
  made.address = SocketAddress::local_of(made.socket.get());
  return 0;
}

Listener listen_at(const std::string& host, PortRange ports, uint16_t kept) {
  Listener made;
  SocketAddress address = SocketAddress::of(host, 0);
  int error = EADDRINUSE;
  for (const bool shares : {false, true})
    for (int port = ports.low; port <= ports.high; ++port) {
      if (port != 0 && port == kept) continue;
      address.set_port(uint16_t(port));
      error = try_to_listen(address, shares, made);
      if (error == 0) return made;
      if (error != EADDRINUSE && error != EACCES) break;  // another port would not help
    }
  const std::string range = ports.high == 0 ? "" : ", " + range_text(ports);
  throw Error(ErrorCode::kUnavailable,
              "cannot listen on " + host + range + ": " + why_not(ports, error, kept));
}

// The inodes of sockets that listen on a port, as /proc/net/tcp and tcp6 list them.
std::set<std::string> listening_inodes(uint16_t port) {
  std::set<std::string> inodes;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream lines(table);
    std::string line;
    while (std::getline(lines, line)) {
      std::istringstream words(line);
      std::string number, local, remote, state, skipped, inode;
      words >> number >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) words >> skipped;
      words >> inode;
      const size_t colon = local.rfind(':');
      if (state == "0A" && colon != local.npos &&
          std::strtoul(local.c_str() + colon + 1, nullptr, 16) == port)
        inodes.insert("socket:[" + inode + "]");
    }
  }
  return inodes;
}

bool has_one_of(const fs::path& process, const std::set<std::string>& sockets) {
  std::error_code unreadable;  // another user's, or gone meanwhile
  for (fs::directory_iterator fd(process / "fd", unreadable), end; !unreadable && fd != end;
       fd.increment(unreadable)) {
    std::error_code closed;
    if (sockets.contains(fs::read_symlink(fd->path(), closed).string())) return true;
  }
  return false;
}

}  // namespace

std::vector<Listener> listen_on(std::span<const std::string> hosts, PortRange ports,
                                uint16_t kept) {
  std::vector<Listener> all;
  for (const std::string& host : hosts) all.push_back(listen_at(host, ports, kept));
  return all;
}

std::string range_text(PortRange ports) {
  return ports.low == ports.high
             ? "port " + std::to_string(ports.low)
             : "any port of " + std::to_string(ports.low) + "-" + std::to_string(ports.high);
}

std::string why_not(PortRange ports, int error, uint16_t kept) {
  std::string text = std::strerror(error);
  if (ports.high == 0) return text;
  int named = 0;
  for (int port = ports.low; port <= ports.high && named < kHoldersMax && error == EADDRINUSE;
       ++port)
    if (const std::string who = who_listens(uint16_t(port)); !who.empty()) {
      text += "; " + std::to_string(port) + " is " + who + "'s";
      ++named;
    }
  if (error == EADDRINUSE && kept != 0 && ports.low <= kept && kept <= ports.high)
    text += "; " + std::to_string(kept) + " is kept for MASTER_PORT";
  return text + "; give other ports with --port-range LOW-HIGH";
}

Accepted accept_from(const Listener& listener) {
  Accepted one;
  one.socket.reset(accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  // Any other error belongs to a connection that did not come about.
  for (const int ours : {EMFILE, ENFILE, ENOBUFS, ENOMEM})
    one.exhausted = one.exhausted || (!one.socket && errno == ours);
  return one;
}

std::string who_listens(uint16_t port) {
  const std::set<std::string> sockets = listening_inodes(port);
  std::error_code gone;
  if (sockets.empty()) return {};
  for (const auto& process : fs::directory_iterator("/proc", gone)) {
    const std::string pid = process.path().filename();
    if (pid.find_first_not_of("0123456789") != pid.npos || !has_one_of(process.path(), sockets))
      continue;
    std::string name;
    std::ifstream comm(process.path() / "comm");
    std::getline(comm, name);
    const bool told = !name.empty() && is_shown(name);  // another user may have chosen it
    return "process " + pid + (told ? " (" + name + ")" : "");
  }
  return {};
}

bool is_end_here(const std::string& address, uint16_t port) {
  if (port == 0) return false;
  try {
    const SocketAddress end = SocketAddress::of(address, port);
    const UniqueFd probe(socket(end.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    return probe && bind(probe.get(), end.get(), end.size()) != 0 && errno == EADDRINUSE;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace hvd
