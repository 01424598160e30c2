// What one slice's leader takes in from its host, sends round the ring of hosts, and hands out to
// its host, in which order. Pure: every rank of a host finds the same for every slice.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/hierarchical/host_map.h"
#include "collectives/tcp/ring.h"
#include "hvd/types.h"

namespace hvd {

// Ranges of some memory, one behind the other: a stream of bytes.
class RangeList {
 public:
  void add(const ByteRange& range) {
    if (range.bytes() == 0) return;
    pieces_.push_back({range, bytes_});
    bytes_ += range.bytes();
  }
  size_t bytes() const { return bytes_; }
  // Calls use(range, where it begins in the stream) for what lies in [begin, end) of the stream.
  template <class Use>
  void each(size_t begin, size_t end, const Use& use) const {
    auto piece = std::ranges::upper_bound(pieces_, begin, {}, &Piece::start);
    if (piece != pieces_.begin()) --piece;
    for (; piece != pieces_.end() && piece->start < end; ++piece) {
      const auto& [range, start] = *piece;
      const size_t from = std::max(begin, start), to = std::min(end, start + range.bytes());
      if (from < to) use(ByteRange{range.begin + from - start, range.begin + to - start}, from);
    }
  }

 private:
  struct Piece {
    ByteRange range;
    size_t start;  // in the stream
  };
  std::vector<Piece> pieces_;
  size_t bytes_ = 0;
};

struct LanePlan {
  std::vector<ByteRange> parts;  // of the ring, by host
  RangeList own, rest;           // this host's part, and what comes in to be summed, in that order
  RangeList results;             // in the order in which they are whole here
  uint64_t own_every = 2;        // rounds of taking in, of which one is of the own part
};

// Slice `slice` of an allreduce, seen from `host`, whose ring goes in such chunks.
LanePlan plan_allreduce(const HostMap& map, int host, int slice, size_t count, DataType type,
                        size_t chunk_bytes);
// What is not summed: the part of each host travels as it is; from `host`.
LanePlan plan_spreading(std::vector<ByteRange> parts, int host);
// The part of each host in a broadcast of `bytes` from `root`, by `slice`: all of it, in one slice.
LanePlan plan_broadcast(const HostMap& map, int host, int slice, int root, size_t bytes);
// And in an allgather: of each host the rank that has the slice's number.
LanePlan plan_allgather(const HostMap& map, int host, int slice, std::span<const uint64_t> counts,
                        size_t element);

// One round of taking in: of each slice a block, of the own part or of the rest, as the ring wants
// them: it sends the own part first, while as many bytes come in to be summed; or, in chunks, one
// of its own a round, in which one comes in for each other host.
struct InputBlock {
  bool own = false;
  size_t begin = 0, end = 0;  // of that stream
};
uint64_t input_rounds(const LanePlan& plan, size_t block_bytes);
InputBlock input_block(const LanePlan& plan, size_t block_bytes, uint64_t round);

}  // namespace hvd
