// Which ranks share a host, and which of them leads which slice there. Pure.
//
// Ranks are numbered host by host. There are as many slices as the largest host has ranks; on a
// host with fewer some lead several, so every rank leads at least one, and each slice has one
// leader on every host.
#pragma once

#include <cstddef>
#include <vector>

namespace hvd {

class HostMap {
 public:
  // At least one rank on each.
  explicit HostMap(std::vector<int> ranks_per_host);

  int hosts() const { return static_cast<int>(ranks_.size()); }
  int ranks() const { return first_ranks_.back(); }
  int slices() const { return slices_; }
  int ranks_of(int host) const { return ranks_[static_cast<size_t>(host)]; }
  int first_rank(int host) const { return first_ranks_[static_cast<size_t>(host)]; }
  int host_of(int rank) const;
  // The rank that leads a slice.
  int leader(int slice, int host) const { return first_rank(host) + slice % ranks_of(host); }
  // The leaders of a slice, by host.
  std::vector<int> leaders(int slice) const;
  // Which slices a local rank leads.
  std::vector<int> led_by(int local_rank, int host) const;

 private:
  std::vector<int> ranks_;
  std::vector<int> first_ranks_;  // and at last how many there are
  int slices_ = 0;
};

}  // namespace hvd
