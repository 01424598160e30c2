// The way of a new segment into the arena: ask the agent, map, fault in the own piece.
//
// One at a time, step by step; what cannot be done is nobody's end, but a reason to refuse.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "collectives/arena.h"
#include "collectives/communicator.h"
#include "collectives/peers.h"

namespace hvd {

class NewSegment {
 public:
  enum class Step : uint8_t { kWait, kMoved, kDone };
  // kDone: it is in the arena, or unable() says why not. The next call begins another one.
  Step prepare(const Operation& operation, Peers& peers, Arena& arena);
  const std::string& unable() const { return unable_; }
  std::string take_unable() { return std::exchange(unable_, {}); }

  // Everybody has entered, so every owner has its pages: a bounded part of faulting in the peers'
  // pieces, from *rank and *at on; true when all are. Its user may let go at once when all ranks
  // are through: pages that came later would stay.
  static bool meet(const Operation& operation, Arena& arena, int local_rank, int local_size,
                   int* rank, uint64_t* at);

  // It is refused by all: what was prepared goes, and its pages go back to the machine.
  static void undo(const Operation& operation, Arena& arena);

 private:
  Step prepare_or_throw(const Operation& operation, Peers& peers);

  bool requested_ = false;
  std::shared_ptr<Segment> segment_;
  uint64_t populated_ = 0;
  std::string unable_;
};

}  // namespace hvd
