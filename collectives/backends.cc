// Decides by the world's shape alone, so all ranks decide the same.
#include "collectives/backends.h"

#include <algorithm>

namespace hvd {
namespace {

std::vector<int> ranks_of_hosts(const WorldShape& shape) {
  std::vector<int> ranks;
  for (const HostRanks& host : shape.hosts) ranks.push_back(host.count);
  return ranks;
}

// No two ranks share a host.
bool is_flat(const WorldShape& shape) {
  return std::ranges::all_of(shape.hosts, [](const HostRanks& host) { return host.count == 1; });
}

}  // namespace

std::unique_ptr<Communicator> make_world_communicator(Peers& peers, Arena& arena,
                                                      const WorldShape& shape,
                                                      const CommunicatorSpec& spec) {
  if (shape.one_host()) return make_communicator(peers, arena, spec);
  if (is_flat(shape)) return make_tcp_communicator(peers, arena, spec);
  CommunicatorSpec with_hosts = spec;
  with_hosts.hosts = ranks_of_hosts(shape);
  return make_hierarchical_communicator(peers, arena, with_hosts);
}

uint64_t world_communicator_bytes(const WorldShape& shape, bool staging) {
  if (shape.one_host()) return communicator_bytes(staging);
  return is_flat(shape) ? 0 : hierarchical_bytes(ranks_of_hosts(shape), staging);
}

uint32_t world_communicator_links(const WorldShape& shape) {
  if (shape.one_host()) return 0;
  return is_flat(shape) ? 1 : hierarchical_links(ranks_of_hosts(shape));
}

}  // namespace hvd
