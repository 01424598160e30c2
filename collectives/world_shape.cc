#include "collectives/world_shape.h"

#include <algorithm>
#include <string>

#include "hvd/error.h"

namespace hvd {
namespace {

std::string words(int rank, const HostRanks& host) {
  return "rank " + std::to_string(rank) + " says that its host has " + std::to_string(host.count) +
         " ranks from rank " + std::to_string(host.first) + " on";
}

}  // namespace

WorldShape WorldShape::of(std::span<const HostRanks> said) {
  WorldShape shape;
  shape.hosts.clear();
  const auto size = static_cast<int>(said.size());
  for (int rank = 0; rank < size;) {
    const HostRanks host = said[static_cast<size_t>(rank)];
    const bool fits = host.first == rank && host.count > 0 && host.count <= size - rank;
    for (int other = rank; other < rank + (fits ? host.count : 1); ++other)
      if (!fits || said[static_cast<size_t>(other)] != host)
        throw Error(ErrorCode::kInternal, words(rank, host) + ", " +
                                              words(other, said[static_cast<size_t>(other)]) +
                                              ": that does not fit together");
    shape.hosts.push_back(host);
    rank += host.count;
  }
  return shape;
}

int WorldShape::host_of(int rank) const {
  const auto after =
      std::ranges::upper_bound(hosts, rank, {}, [](const HostRanks& host) { return host.first; });
  return static_cast<int>(after - hosts.begin()) - 1;
}

}  // namespace hvd
