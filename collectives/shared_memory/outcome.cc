// Waiting for peers, and what follows when they differ, die or leave.
#include <algorithm>
#include <iterator>

#include "collectives/describe.h"
#include "collectives/refusal.h"
#include "collectives/shared_memory/shared_memory_communicator.h"
#include "runtime/base/fault_point.h"
#include "runtime/base/utf8.h"

namespace hvd {
namespace {

constexpr auto kAcquire = std::memory_order_acquire;

}  // namespace

bool SharedMemoryCommunicator::is_dead(int rank) const {
  return block_.rank(rank).dead.load(kAcquire) != 0;
}

bool SharedMemoryCommunicator::is_gone(int rank) const {
  return is_dead(rank) || block_.rank(rank).quiet.load(kAcquire) != 0;
}

bool SharedMemoryCommunicator::entry_is_frozen(int rank, uint64_t sequence) const {
  if (is_gone(rank)) return true;
  const uint64_t closed = words(rank).closed.load(kAcquire);
  return closed != 0 && closed - 1 < sequence;
}

// Has this word of a rank's entry or lines come? A frozen one never will, but it may have come just
// before: so the freezing words are read first, then the word again.
SharedMemoryCommunicator::Step SharedMemoryCommunicator::await_word(
    int rank, const std::atomic<uint64_t>& word, uint64_t sequence) {
  if (reached(word.load(kAcquire), sequence)) return Step::kDone;
  if (!closed_) {
    notice_departure(rank, sequence);
    return Step::kWait;
  }
  if (!entry_is_frozen(rank, sequence)) return Step::kWait;
  return reached(word.load(kAcquire), sequence) ? Step::kDone : Step::kFailed;
}

// A rank that closed before this operation breaks the epoch for whoever needs it: by shutdown(), of
// which `left` is the last word, or because it let go of what this communicator is for. Who closed
// since the epoch is broken had seen that before.
void SharedMemoryCommunicator::notice_departure(int rank, uint64_t sequence) {
  const uint64_t closed = words(rank).closed.load(kAcquire);
  if (departure_noticed_ || closed == 0 || closed > sequence) return;
  if (name_.empty() && block_.rank(rank).left.load(kAcquire) == 0) return;
  if (block_.trouble.load(kAcquire) != 0) return;
  departure_noticed_ = true;
  const int gone = world_rank(rank);
  raise_trouble(peers_, TroubleReason::kLeft, departure_text(peers_, gone, name_),
                std::span(&gone, 1));
}

// All entries are here; whether they agree is in `stage`.
SharedMemoryCommunicator::Step SharedMemoryCommunicator::await_entries(Operation& operation) {
  const uint64_t sequence = operation.sequence;
  const uint64_t expected = word_of(sequence, operation.hash);
  const bool has_lines = is_small(operation);
  for (; cursor_.rank < size_; ++cursor_.rank) {
    const std::atomic<uint64_t>& word = lines(cursor_.rank, sequence)[0].word;
    const Step step = await_word(cursor_.rank, word, sequence);
    if (step != Step::kDone) return step;
    if (word.load(kAcquire) != expected) {
      operation.stage |= kDiffers;
      continue;
    }
    if (has_lines) continue;
    const OperationEntry said = entry(cursor_.rank, sequence);
    if (said.hash != operation.hash || said.place == Place::kUnable) operation.stage |= kDiffers;
    const bool counts = operation.kind != OperationKind::kBroadcast ||
                        cursor_.rank == operation.root;  // whose data matter
    if (counts && said.place == Place::kStaged) operation.stage |= kStagedData;
  }
  operation.stage |= kAllEntered;
  cursor_ = Cursor{};
  return Step::kDone;
}

// Everybody's counter has come to `value`; a rank that is gone will not raise its own any more.
SharedMemoryCommunicator::Step SharedMemoryCommunicator::await_counters(
    std::atomic<uint64_t> CommunicatorWords::* counter, uint64_t value) {
  for (int k = 0; k < size_; ++k) {
    const std::atomic<uint64_t>& word = words(k).*counter;
    if (word.load(kAcquire) >= value) continue;
    behind_ = {counter, value};
    if (!closed_ || !is_gone(k)) return Step::kWait;
    if (word.load(kAcquire) < value) return Step::kFailed;
  }
  return Step::kDone;
}

// After this rank did its part: the commit words of what is committed by `done`, and readers of
// this rank's tensor. A wait for reuse is satisfied by a rank that is gone, one for commitment is
// not.
SharedMemoryCommunicator::Step SharedMemoryCommunicator::await_done(const Operation& operation) {
  if ((operation.stage & kDiffers) != 0) return Step::kDone;
  const bool commit = (operation.stage & kStagedData) != 0 || is_large(operation);
  if (!commit && (operation.stage & kHasReaders) == 0) return Step::kDone;
  for (int k = 0; k < size_; ++k) {
    const std::atomic<uint64_t>& done = words(k).done;
    if (done.load(kAcquire) >= operation.sequence) continue;
    behind_ = {&CommunicatorWords::done, operation.sequence};
    if (!closed_ || !is_gone(k)) return Step::kWait;
    if (commit && done.load(kAcquire) < operation.sequence) return Step::kFailed;
  }
  return Step::kDone;
}

// The entries are all here and say different things, so everybody refuses. Only now does each rank
// describe its side in words; the outcome rests on the entries alone.
SharedMemoryCommunicator::Step SharedMemoryCommunicator::refuse(Operation& operation) {
  const auto settled = [this](int k, const std::atomic<uint64_t>& word, uint64_t value) {
    return word.load(kAcquire) >= value || is_gone(k);
  };
  if ((operation.stage & kTold) == 0) {
    behind_ = {&CommunicatorWords::done, last_told_};
    for (int k = 0; k < size_; ++k)  // has everybody read what was told before?
      if (k != me_ && !settled(k, words(k).done, last_told_)) return Step::kWait;
    tell(operation);
    operation.stage |= kTold;
  }
  behind_ = {&CommunicatorWords::told, operation.sequence};
  for (; cursor_.rank < size_; ++cursor_.rank)
    if (!settled(cursor_.rank, words(cursor_.rank).told, operation.sequence)) return Step::kWait;
  compose_refusal(operation);
  operation.stage |= kRefusedHere;
  NewSegment::undo(operation, arena_);
  return Step::kDone;
}

// All entries ask for the same: then it is refused because a rank cannot do it.
bool SharedMemoryCommunicator::is_agreed(const Operation& operation) const {
  const uint64_t expected = word_of(operation.sequence, operation.hash);
  for (int k = 0; k < size_; ++k) {
    if (lines(k, operation.sequence)[0].word.load(kAcquire) != expected) return false;
    if (!is_small(operation) && entry(k, operation.sequence).hash != operation.hash) return false;
  }
  return true;
}

void SharedMemoryCommunicator::tell(const Operation& operation) {
  const std::string unable = new_segment_.take_unable();
  const std::string text = unable.empty() || !is_agreed(operation) ? describe(operation) : unable;
  copy_text(mine().text, sizeof mine().text, text);
  last_told_ = operation.sequence;
  fault_point("collective_told");
  publish(mine().told, operation.sequence);
}

// Where ranks differ: what it said, or another that called the same. Who said nothing has died.
std::string SharedMemoryCommunicator::call_of(int rank, uint64_t sequence) const {
  const auto word = [&](int k) { return lines(k, sequence)[0].word.load(kAcquire); };
  const auto told = [&](int k) { return words(k).told.load(kAcquire) >= sequence; };
  if (told(rank)) return words(rank).text;
  for (int k = 0; k < size_; ++k)
    if (told(k) && word(k) == word(rank)) return words(k).text;
  return "something else, and died";
}

void SharedMemoryCommunicator::compose_refusal(Operation& operation) const {
  const bool agreed = operation.kind == OperationKind::kSegment && is_agreed(operation);
  std::vector<Side> sides;
  for (int k = 0; k < size_; ++k) {
    const bool told = words(k).told.load(kAcquire) >= operation.sequence;
    const std::string reason = told ? words(k).text : "it died before it said what it could not do";
    sides.push_back({.rank = world_rank(k),
                     .hash = lines(k, operation.sequence)[0].word.load(kAcquire),
                     .unable = agreed && entry(k, operation.sequence).place == Place::kUnable,
                     .text = agreed ? reason : call_of(k, operation.sequence)});
  }
  set_refusal(operation, sides);
}

// Could anybody have begun to store results? For a small allreduce that takes all lines, for the
// others all entries. What had them and failed all the same stood behind a failure, or was cut.
bool SharedMemoryCommunicator::was_begun(const Operation& operation) const {
  const uint64_t expected = word_of(operation.sequence, operation.hash);
  const size_t count = is_small(operation) ? lines_of(operation) : 1;
  for (int k = 0; k < size_; ++k)
    for (size_t i = 0; i < count; ++i)
      if (lines(k, operation.sequence)[i].word.load(kAcquire) != expected) return false;
  return true;
}

std::vector<int> SharedMemoryCommunicator::missing_ranks() const {
  std::vector<int> missing = not_entered();
  const bool is_entered = !idle() && queue_.oldest()->sequence <= entered_;
  return missing.empty() && is_entered ? ranks_behind() : missing;
}

std::vector<int> SharedMemoryCommunicator::not_entered() const {
  std::vector<int> missing;
  if (idle()) return missing;
  const Operation& oldest = *queue_.oldest();
  const uint64_t sequence = oldest.sequence;
  if (sequence > entered_) {  // not even here: who still holds its slot?
    for (int k = 0; k < size_; ++k)
      if (k != me_ && words(k).done.load(kAcquire) + kOperationSlots < sequence)
        missing.push_back(world_rank(k));
    return missing;
  }
  const size_t count = is_small(oldest) ? lines_of(oldest) : 1;
  for (int k = 0; k < size_; ++k) {
    const WordLine* line = lines(k, sequence);
    if (!std::all_of(line, line + count, [&](const WordLine& one) {
          return reached(one.word.load(kAcquire), sequence);
        }))
      missing.push_back(world_rank(k));
  }
  return missing;
}

// All have entered. Who stands still in the midst of an operation has a counter that the others
// wait for. They come as far as they can without it, so that of several who are not there yet the
// one is meant who has done less than this rank.
std::vector<int> SharedMemoryCommunicator::ranks_behind() const {
  std::vector<int> behind, less;
  const int root = behind_.root;
  const auto add = [&](const auto& counter, uint64_t value, int only) {
    for (int k = 0; k < size_; ++k)
      if (k != me_ && (only < 0 || k == only) && (words(k).*counter).load(kAcquire) < value)
        behind.push_back(k);
  };
  if (root >= 0) {  // does it wait for who still reads what is in its slots?
    const uint64_t brought = words(root).brought.load(kAcquire);
    if (brought >= chunks_before_ + kCopySlots)
      add(&CommunicatorWords::summed, brought + 1 - kCopySlots, -1);
  }
  if (behind.empty()) add(behind_.counter, behind_.value, root);
  const CommunicatorWords& my = words(me_);
  std::ranges::copy_if(behind, std::back_inserter(less), [&](int k) {
    return words(k).summed.load(kAcquire) < my.summed.load(kAcquire) ||
           words(k).brought.load(kAcquire) < my.brought.load(kAcquire);
  });
  if (!less.empty()) behind.swap(less);
  for (int& rank : behind) rank = world_rank(rank);
  return behind;
}

}  // namespace hvd
