#include "collectives/memory_proof.h"

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <utility>

#include "hvd/error.h"
#include "runtime/base/fault_point.h"

namespace hvd {
namespace {

// That stands nowhere by chance; not 0, since that says that there is none.
uint64_t random_word() {
  std::random_device random;
  return uint64_t{random()} << 32 | random() | 1;
}

// Another one in each piece, so that none can stand in for another.
uint64_t in_piece(uint64_t shown, int piece) { return shown + static_cast<uint64_t>(piece); }

std::string apart(Peers& peers, int writer) {
  const World& world = peers.world();
  const int first = world.rank - world.local_rank;
  const int ranks[] = {std::min(writer, world.local_rank) + first,
                       std::max(writer, world.local_rank) + first};
  const auto name = [first](int local_rank) {
    return "rank " + std::to_string(first + local_rank);
  };
  return ranks_text(peers, ranks) + " are on one host, but share no memory: what " + name(writer) +
         " stores does not reach " + name(world.local_rank) +
         "; run them outside of what keeps it apart, such as a sandbox or a preloaded library";
}

}  // namespace

MemoryProof::MemoryProof(Peers& peers, std::shared_ptr<Segment> segment, uint64_t offset)
    : peers_(peers),
      segment_(std::move(segment)),
      offset_(offset),
      me_(peers.world().local_rank),
      count_(peers.world().local_size) {
  const uint64_t mine = random_word();
  for (int piece = 0; piece < count_; ++piece) {
    fault_point("proof_store");
    word(piece, me_).store(in_piece(mine, piece), std::memory_order_relaxed);
  }
  fault_point("proof_show");
  peers.block().rank(me_).proof.store(mine, std::memory_order_release);
  // Nobody has anything to do before the last word is shown, and whoever shows it sees that.
  full_fence();
  if (missing().empty()) ring_sleepers(peers);
}

std::atomic<uint64_t>& MemoryProof::word(int piece, int writer) const {
  std::byte* const words = segment_->at(piece) + offset_;
  return reinterpret_cast<std::atomic<uint64_t>*>(words)[writer];
}

bool MemoryProof::arrived(int writer, uint64_t shown) const {
  return std::ranges::all_of(std::array{me_, writer}, [&](int piece) {
    return word(piece, writer).load(std::memory_order_relaxed) == in_piece(shown, piece);
  });
}

bool MemoryProof::complete() {
  for (; found_ < count_; ++found_) {
    const uint64_t shown = peers_.block().rank(found_).proof.load(std::memory_order_acquire);
    if (shown == 0) return false;
    if (!arrived(found_, shown)) throw Error(ErrorCode::kUnavailable, apart(peers_, found_));
    fault_point("proof_found");
  }
  return true;
}

std::vector<int> MemoryProof::missing() const {
  std::vector<int> missing;
  for (int k = 0; k < count_; ++k)
    if (peers_.block().rank(k).proof.load(std::memory_order_acquire) == 0)
      missing.push_back(peers_.world().rank - me_ + k);
  return missing;
}

}  // namespace hvd
