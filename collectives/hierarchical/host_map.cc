#include "collectives/hierarchical/host_map.h"

#include <algorithm>
#include <utility>

namespace hvd {

HostMap::HostMap(std::vector<int> ranks_per_host) : ranks_(std::move(ranks_per_host)) {
  first_ranks_.push_back(0);
  for (int ranks : ranks_) {
    first_ranks_.push_back(first_ranks_.back() + ranks);
    slices_ = std::max(slices_, ranks);
  }
}

int HostMap::host_of(int rank) const {
  const auto after = std::ranges::upper_bound(first_ranks_, rank);
  return static_cast<int>(after - first_ranks_.begin()) - 1;
}

std::vector<int> HostMap::leaders(int slice) const {
  std::vector<int> leaders;
  for (int host = 0; host < hosts(); ++host) leaders.push_back(leader(slice, host));
  return leaders;
}

std::vector<int> HostMap::led_by(int local_rank, int host) const {
  std::vector<int> slices;
  for (int slice = local_rank; slice < slices_; slice += ranks_of(host)) slices.push_back(slice);
  return slices;
}

}  // namespace hvd
