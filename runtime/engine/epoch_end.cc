// The steps out of a broken epoch, each decided from words that only grow.
#include "runtime/engine/epoch_end.h"

#include <string.h>

#include <algorithm>

#include "runtime/base/fault_point.h"

namespace hvd {

bool EpochEnd::advance(std::span<Communicator* const> communicators) {
  if (over_.load(std::memory_order_relaxed)) return false;
  bool moved = false;
  if (const uint32_t trouble = block_.trouble.load(std::memory_order_acquire); trouble != seen_) {
    if (!broken_) {
      broken_ = true;
      close(communicators);
      peers_.report_broken();
    }
    fault_point("engine_seen");
    seen_ = trouble;
    block_.rank(peers_.world().local_rank).seen.store(trouble, std::memory_order_release);
    moved = true;
  }
  if (!closed_) return moved;
  if (!quiet_ && std::all_of(communicators.begin(), communicators.end(),
                             [](const Communicator* one) { return one->drained(); })) {
    fault_point("engine_quiet");
    block_.rank(peers_.world().local_rank).quiet.store(1, std::memory_order_release);
    ring_sleepers(peers_);
    quiet_ = moved = true;
  }
  if (broken_ && quiet_ && others_gone()) {
    for (Communicator* one : communicators) one->fail_rest();
    over_.store(true, std::memory_order_release);
    moved = true;
  }
  return moved;
}

void EpochEnd::close(std::span<Communicator* const> communicators) {
  if (closed_) return;
  closed_ = true;
  fault_point("engine_close");
  for (Communicator* one : communicators) one->close();
  ring_sleepers(peers_);
}

void EpochEnd::take_in(Communicator& communicator) {
  if (closed_) communicator.close();
  if (over_) communicator.fail_rest();
}

void EpochEnd::publish_left() {
  fault_point("engine_left");
  block_.rank(peers_.world().local_rank).left.store(1, std::memory_order_release);
  ring_sleepers(peers_);
}

int EpochEnd::find_left() const {
  for (int k = 0; k < peers_.world().local_size; ++k)
    if (k != peers_.world().local_rank && block_.rank(k).left.load(std::memory_order_acquire) != 0)
      return k;
  return -1;
}

bool EpochEnd::others_gone() const {
  for (int k = 0; k < peers_.world().local_size; ++k) {
    if (k == peers_.world().local_rank) continue;
    const RankWords& words = block_.rank(k);
    if (words.quiet.load(std::memory_order_acquire) == 0 &&
        words.dead.load(std::memory_order_acquire) == 0)
      return false;
  }
  return true;
}

TroubleReason EpochEnd::reason_kind() const {
  return static_cast<TroubleReason>(block_.reason.load(std::memory_order_acquire) & 0xff);
}

std::string EpochEnd::reason() const {
  std::string text = first_reason();
  for (int k = 0; k < peers_.world().local_size; ++k)
    text += given_up_text(world_rank(k), block_.rank(k).given_up.load(std::memory_order_acquire));
  return text;
}

// The word of the first reason names a rank; that rank wrote its text before.
std::string EpochEnd::first_reason() const {
  const uint32_t word = block_.reason.load(std::memory_order_acquire);
  const auto kind = static_cast<TroubleReason>(word & 0xff);
  const int who = static_cast<int>(word >> 8);
  if (kind == TroubleReason::kDeath || kind == TroubleReason::kNone) {
    std::string dead;
    for (int k = 0; k < peers_.world().local_size; ++k)
      if ((kind == TroubleReason::kDeath && k == who) ||
          (kind == TroubleReason::kNone && block_.rank(k).dead.load(std::memory_order_acquire)))
        dead += (dead.empty() ? "" : ", ") + rank_text(peers_, world_rank(k));
    return dead.empty() ? "the host's agent broke the epoch off" : dead + " died";
  }
  if (kind == TroubleReason::kLostSocket)
    return rank_text(peers_, world_rank(who)) + " lost its connection to the host's agent";
  const bool elsewhere = kind == TroubleReason::kElsewhere;
  const char* text = elsewhere ? block_.elsewhere : block_.rank(who).reason;
  static_assert(sizeof block_.elsewhere == sizeof block_.rank(who).reason);
  return text[0] != 0 ? std::string(text, strnlen(text, sizeof block_.elsewhere))
                      : rank_text(peers_, world_rank(who)) + " broke the epoch off";
}

}  // namespace hvd
