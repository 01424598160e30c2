#include "collectives/hierarchical/lane_plan.h"

#include <utility>

#include "collectives/reduce.h"

namespace hvd {
namespace {

uint64_t blocks(size_t bytes, size_t block_bytes) {
  return (bytes + block_bytes - 1) / block_bytes;
}

// The part that lies `back` places before that of `host`.
const ByteRange& part_before(const LanePlan& plan, int host, int back) {
  const int hosts = static_cast<int>(plan.parts.size());
  return plan.parts[static_cast<size_t>(((host - back) % hosts + hosts) % hosts)];
}

}  // namespace

LanePlan plan_allreduce(const HostMap& map, int host, int slice, size_t count, DataType type) {
  const Slice whole = slice_of(count, slice, map.slices(), type);
  const size_t element = size_of(type);
  LanePlan plan;
  for (int k = 0; k < map.hosts(); ++k) {
    const Slice part = slice_of(whole.size(), k, map.hosts(), type);
    plan.parts.push_back(
        {(whole.begin + part.begin) * element, (whole.begin + part.end) * element});
  }
  plan.own.add(part_before(plan, host, 0));
  for (int back = 1; back < map.hosts(); ++back) plan.rest.add(part_before(plan, host, back));
  // The last part that is summed is the first one that is whole.
  for (int back = 0; back < map.hosts(); ++back)
    plan.results.add(part_before(plan, host, back - 1));
  return plan;
}

LanePlan plan_spreading(std::vector<ByteRange> parts, int host) {
  LanePlan plan;
  plan.parts = std::move(parts);
  const int hosts = static_cast<int>(plan.parts.size());
  plan.own.add(part_before(plan, host, 0));
  for (int back = 0; back < hosts; ++back) plan.results.add(part_before(plan, host, back));
  return plan;
}

LanePlan plan_broadcast(const HostMap& map, int host, int slice, int root, size_t bytes) {
  std::vector<ByteRange> parts(static_cast<size_t>(map.hosts()));
  const int origin = map.host_of(root);
  if (root - map.first_rank(origin) == slice) parts[static_cast<size_t>(origin)] = {0, bytes};
  return plan_spreading(std::move(parts), host);
}

LanePlan plan_allgather(const HostMap& map, int host, int slice, std::span<const uint64_t> counts,
                        size_t element) {
  std::vector<ByteRange> parts;
  size_t start = 0, rank = 0;
  for (int k = 0; k < map.hosts(); ++k) {
    parts.emplace_back();
    for (int local = 0; local < map.ranks_of(k); ++local, ++rank) {
      const size_t end = start + counts[rank] * element;
      if (local == slice) parts.back() = {start, end};
      start = end;
    }
  }
  return plan_spreading(std::move(parts), host);
}

uint64_t input_rounds(const LanePlan& plan, size_t block_bytes) {
  return blocks(plan.own.bytes(), block_bytes) + blocks(plan.rest.bytes(), block_bytes);
}

InputBlock input_block(const LanePlan& plan, size_t block_bytes, uint64_t round) {
  const uint64_t own = blocks(plan.own.bytes(), block_bytes);
  const uint64_t rest = blocks(plan.rest.bytes(), block_bytes);
  const uint64_t both = std::min(own, rest);
  const bool in_turn = round < 2 * both;
  const bool is_own = in_turn ? round % 2 == 0 : own > rest;
  const size_t bytes = (is_own ? plan.own : plan.rest).bytes();
  const size_t begin = std::min(bytes, (in_turn ? round / 2 : round - both) * block_bytes);
  return {is_own, begin, std::min(bytes, begin + block_bytes)};
}

}  // namespace hvd
