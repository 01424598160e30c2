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

LanePlan plan_allreduce(const HostMap& map, int host, int slice, size_t count, DataType type,
                        size_t chunk_bytes) {
  const Slice whole = slice_of(count, slice, map.slices(), type);
  const size_t element = size_of(type);
  LanePlan plan;
  for (int k = 0; k < map.hosts(); ++k) {
    const Slice part = slice_of(whole.size(), k, map.hosts(), type);
    plan.parts.push_back(
        {(whole.begin + part.begin) * element, (whole.begin + part.end) * element});
  }
  plan.own.add(part_before(plan, host, 0));
  if (map.hosts() == 1) plan.results = plan.own;
  // As they come in.
  const int sums = map.hosts() - 1;
  const RingOrder order(plan.parts, 2 * sums, chunk_bytes);
  if (!order.whole()) plan.own_every = static_cast<uint64_t>(map.hosts());
  for (RingOrder::Cursor in; !order.done(in); order.pass(in)) {
    const ByteRange chunk = order.chunk_of(part_before(plan, host, in.step + 1), in.chunk());
    if (in.step < sums) plan.rest.add(chunk);
    if (in.step >= sums - 1) plan.results.add(chunk);
  }
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
  if (round >= own + rest) return {};
  // Of the own part's blocks, in so many rounds.
  const auto own_in = [&](uint64_t rounds) {
    const uint64_t wanted = std::min(own, (rounds + plan.own_every - 1) / plan.own_every);
    return std::max(wanted, rounds - std::min(rounds, rest));
  };
  const bool is_own = own_in(round + 1) > own_in(round);
  const size_t bytes = (is_own ? plan.own : plan.rest).bytes();
  const size_t begin = (is_own ? own_in(round) : round - own_in(round)) * block_bytes;
  return {is_own, begin, std::min(bytes, begin + block_bytes)};
}

}  // namespace hvd
