// Shows through the memory itself that the ranks of a host share it, which their agent's word that
// they are on one host does not say.
//
// Every rank stores a word of its own into every rank's piece of a segment, then shows it in the
// control block. It has arrived where the reader finds it both in its own piece and in the
// writer's: so the stores of each are seen by all, whichever piece they go to. The holder of the
// progress token only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/arena.h"
#include "collectives/peers.h"

namespace hvd {

class MemoryProof {
 public:
  static constexpr uint64_t bytes(int local_size) {
    return sizeof(std::atomic<uint64_t>) * static_cast<uint64_t>(local_size);
  }

  // At this offset, a multiple of 8, of every rank's piece, all zero there. Gives this rank's word.
  // `peers` outlives it.
  MemoryProof(Peers& peers, std::shared_ptr<Segment> segment, uint64_t offset);

  // True once every rank's word is shown, and has arrived. Throws kUnavailable, naming a rank whose
  // has not.
  bool complete();
  // Ranks of the job whose words are not shown yet.
  std::vector<int> missing() const;

 private:
  std::atomic<uint64_t>& word(int piece, int writer) const;
  bool arrived(int writer, uint64_t shown) const;

  Peers& peers_;
  const std::shared_ptr<Segment> segment_;
  const uint64_t offset_;
  const int me_, count_;  // local
  int found_ = 0;         // words, by local rank
};

}  // namespace hvd
