// Order and stages: what is entered, worked and resolved when.
#include "collectives/shared_memory/shared_memory_communicator.h"

#include <string.h>

#include <algorithm>
#include <bit>

#include "collectives/describe.h"
#include "runtime/base/error.h"
#include "runtime/base/fault_point.h"

namespace hvd {
namespace {

constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;

}  // namespace

uint64_t communicator_bytes(bool staging) {
  return sizeof(CommunicatorWords) + (staging ? kStagingBytes : 0);
}

std::unique_ptr<Communicator> make_communicator(Peers& peers, Arena& arena,
                                                const CommunicatorSpec& spec) {
  return std::make_unique<SharedMemoryCommunicator>(peers, arena, spec);
}

SharedMemoryCommunicator::SharedMemoryCommunicator(Peers& peers, Arena& arena,
                                                   const CommunicatorSpec& spec)
    : peers_(peers),
      arena_(arena),
      block_(peers.block()),
      me_(peers.world().local_rank),
      size_(peers.world().local_size),
      first_world_rank_(peers.world().rank - peers.world().local_rank),
      has_staging_(spec.staging),
      disjoint_(spec.disjoint),
      name_(spec.name),
      segment_(arena.segment(spec.segment)),
      queue_(mix_hash(mix_hash(0, peers.world().epoch), spec.seed)) {
  HVD_CHECK(spec.offset % 64 == 0 && segment_->bytes() >= spec.offset &&
                segment_->bytes() - spec.offset >= communicator_bytes(spec.staging),
            "a communicator's words fit into its segment");
  for (int k = 0; k < size_; ++k) {
    std::byte* base = segment_->at(k) + spec.offset;
    words_.push_back(reinterpret_cast<CommunicatorWords*>(base));
    staging_.push_back(base + sizeof(CommunicatorWords));
  }
  const auto ranks = static_cast<size_t>(size_);
  gathered_.resize(ranks * kGatheredBytes);
  sources_.resize(ranks);
  destinations_.resize(ranks);
  counts_.resize(ranks);
  starts_.resize(ranks);
}

void SharedMemoryCommunicator::start_at(uint64_t sequence) {
  HVD_CHECK(queue_.started() == 0, "nothing was started yet");
  queue_.start_at(sequence);
  entered_ = worked_ = resolved_ = everyone_done_ = sequence;
  mine().done.store(sequence, kRelease);
}

void SharedMemoryCommunicator::start(Operation& operation) {
  if (!queue_.push(operation)) return;
  if (to_enter_ == nullptr) to_enter_ = &operation;
  if (to_work_ == nullptr) to_work_ = &operation;
}

bool SharedMemoryCommunicator::progress() {
  bool moved = false;
  while (to_enter_ != nullptr && !closed_) {
    const Step step = enter(*to_enter_);
    moved |= step != Step::kWait;
    if (step != Step::kDone) break;
  }
  while (work()) {
    moved = true;
    if (!resolve()) break;
  }
  return resolve() || moved;
}

// Nobody may still look at what the slot said eight operations ago.
bool SharedMemoryCommunicator::slot_is_free(uint64_t sequence) {
  if (sequence <= everyone_done_ + kOperationSlots) return true;
  uint64_t least = worked_;
  for (int k = 0; k < size_; ++k) least = std::min(least, words(k).done.load(kAcquire));
  everyone_done_ = least;
  return sequence <= everyone_done_ + kOperationSlots;
}

// Publishes that this rank takes part: the data of a small allreduce, the place of anything else.
SharedMemoryCommunicator::Step SharedMemoryCommunicator::enter(Operation& operation) {
  if (!slot_is_free(operation.sequence)) return Step::kWait;
  if (operation.kind == OperationKind::kSegment) {
    const NewSegment::Step step = new_segment_.prepare(operation, peers_, arena_);
    if (step != NewSegment::Step::kDone)
      return step == NewSegment::Step::kWait ? Step::kWait : Step::kMoved;
  }
  to_enter_ = operation.next;
  if (is_small(operation))
    write_lines(operation);
  else
    write_entry(operation);
  entered_ = operation.sequence;
  fault_point("collective_entered");
  ring();
  return Step::kDone;
}

void SharedMemoryCommunicator::write_lines(Operation& operation) {
  const auto* from = static_cast<const std::byte*>(operation.result.data);
  const size_t bytes = operation.result.bytes();
  const uint64_t word = word_of(operation.sequence, operation.hash);
  WordLine* line = lines(me_, operation.sequence);
  size_t at = 0;
  for (; bytes - at > kLineBytes; at += kLineBytes, ++line) {
    fault_point("collective_line");
    memcpy(line->data, from + at, kLineBytes);  // of a length known here: a few moves, no call
    line->word.store(word, kRelease);
  }
  fault_point("collective_line");
  if (bytes != 0) memcpy(line->data, from + at, bytes - at);
  line->word.store(word, kRelease);
}

void SharedMemoryCommunicator::write_entry(Operation& operation) {
  const Place place = place_of(operation);
  HVD_CHECK(place != Place::kStaged || has_staging_,
            "this communicator takes only memory of the arena");
  const OperationEntry said{
      .hash = operation.hash,
      .count = operation.input.count,
      .offset = operation.address.offset,
      .segment = operation.address.segment,
      .place = place,
      .handed_over = disjoint_ && is_large(operation) && is_far_behind(operation.sequence)};
  fault_point("collective_entry");
  WordLine& line = lines(me_, operation.sequence)[0];
  memcpy(line.data, &said, sizeof said);
  line.word.store(word_of(operation.sequence, operation.hash), kRelease);
}

// The partner has entered operations that this rank will enter only later. Ranks that compute
// between their operations would drift apart, since who is behind finds everybody's part there and
// sums at once, and falls behind further; at the end of a training step the others wait for it. Two
// operations were measured to be as good as one or three.
bool SharedMemoryCommunicator::is_far_behind(uint64_t sequence) const {
  constexpr uint64_t kFar = 2;
  static_assert(kFar < kOperationSlots);
  return partner_ < size_ &&
         reached(lines(partner_, sequence + kFar)[0].word.load(kAcquire), sequence + kFar);
}

// Where this rank's part lies; small parts of broadcast and allgather are copied beside the entry,
// so that nobody has to wait for their readers.
Place SharedMemoryCommunicator::place_of(Operation& operation) {
  const void* data = operation.result.data;
  size_t bytes = operation.result.bytes();
  switch (operation.kind) {
    case OperationKind::kBarrier:
    case OperationKind::kRegister:
    case OperationKind::kDeregister:
    case OperationKind::kReconnect:
    case OperationKind::kSplit:
      return Place::kNone;
    case OperationKind::kSegment:
      return new_segment_.unable().empty() ? Place::kNone : Place::kUnable;
    case OperationKind::kBroadcast:
      if (operation.root != me_) return Place::kNone;
      break;
    case OperationKind::kAllgather:
      data = operation.input.data;
      bytes = operation.input.bytes();
      break;
    case OperationKind::kAllreduce:
      break;
  }
  if (operation.kind != OperationKind::kAllreduce && bytes <= kSmallBytes) {
    fault_point("collective_payload");
    if (bytes != 0) memcpy(mine().payload[operation.sequence % kOperationSlots], data, bytes);
    return Place::kInline;
  }
  const std::optional<ArenaAddress> address = arena_.find(data, bytes);
  if (!address) return Place::kStaged;
  operation.address = *address;
  return Place::kArena;
}

OperationEntry SharedMemoryCommunicator::entry(int rank, uint64_t sequence) const {
  OperationEntry said;
  memcpy(&said, lines(rank, sequence)[0].data, sizeof said);
  return said;
}

// A bounded piece of the first operation that is not worked; true if anything moved.
bool SharedMemoryCommunicator::work() {
  if (worked_ == entered_ || fails(worked_ + 1)) return false;
  Operation& operation = *to_work_;
  switch (work_on(operation)) {
    case Step::kWait:
      return false;
    case Step::kMoved:
      return true;
    case Step::kFailed:
      fail_from_ = operation.sequence;
      return true;
    case Step::kDone:
      break;
  }
  to_work_ = operation.next;
  worked_ = operation.sequence;
  publish_done(operation);
  cursor_ = Cursor{};
  return true;
}

// In a world of one, without factors.
bool SharedMemoryCommunicator::is_identity(const Operation& operation) const {
  return size_ == 1 && operation.reduction.prescale == 1 && operation.reduction.postscale == 1;
}

SharedMemoryCommunicator::Step SharedMemoryCommunicator::work_on(Operation& operation) {
  const bool predecessor_resolved = resolved_ + 1 == operation.sequence;
  const bool by_lines = is_small(operation) && (operation.stage & (kDiffers | kCutLines)) == 0;
  if (by_lines && !is_identity(operation))
    return predecessor_resolved ? small_allreduce(operation) : Step::kWait;
  if ((operation.stage & kAllEntered) == 0) {
    const Step step = await_entries(operation);
    if (step != Step::kDone) return step;
  }
  const bool overlaps = operation.kind == OperationKind::kAllreduce &&
                        (operation.stage & (kDiffers | kStagedData)) == 0;
  if (!overlaps && !predecessor_resolved) return Step::kWait;
  if ((operation.stage & kDiffers) != 0) return refuse(operation);
  if ((operation.stage & kCutLines) != 0) return Step::kFailed;
  switch (operation.kind) {
    case OperationKind::kAllreduce:
      if (is_identity(operation)) return Step::kDone;
      return overlaps ? arena_allreduce(operation) : staged_allreduce(operation);
    case OperationKind::kBroadcast:
      return broadcast(operation);
    case OperationKind::kAllgather:
      return allgather(operation);
    case OperationKind::kSegment:
      operation.stage |= kHasReaders;
      return NewSegment::meet(operation, arena_, me_, size_, &cursor_.rank, &cursor_.at)
                 ? Step::kDone
                 : Step::kMoved;
    case OperationKind::kBarrier:
    case OperationKind::kRegister:
    case OperationKind::kDeregister:
    case OperationKind::kReconnect:
    case OperationKind::kSplit:
      break;
  }
  return Step::kDone;
}

// Peers wait for `done` of what they commit by it and of what they lent to readers; for the reuse
// of slots nobody has to be woken: whoever needs the next operation enters it, and rings then.
void SharedMemoryCommunicator::publish_done(const Operation& operation) {
  fault_point("collective_done");
  mine().done.store(operation.sequence, kRelease);
  fault_point("collective_done");
  const bool awaited = !is_small(operation) && operation.kind != OperationKind::kBarrier;
  if (awaited) ring();
}

// Gives outcomes to what is worked, in order; true if anything was.
bool SharedMemoryCommunicator::resolve() {
  bool moved = false;
  while (resolved_ < worked_ && !fails(resolved_ + 1)) {
    const Operation& operation = *queue_.oldest();
    const Step step = await_done(operation);
    if (step == Step::kWait) return moved;
    moved = true;
    if (step == Step::kFailed) {
      fail_from_ = operation.sequence;
      return moved;
    }
    finish((operation.stage & kRefusedHere) != 0 ? Outcome::kRefused : Outcome::kComplete);
  }
  return moved;
}

void SharedMemoryCommunicator::finish(Outcome outcome) {
  resolved_ = queue_.oldest()->sequence;
  queue_.resolve(outcome);
}

void SharedMemoryCommunicator::publish(std::atomic<uint64_t>& word, uint64_t value) {
  word.store(value, kRelease);
  ring();
}

void SharedMemoryCommunicator::ring() {
  if (size_ > 1) ring_sleepers(peers_);
}

void SharedMemoryCommunicator::close() {
  if (closed_) return;
  closed_ = true;
  if (fail_from_ == 0) fail_from_ = entered_ + 1;
  fault_point("collective_closed");
  publish(mine().closed, entered_ + 1);
  fault_point("collective_closed");
}

bool SharedMemoryCommunicator::drained() const {
  return closed_ && (resolved_ == entered_ || resolved_ + 1 == fail_from_);
}

// All ranks are quiet or dead: no word moves any more, so everybody finds the same.
void SharedMemoryCommunicator::fail_rest() {
  queue_.be_over();
  to_enter_ = to_work_ = nullptr;
  while (!idle())
    finish(was_begun(*queue_.oldest()) ? Outcome::kFailedUndefined : Outcome::kFailedUntouched);
}

void SharedMemoryCommunicator::abort() noexcept {
  raise_trouble(peers_, TroubleReason::kAbort, "abort() was called");
}

}  // namespace hvd
