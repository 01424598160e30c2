// On how many hosts the ranks of a world are, and which of them share a host's memory. Pure.
//
// Ranks are numbered host by host. A World tells a rank of its own host alone; the shape is known
// once all have said what they know.
#pragma once

#include <span>
#include <vector>

namespace hvd {

// The ranks of one host, as each of them says it.
struct HostRanks {
  int first = 0, count = 1;

  friend bool operator==(const HostRanks&, const HostRanks&) = default;
};

struct WorldShape {
  std::vector<HostRanks> hosts{HostRanks{}};  // in the order of their ranks
  int size() const { return hosts.back().first + hosts.back().count; }
  int host_of(int rank) const;
  bool one_host() const { return hosts.size() == 1; }

  // From what each rank says of its host, by rank. Throws kInternal, naming two ranks, when that
  // does not fit together.
  static WorldShape of(std::span<const HostRanks> said);
};

}  // namespace hvd
