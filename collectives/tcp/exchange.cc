#include "collectives/tcp/exchange.h"

#include <string.h>

#include <algorithm>
#include <utility>

#include "collectives/reduce.h"
#include "collectives/schedule.h"
#include "runtime/base/fault_point.h"

namespace hvd {
namespace {

constexpr size_t kBlockBytes = 64 * 1024;  // summed in one piece: still in the cache

// So that no sum of them, in bytes, is larger than a number can be.
constexpr uint64_t kElementsMost = uint64_t{1} << 56;

bool fit_together(std::span<const uint64_t> counts) {
  uint64_t left = kElementsMost;
  return std::ranges::all_of(counts, [&](uint64_t count) {
    const bool fits = count <= left;
    left -= std::min(left, count);
    return fits;
  });
}

void reserve(std::vector<std::byte>& buffer, size_t bytes) {
  if (buffer.size() < bytes) buffer.resize(bytes);
}

}  // namespace

Exchange::Exchange(int place, std::vector<int> members)
    : place_(place),
      members_(std::move(members)),
      steps_(cube_steps(place, static_cast<int>(members_.size()))) {}

std::vector<int> Exchange::neighbours() const {
  std::vector<int> ranks;
  for (const CubeStep& step : steps_) ranks.push_back(member(step.peer));
  return ranks;
}

void Exchange::begin(const ExchangeTask& task) {
  task_ = task;
  at_ = 0;
  begun_ = has_header_ = false;
  differs_ = task.differs;
  far_ = false;
  own_ = task.data;
  are_sums_ = task.are_sums;
  is_there_ = task.rider == Rider::kRooted && task.root == place_;
}

Exchange::Step Exchange::advance(Links& links) {
  bool moved = false;
  far_ |= links.far();
  while (at_ < steps_.size()) {
    const CubeStep& step = steps_[at_];
    Link& link = links.to(member(step.peer));
    if (!begun_) begin_step(step, link);
    if (step.sends) moved |= link.send(out_, out_bytes_, &sent_);
    if (step.receives) moved |= pull(step, links, link);
    const bool sent = !step.sends || (link.header_sent() && sent_ == out_bytes_);
    const bool received = !step.receives || (has_header_ && is_in(step));
    if (!sent || !received) return moved ? Step::kMoved : Step::kWait;
    end_step(step, links);
    if (links.broken_off()) return Step::kWait;
    ++at_;
    begun_ = has_header_ = false;
  }
  finish();
  return Step::kDone;
}

void Exchange::begin_step(const CubeStep& step, Link& link) {
  begun_ = true;
  discards_ = false;
  in_bytes_ = received_ = taken_ = 0;
  if (!step.sends) return;
  set_out(step);
  FrameHeader header = task_.header;
  header.part = static_cast<uint16_t>(part_of(step));
  header.flags = static_cast<uint16_t>((differs_ ? kDiffers : 0) | (far_ ? kFar : 0));
  header.bytes = out_bytes_;
  link.post(header);
}

void Exchange::set_out(const CubeStep& step) {
  out_ = nullptr;
  out_bytes_ = sent_ = 0;
  if (differs_) return;
  switch (task_.rider) {
    case Rider::kNobody:
      break;
    case Rider::kTensor:
      out_ = own_;
      out_bytes_ = tensor_bytes();
      break;
    case Rider::kHalf: {
      const Slice other = kept(step.peer, swap_of(step) + 1);
      out_ = own_ + other.begin * size_of(task_.type);
      out_bytes_ = other.size() * size_of(task_.type);
      break;
    }
    case Rider::kRooted:
      if (!is_there_ || step.peer == task_.root) break;
      out_ = task_.root == place_ ? task_.data : sums_[0].data();
      out_bytes_ = tensor_bytes();
      break;
    case Rider::kCounts:
      out_ = reinterpret_cast<const std::byte*>(counts_.data());
      out_bytes_ = counts_.size() * sizeof counts_[0];
      break;
    case Rider::kSides:
      told_ = encode_sides(sides_);
      out_ = told_.data();
      out_bytes_ = told_.size();
      break;
  }
}

// What is summed is in once it is summed: a piece may have to wait until its place is sent.
bool Exchange::is_in(const CubeStep& step) const {
  return (sums(step) ? taken_ : received_) == in_bytes_;
}

bool Exchange::sums(const CubeStep& step) const {
  const bool whole = task_.rider == Rider::kTensor && step.part != kResultPart;
  return !discards_ && (whole || task_.rider == Rider::kHalf);
}

// The message in: its header, then its bytes to where they belong. True if anything moved.
bool Exchange::pull(const CubeStep& step, Links& links, Link& link) {
  const bool begins = !has_header_;
  if (begins && !take_header(step, links, link)) return false;
  return (!is_in(step) && pull_bytes(step, link)) || begins;
}

bool Exchange::pull_bytes(const CubeStep& step, Link& link) {
  if (discards_) {
    size_t at = 0;
    link.receive(incoming_.data(), std::min(incoming_.size(), in_bytes_ - received_), &at);
    received_ += at;
    return at != 0;
  }
  if (task_.rider == Rider::kTensor && step.part == kResultPart)
    return link.receive(task_.result, in_bytes_, &received_);
  if (sums(step)) return sum_piece(step, link);
  return link.receive(incoming_.data(), in_bytes_, &received_);
}

bool Exchange::take_header(const CubeStep& step, Links& links, Link& link) {
  const FrameHeader* header = link.header();
  if (header == nullptr) return false;
  const FrameHeader got = *header;
  FrameHeader due = task_.header;
  due.from = static_cast<uint32_t>(link.rank());
  due.part = static_cast<uint16_t>(part_of(step));
  const std::string fault = frame_fault(got, due);
  if (!fault.empty()) {
    links.reject(link.rank(), fault);
    return false;
  }
  if ((got.flags & kGoodbye) != 0) {
    links.notice_departure(link.rank());
    return false;
  }
  far_ |= (got.flags & kFar) != 0;
  const bool tells = task_.rider == Rider::kSides;
  if (!tells) differs_ |= got.hash != task_.header.hash || (got.flags & kDiffers) != 0;
  discards_ = !tells && differs_;
  if (discards_ ? got.bytes > kRidesMost : !fits(step, got)) {
    links.reject(link.rank(), "a message that does not fit");
    return false;
  }
  link.take_header();
  has_header_ = true;
  in_bytes_ = got.bytes;
  const bool in_pieces = discards_ || task_.rider == Rider::kTensor || task_.rider == Rider::kHalf;
  reserve(incoming_, in_pieces ? kBlockBytes : in_bytes_);
  if (in_pieces && !discards_) prepare_sums(step);
  return true;
}

// Has the sender of this step's message the root's data, for one who has not?
bool Exchange::brings_root(const CubeStep& step) const {
  if (task_.root == place_ || step.part == kResultPart) return task_.root != place_;
  if (step.part == kEnterPart) return step.peer == task_.root;
  const int corner = task_.root % cube_corners(places());
  return corner >> swap_of(step) == step.peer >> swap_of(step);
}

// Of who called the same: as many bytes as its part of the operation has.
bool Exchange::fits(const CubeStep& step, const FrameHeader& got) const {
  switch (task_.rider) {
    case Rider::kNobody:
      return got.bytes == 0;
    case Rider::kTensor:
      return got.bytes == tensor_bytes();
    case Rider::kHalf:
      return got.bytes == kept(place_, swap_of(step) + 1).size() * size_of(task_.type);
    case Rider::kRooted:
      return got.bytes == (brings_root(step) ? tensor_bytes() : 0);
    case Rider::kCounts:
      return got.bytes == counts_.size() * sizeof counts_[0];
    case Rider::kSides:
      return got.bytes <= kSidesMost * kSideBytesMost;
  }
  return false;
}

// Where the sums of this step go: the last ones where the result belongs.
void Exchange::prepare_sums(const CubeStep& step) {
  into_ = task_.result;
  if (step.last_swap || step.part == kResultPart) return;
  // Halves that are kept and given away do not overlap; whole tensors are still being sent.
  const bool second = task_.rider == Rider::kTensor && own_ == sums_[0].data();
  std::vector<std::byte>& sums = sums_[second ? 1 : 0];
  reserve(sums, tensor_bytes());
  into_ = sums.data();
}

// Summed as it comes, in the order of places.
bool Exchange::sum_piece(const CubeStep& step, Link& link) {
  const size_t element = size_of(task_.type);
  size_t held = received_ - taken_;
  const std::byte* piece = incoming_.data();
  const std::span<const std::byte> ahead = link.read_ahead();
  bool moved = false;
  if (held == 0 && ahead.size() >= element) {  // summed where it lies
    piece = ahead.data();
    held = std::min(ahead.size(), in_bytes_ - taken_) / element * element;
  } else {
    moved = link.receive(incoming_.data(), std::min(kBlockBytes, in_bytes_ - taken_), &held);
    received_ = taken_ + held;
  }
  size_t whole = held / element * element;
  // What is summed in place has to be sent before.
  if (into_ == own_ && task_.rider == Rider::kTensor)
    whole = std::min(whole, (sent_ - taken_) / element * element);
  if (whole == 0) return moved;
  fault_point("link_piece");
  add_piece(step, piece, whole);
  taken_ += whole;
  if (piece != incoming_.data()) {
    link.take_read_ahead(whole);
    received_ = taken_;
  } else if (held != whole) {
    memmove(incoming_.data(), incoming_.data() + whole, held - whole);
  }
  return true;
}

void Exchange::add_piece(const CubeStep& step, const std::byte* piece, size_t bytes) {
  const size_t element = size_of(task_.type);
  const bool is_swap = step.part != kEnterPart;
  size_t at = taken_;
  if (task_.rider == Rider::kHalf) at += kept(place_, swap_of(step) + 1).begin * element;
  const std::byte* sources[] = {own_ + at, piece};
  // Before the first swap a corner has a sum if it represents somebody.
  const bool represents = step.peer + cube_corners(places()) < places();
  Hop hop{.inputs = task_.inputs,
          .first_is_sum = are_sums_,
          .rest_are_sums = task_.are_sums || (is_swap && (swap_of(step) > 0 || represents)),
          .last = step.last_swap};
  if (is_swap && step.peer < place_) {
    std::swap(sources[0], sources[1]);
    std::swap(hop.first_is_sum, hop.rest_are_sums);
  }
  reduce_hop(task_.type, task_.reduction, hop, sources, into_ + at, bytes / element);
}

void Exchange::end_step(const CubeStep& step, Links& links) {
  if (!step.receives || discards_) return;
  switch (task_.rider) {
    case Rider::kNobody:
      break;
    case Rider::kTensor:
    case Rider::kHalf:
      own_ = into_;
      are_sums_ = true;
      break;
    case Rider::kRooted:
      if (in_bytes_ == 0) break;
      std::swap(incoming_, sums_[0]);
      is_there_ = true;
      break;
    case Rider::kCounts:
      for (size_t k = 0; k < counts_.size(); ++k) {
        uint64_t count;
        memcpy(&count, incoming_.data() + k * sizeof count, sizeof count);
        if (counts_[k] == kUnknownCount) counts_[k] = count;
      }
      if (knows_all(step) && !fit_together(counts_))
        return links.reject(member(step.peer), "counts that are none");
      break;
    case Rider::kSides: {
      const auto theirs = decode_sides({incoming_.data(), in_bytes_});
      if (!theirs) return links.reject(member(step.peer), "a description that is none");
      sides_ = merge_sides(sides_, *theirs);
      break;
    }
  }
}

void Exchange::finish() {
  const bool came = task_.rider == Rider::kRooted && !differs_ && task_.root != place_;
  if (came && tensor_bytes() != 0) memcpy(task_.result, sums_[0].data(), tensor_bytes());
}

// A message tells of everybody in the sender's subcube.
void Exchange::hear(const CubeStep& step, std::vector<bool>& heard) const {
  if (!step.receives) return;
  if (step.part == kEnterPart) heard[static_cast<size_t>(step.peer)] = true;
  if (step.part == kResultPart) heard.assign(heard.size(), true);
  if (step.part == kEnterPart || step.part == kResultPart) return;
  for (int place : subcube(step.peer, places(), swap_of(step)))
    heard[static_cast<size_t>(place)] = true;
}

std::vector<bool> Exchange::heard(const Links& links, uint64_t sequence, bool under_way) const {
  std::vector<bool> heard(members_.size());
  heard[static_cast<size_t>(place_)] = true;
  for (size_t i = 0; i < steps_.size(); ++i) {
    const bool done = under_way && (i < at_ || (i == at_ && has_header_));
    if (done || links.to(member(steps_[i].peer)).has_word_of(sequence)) hear(steps_[i], heard);
  }
  return heard;
}

std::vector<bool> Exchange::heard_after(size_t steps) const {
  std::vector<bool> heard(members_.size());
  heard[static_cast<size_t>(place_)] = true;
  for (size_t i = 0; i < std::min(steps, steps_.size()); ++i) hear(steps_[i], heard);
  return heard;
}

}  // namespace hvd
