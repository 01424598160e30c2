#include "cli/hello.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstring>

#include "cli/quoted.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/socket_address.h"
#include "runtime/base/control_block.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"

namespace hvd {
namespace {

constexpr int kInterfacesMax = 256;  // a hello is short

std::string name_of(const Hello& hello) {
  return "hvdrun " + in_quotes(hello.version) + ", build " + in_quotes(hello.build);
}

// An sshd that is spoken to over no network calls both ends UNKNOWN. The name behind a % is of an
// interface there.
std::string address_in(const std::string& text) {
  const size_t percent = std::min(text.find('%'), text.size());
  const auto plain = [](unsigned char c) { return std::isalnum(c) || std::strchr(".:%_-", c); };
  if (!std::all_of(text.begin(), text.end(), [&](char c) { return c != '\0' && plain(c); }))
    return "";
  try {
    SocketAddress::of(std::string_view(text).substr(0, percent), 0);
    return text;
  } catch (const Error&) {
    return "";
  }
}

}  // namespace

std::string hello_bytes(const Hello& hello) {
  proto::Hello message;
  message.set_version(hello.version);
  message.set_build(hello.build);
  message.set_request(hello.request);
  message.set_hvdrun_address(hello.hvdrun_address);
  message.set_hvdrun_port(hello.hvdrun_port);
  message.set_own_address(hello.own_address);
  message.set_boot(hello.identity.boot);
  message.set_network(hello.identity.network);
  message.set_mounts(hello.identity.mounts);
  message.set_processes(hello.identity.processes);
  message.set_user(hello.identity.user);
  message.set_gpus(hello.gpus);
  message.set_gpus_there(hello.gpus_there);
  for (const InterfaceAddress& one : hello.interfaces) {
    if (message.addresses_size() == kInterfacesMax) break;
    message.add_interfaces(one.interface);
    message.add_addresses(one.address);
    message.add_speeds_mbps(one.speed_mbps);
  }
  return message.SerializeAsString();
}

Hello read_hello(std::string_view bytes, const Hello& ours) {
  proto::Hello message;
  if (!message.ParseFromArray(bytes.data(), int(bytes.size())) || message.version().empty())
    throw Error(ErrorCode::kUnavailable, "its agent's first words are none of an hvdrun's");
  Hello hello{message.version(),
              message.build(),
              message.request(),
              address_in(message.hvdrun_address()),
              address_in(message.own_address()),
              {.boot = message.boot(),
               .network = message.network(),
               .mounts = message.mounts(),
               .processes = message.processes(),
               .user = message.user()},
              {},
              std::clamp(message.gpus(), 0, kLocalRanksMax),
              std::clamp(message.gpus_there(), 0, kLocalRanksMax),
              uint16_t(message.hvdrun_port() <= UINT16_MAX ? message.hvdrun_port() : 0)};
  const int count =
      std::min({message.interfaces_size(), message.addresses_size(), message.speeds_mbps_size()});
  for (int i = 0; i < std::min(count, kInterfacesMax); ++i) {
    // Both are shown to the user, and a name that was cleaned would be no interface's.
    const std::string address = address_in(message.addresses(i));
    if (!address.empty() && is_shown(message.interfaces(i)))
      hello.interfaces.push_back(
          {message.interfaces(i), address, std::max(message.speeds_mbps(i), kTunnelMbps)});
  }
  if (hello.version != ours.version || hello.build != ours.build)
    throw Error(ErrorCode::kUnavailable, "its agent is of " + name_of(hello) + ", and this is " +
                                             name_of(ours) + ": remove ~/.cache/hvdrun/" +
                                             ours.build + " there, it is made anew");
  return hello;
}

}  // namespace hvd
