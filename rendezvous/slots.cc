#include "rendezvous/slots.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "runtime/base/control_block.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

std::string plural(int64_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string too_few(std::span<const Host> hosts, int64_t offered, int count) {
  const std::string asked = std::to_string(count);
  if (hosts.size() == 1) {
    return "host \"" + hosts[0].name + "\" offers " + plural(offered, "slot") + " but -np " +
           asked + " was asked; add hosts or slots, or lower -np";
  }
  return "the " + std::to_string(hosts.size()) + " hosts offer " + plural(offered, "slot") +
         " together but -np " + asked + " was asked; add hosts or slots, or lower -np";
}

}  // namespace

std::vector<Slot> assign_slots(std::span<const Host> hosts, int count) {
  if (count < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "a job needs at least 1 rank, but " + std::to_string(count) + " were asked");
  }
  int64_t offered = 0;
  for (const Host& host : hosts) {
    if (host.slots < 0) {
      throw Error(ErrorCode::kInvalidArgument, "host \"" + host.name + "\" offers " +
                                                   std::to_string(host.slots) +
                                                   " slots; a slot count is 0 or more");
    }
    offered += host.slots;
  }
  if (offered < count) throw Error(ErrorCode::kInvalidArgument, too_few(hosts, offered, count));

  std::vector<Slot> slots;
  slots.reserve(static_cast<size_t>(count));
  std::vector<int> hosts_with;  // [local rank] how many hosts have it
  for (size_t host = 0; host < hosts.size(); ++host) {
    const int local_size = std::min(hosts[host].slots, count - static_cast<int>(slots.size()));
    if (local_size > kLocalRanksMax) {
      throw Error(ErrorCode::kInvalidArgument, "host \"" + hosts[host].name + "\" would get " +
                                                   std::to_string(local_size) + " ranks; at most " +
                                                   std::to_string(kLocalRanksMax) +
                                                   " share one host; add hosts, or lower -np");
    }
    if (hosts_with.size() < static_cast<size_t>(local_size)) hosts_with.resize(local_size);
    for (int local_rank = 0; local_rank < local_size; ++local_rank) {
      slots.push_back({.host = static_cast<int>(host),
                       .world = {.rank = static_cast<int>(slots.size()),
                                 .size = count,
                                 .local_rank = local_rank,
                                 .local_size = local_size,
                                 .cross_rank = hosts_with[local_rank]++,
                                 .host = hosts[host].name}});
    }
  }
  for (Slot& slot : slots) slot.world.cross_size = hosts_with[slot.world.local_rank];
  return slots;
}

}  // namespace hvd
