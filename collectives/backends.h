// Which Communicator a World gets. The only door to the backends.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/arena.h"
#include "collectives/communicator.h"
#include "collectives/peers.h"
#include "collectives/world_shape.h"

namespace hvd {

struct CommunicatorSpec {
  uint32_t segment = 0;  // where its words lie: a segment of the arena, all zero there,
  uint64_t offset = 0;   // at this offset (a multiple of 64) of every rank's piece
  uint32_t links = 0;    // between hosts: number of its links, the first one if there are several
  std::vector<int> hosts = {};  // ranks of each, where ranks share hosts
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

// Among all ranks of the world: its shape decides which one, the same for all. No collective; all
// ranks make the same ones with the same `links`.
std::unique_ptr<Communicator> make_world_communicator(Peers& peers, Arena& arena,
                                                      const WorldShape& shape,
                                                      const CommunicatorSpec& spec);
// What such a one takes up: bytes of every rank's piece, and numbers of links.
uint64_t world_communicator_bytes(const WorldShape& shape, bool staging);
uint32_t world_communicator_links(const WorldShape& shape);

// Among all ranks, each on any host, over links. No collective either.
std::unique_ptr<Communicator> make_tcp_communicator(Peers& peers, Arena& arena,
                                                    const CommunicatorSpec& spec);

// Among all ranks, of which some share a host: `spec` says where its words lie, and its links, and
// how many ranks each host has, in the order of ranks. No collective either.
std::unique_ptr<Communicator> make_hierarchical_communicator(Peers& peers, Arena& arena,
                                                             const CommunicatorSpec& spec);
// What such a one takes up: bytes of every rank's piece, and numbers of links.
uint64_t hierarchical_bytes(std::span<const int> hosts, bool staging);
uint32_t hierarchical_links(std::span<const int> hosts);

}  // namespace hvd
