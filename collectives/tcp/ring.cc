#include "collectives/tcp/ring.h"

#include <string.h>

#include <algorithm>

#include "collectives/reduce.h"
#include "runtime/base/fault_point.h"

namespace hvd {
namespace {

// Received in one call, a chunk if it is there: still in the cache when it is summed.
constexpr size_t kBlockBytes = 144 * 1024;

}  // namespace

// Of a sending step; those of a receiving one are one behind.
const ByteRange& RingStream::part_of_step(int step) const {
  const int place = ((task_.place - step) % task_.places + task_.places) % task_.places;
  return task_.parts[static_cast<size_t>(place)];
}

void RingStream::begin(RingTask task, Link& next) {
  task_ = std::move(task);
  sum_steps_ = task_.sums ? task_.places - 1 : 0;
  steps_ = sum_steps_ + (task_.spreads ? task_.places - 1 : 0);
  send_ = receive_ = Cursor{};
  own_allowed_ = summed_allowed_ = kAll;
  own_sent_ = summed_ = results_ = 0;
  header_taken_ = all_headers_ = false;
  held_ = 0;
  fault_.clear();
  if (task_.sums) block_.resize(kBlockBytes);
  if (task_.chunk_bytes != kWholeParts) task_.header.part = kChunksPart;
  FrameHeader header = task_.header;
  for (int step = 0; step < steps_; ++step) header.bytes += bytes_of(step);
  order_ = RingOrder(task_.parts, steps_, task_.chunk_bytes);
  next.post(header);
  skip_finished();
}

void RingStream::allow(size_t own_bytes, size_t summed_bytes) {
  own_allowed_ = own_bytes;
  summed_allowed_ = summed_bytes;
}

bool RingStream::advance(Link& next, Link& previous) {
  const bool sent = send_piece(next);
  const bool received = receive_piece(previous);
  skip_finished();
  all_headers_ = header_taken_ && next.header_sent();
  return sent || received;
}

void RingStream::skip_finished() {
  while (!order_.done(send_) && send_.at == out().bytes()) order_.pass(send_);
  while (!order_.done(receive_) && receive_.at == in().bytes()) order_.pass(receive_);
}

// What goes out in step s came in, and was summed, in step s - 1, a round before. The header goes
// at once.
bool RingStream::send_piece(Link& next) {
  if (order_.done(send_)) return next.send(nullptr, send_.at, &send_.at);
  const ByteRange range = out();
  const bool is_own = send_.step == 0;
  size_t ready = range.bytes();
  if (is_own) {
    ready = std::min(ready, own_allowed_ - (own_sent_ - send_.at));
  } else {
    const Cursor source{.round = send_.round - 1, .step = send_.step - 1};
    if (receive_.is_before(source))
      ready = send_.at;
    else if (!source.is_before(receive_))
      ready = receive_.at;
  }
  const size_t before = send_.at;
  const bool moved = next.send(task_.data + range.begin, ready, &send_.at);
  if (is_own) own_sent_ += send_.at - before;
  return moved;
}

bool RingStream::take_header(Link& previous) {
  const FrameHeader* got = previous.header();
  if (got == nullptr) return false;
  FrameHeader due = task_.header;
  due.from = static_cast<uint32_t>(previous.rank());
  for (int step = 0; step < steps_; ++step) due.bytes += bytes_of(step + 1);
  fault_ = agreed_frame_fault(*got, due);
  if (!fault_.empty()) return false;
  previous.take_header();
  header_taken_ = true;
  return true;
}

bool RingStream::receive_piece(Link& previous) {
  if (!header_taken_ && !take_header(previous)) return false;
  if (order_.done(receive_)) return false;
  if (receive_.step < sum_steps_) return sum_piece(previous);
  const size_t before = receive_.at;
  const ByteRange range = in();
  const size_t end = std::min(range.bytes(), before + kBlockBytes);
  fault_point("link_piece");
  if (!previous.receive(task_.data + range.begin, end, &receive_.at)) return false;
  results_ += receive_.at - before;
  return true;
}

// Into a block, from there into the memory: the sum so far, then this place's own.
bool RingStream::sum_piece(Link& previous) {
  const int step = receive_.step;
  const size_t element = size_of(task_.type);
  const ByteRange range = in();
  const size_t end =
      std::min({kBlockBytes, range.bytes() - receive_.at, summed_allowed_ - summed_});
  if (end == 0 || !previous.receive(block_.data(), end, &held_)) return false;
  fault_point("link_piece");
  const size_t whole = held_ / element * element;
  if (whole == 0) return true;
  std::byte* own = task_.data + range.begin + receive_.at;
  const std::byte* sources[] = {block_.data(), own};
  const Hop hop{.inputs = task_.inputs,
                .first_is_sum = task_.are_sums || step > 0,
                .rest_are_sums = task_.are_sums,
                .last = step + 1 == sum_steps_};
  reduce_hop(task_.type, task_.reduction, hop, sources, own, whole / element);
  held_ -= whole;
  if (held_ != 0) memmove(block_.data(), block_.data() + whole, held_);
  receive_.at += whole;
  summed_ += whole;
  if (hop.last) results_ += whole;
  return true;
}

}  // namespace hvd
