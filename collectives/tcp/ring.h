// A ring as one stream of bytes: parts travel from place to place, are summed on their way, and
// come round again whole. No step waits for another: a byte goes on as soon as it was summed.
//
// Each place has its part of the memory. In step s a place sends part (place - s) and receives part
// (place - 1 - s), first sums, then results. The order of additions of a part is that of the ring,
// beginning with the place that has its number. One neighbour each way, so whoever has links to two
// ranks can run one: all ranks of a world over a tensor, or one rank per host over its slice. With
// nothing but spreading, and all parts but one empty, it is a chain.
//
// Over near links long parts of a sum go in chunks (ring_order.h), so what comes back is stored
// where the cache still has what was sent: over loopback two ranks take a sixth less time for 64
// MiB than with whole parts.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "collectives/tcp/link.h"
#include "collectives/tcp/ring_order.h"
#include "collectives/types.h"

namespace hvd {

// Half as much, or twice, is slower for 4 MiB and more between two ranks over loopback. A chunk
// waits for the one before to come round, so two rounds of them are on their way at most: that is
// less than a link with long round trips carries (4 ms: a third), and there parts go whole.
inline constexpr size_t kRingChunkBytes = 2 * Link::kCallBytes;
inline constexpr size_t kWholeParts = std::numeric_limits<size_t>::max();
constexpr size_t ring_chunk_bytes(bool far) { return far ? kWholeParts : kRingChunkBytes; }

struct RingTask {
  int place = 0, places = 1;
  std::byte* data = nullptr;         // all parts
  std::vector<ByteRange> parts;      // by place
  size_t chunk_bytes = kWholeParts;  // the same at all places; not 0
  bool sums = false;     // first, in places - 1 steps: afterwards this one has part place + 1
  bool spreads = false;  // then, in as many: everybody has all parts
  DataType type = DataType::kUint8;
  Reduction reduction = {};
  int inputs = 1;           // of the whole reduction
  bool are_sums = false;    // what lies in `data` before, everywhere
  FrameHeader header = {};  // what the message out says; the message in is the same, but for `from`
};

class RingStream {
 public:
  static constexpr size_t kAll = std::numeric_limits<size_t>::max();

  // Buffers of its own are made once.
  void begin(RingTask task, Link& next);
  // Of memory that is filled in while the ring turns: so many bytes of the own part may be sent,
  // and of what is summed, in the order in which it comes in, so many may be read. All, until this
  // is called.
  void allow(size_t own_bytes, size_t summed_bytes);
  // A bounded piece; true if anything moved. Faults of the message in are in `fault()`.
  bool advance(Link& next, Link& previous);
  bool done() const { return order_.done(send_) && order_.done(receive_) && all_headers_; }
  const std::string& fault() const { return fault_; }

  size_t own_sent() const { return own_sent_; }
  size_t summed() const { return summed_; }
  // Bytes of results that came in, or were made here by the last sum, in that order.
  size_t results() const { return results_; }

 private:
  using Cursor = RingOrder::Cursor;

  const ByteRange& part_of_step(int step) const;
  size_t bytes_of(int step) const { return part_of_step(step).bytes(); }
  ByteRange out() const { return order_.chunk_of(part_of_step(send_.step), send_.chunk()); }
  ByteRange in() const {
    return order_.chunk_of(part_of_step(receive_.step + 1), receive_.chunk());
  }
  void skip_finished();
  bool send_piece(Link& next);
  bool receive_piece(Link& previous);
  bool take_header(Link& previous);
  bool sum_piece(Link& previous);

  RingTask task_;
  int steps_ = 0, sum_steps_ = 0;
  RingOrder order_;
  Cursor send_, receive_;
  size_t own_allowed_ = kAll, summed_allowed_ = kAll;
  size_t own_sent_ = 0, summed_ = 0, results_ = 0;
  bool header_taken_ = false, all_headers_ = false;
  std::string fault_;
  std::vector<std::byte> block_;  // received, not summed yet
  size_t held_ = 0;
};

}  // namespace hvd
