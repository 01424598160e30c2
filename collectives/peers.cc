#include "collectives/peers.h"

#include <algorithm>
#include <atomic>

#include "collectives/arena.h"
#include "hvd/error.h"
#include "runtime/base/fault_point.h"
#include "runtime/base/mutex.h"
#include "runtime/base/utf8.h"

namespace hvd {
namespace {

void ring_each(Peers& peers, int local_rank, uint32_t sleepers) {
  for (int sleeper = 0; sleeper < kSleepers; ++sleeper)
    if ((sleepers >> sleeper & 1) != 0) peers.ring(local_rank, static_cast<Sleeper>(sleeper));
}

// The first reason of all ranks stays; its text is written before the word that points to it.
void note_reason(ControlBlock& block, const World& world, TroubleReason reason,
                 const std::string& text, std::span<const int> missing) {
  static Mutex mutex;  // two threads of one rank must not write one text
  MutexLock lock(mutex);
  if (block.reason.load(std::memory_order_acquire) != 0) return;
  const int me = world.local_rank;
  RankWords& mine = block.rank(me);
  copy_text(mine.reason, sizeof mine.reason, text);
  for (int rank : missing)
    if (rank >= 0 && rank < world.size) block.miss(me, rank);
  uint32_t none = 0;
  const uint32_t word = static_cast<uint32_t>(reason) | static_cast<uint32_t>(me) << 8;
  block.reason.compare_exchange_strong(none, word, std::memory_order_acq_rel);
}

}  // namespace

void Peers::check_headroom(uint64_t bytes) { Segment::check_headroom(bytes); }

void Peers::request_links(uint32_t, std::span<const int>) {}

std::optional<std::vector<UniqueFd>> Peers::take_links(uint32_t) {
  throw Error(ErrorCode::kUnavailable,
              "these ranks have no links to other hosts; start all on one");
}

// ThreadSanitizer does not know fences, and GCC says so; only atomics lie on both sides of this
// one.
#pragma GCC diagnostic push
#if defined(__SANITIZE_THREAD__)
#pragma GCC diagnostic ignored "-Wtsan"
#endif
void full_fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
#pragma GCC diagnostic pop

void ring_sleepers(Peers& peers) {
  full_fence();
  ControlBlock& block = peers.block();
  const int me = peers.world().local_rank;
  const int count = static_cast<int>(block.local_size);
  for (int k = 0; k < count; ++k) {
    if (k == me) continue;
    const uint32_t asleep = block.rank(k).asleep.load(std::memory_order_relaxed);
    if (asleep != 0) [[unlikely]]
      ring_each(peers, k, asleep);
  }
}

void ring_own_sleepers(Peers& peers, bool all) {
  full_fence();
  const int me = peers.world().local_rank;
  const uint32_t asleep = peers.block().rank(me).asleep.load(std::memory_order_relaxed);
  ring_each(peers, me, all ? asleep : asleep & 1u << kCaller);
}

void raise_trouble(Peers& peers, TroubleReason reason, const std::string& text,
                   std::span<const int> missing) noexcept {
  ControlBlock& block = peers.block();
  note_reason(block, peers.world(), reason, text, missing);
  block.trouble.fetch_add(1, std::memory_order_seq_cst);
  for (int k = 0; k < static_cast<int>(block.local_size); ++k) ring_each(peers, k, ~0u);
  peers.report_broken();
}

std::string rank_text(Peers& peers, int rank) { return ranks_text(peers, std::span(&rank, 1)); }

std::string ranks_text(Peers& peers, std::span<const int> ranks) {
  constexpr size_t kMost = 8;
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i == kMost) return text + ", …";
    text += (i == 0 ? " " : ", ") + std::to_string(ranks[i]);
    const std::string host = peers.host_name(ranks[i]);
    const bool last_there =
        i + 1 == std::min(ranks.size(), kMost) || peers.host_name(ranks[i + 1]) != host;
    if (last_there && !host.empty()) text += " on " + host;
  }
  return text;
}

std::string departure_text(Peers& peers, int rank, const std::string& name) {
  const std::string what =
      name.empty() ? "called shutdown()" : "let go of \"" + name + "\", or called shutdown(),";
  return rank_text(peers, rank) + " " + what + " while other ranks went on";
}

}  // namespace hvd
