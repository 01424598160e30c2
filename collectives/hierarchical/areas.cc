#include "collectives/hierarchical/areas.h"

#include <algorithm>

#include "collectives/schedule.h"

namespace hvd {
namespace {

// For memory that peers cannot see. What is summed is still in the cache of who brought it.
constexpr size_t kInputBytes = 384 * 1024, kOutputBytes = 384 * 1024;
// Results of what rides lie here without staging, too.
constexpr size_t kLeastOutputBytes = kHostRideBytesMost;
constexpr size_t kInputBlockBytes = 32 * 1024, kOutputBlockBytes = 64 * 1024;
constexpr size_t kLeastBlockBytes = 64;  // a line
// The least, so that one is filled while one is read, and one is between.
constexpr size_t kRounds = 3;

int lanes_most(const HostMap& map, int host) {
  return (map.slices() + map.ranks_of(host) - 1) / map.ranks_of(host);
}

// At least so many bytes, or more where there are very many blocks to a round.
size_t room(size_t bytes, int blocks) {
  return std::max(bytes, kRounds * kLeastBlockBytes * static_cast<size_t>(blocks));
}

Area area(size_t bytes, size_t block_most, int blocks) {
  const auto count = static_cast<size_t>(blocks);
  const size_t fits = bytes / kRounds / count / kLeastBlockBytes * kLeastBlockBytes;
  const size_t block = std::min(block_most, fits);
  return {bytes, block, bytes / (block * count)};
}

}  // namespace

Areas areas_of(const HostMap& map, int host, bool staging) {
  int lanes = 0;  // of any rank
  for (int other = 0; other < map.hosts(); ++other) lanes = std::max(lanes, lanes_most(map, other));
  const size_t output = room(staging ? kOutputBytes : kLeastOutputBytes, lanes);
  Areas areas{{0, kInputBlockBytes, 0}, area(output, kOutputBlockBytes, lanes_most(map, host))};
  if (staging) areas.input = area(room(kInputBytes, map.slices()), kInputBlockBytes, map.slices());
  return areas;
}

}  // namespace hvd
