// Which Communicator a World gets. The only door to the backends.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "collectives/arena.h"
#include "collectives/communicator.h"
#include "collectives/peers.h"

namespace hvd {

struct CommunicatorSpec {
  uint32_t segment = 0;  // where its words lie: a segment of the arena, all zero there,
  uint64_t offset = 0;   // at this offset (a multiple of 64) of every rank's piece
  uint64_t seed = 0;    // whose operations these are (process set, order): has to agree, else every
                        // operation is refused
  bool staging = true;  // false: only memory of the arena is reduced and broadcast (an optimizer's
                        // buckets)
  bool disjoint = false;  // true: operations under way never share memory (buckets, again), so
                          // a slice may be summed by another rank than that of the one before
  std::string name = {};  // not empty: a rank may close it and live on; what others who still need
                          // it are told
};

// Bytes of every rank's piece that a communicator's words, and staging if asked for, take up.
uint64_t communicator_bytes(bool staging);

// Among the ranks of this host. No collective: peers may make theirs later. `peers` and `arena`
// outlive it.
std::unique_ptr<Communicator> make_communicator(Peers& peers, Arena& arena,
                                                const CommunicatorSpec& spec);

}  // namespace hvd
