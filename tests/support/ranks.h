// Ranks as threads, each with its Peers, its Arena and a Communicator, and how a test waits.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/backends.h"
#include "tests/support/in_process_world.h"

namespace hvd {

// What a test body gets to see of the world: it runs in the rank's own thread.
struct Rank {
  int rank = 0, size = 1;
  std::unique_ptr<Peers> peers;
  Arena arena;
  std::unique_ptr<Communicator> communicator;
  uint32_t next_segment = 1;

  // Starts and waits. Throws std::runtime_error when it takes a minute.
  Outcome run(Operation& operation);
  // Complete, or throws with the operation's error.
  void complete(Operation& operation);
  // Memory that all ranks map; a collective.
  std::byte* add_segment(uint64_t bytes);
  // This rank's piece of a segment; nothing where it never came.
  std::span<std::byte> own_memory(uint32_t segment) const;
  // progress() until `done`, yielding; throws after a minute.
  void advance_until(const std::function<bool()>& done);
  // The way out of a broken epoch, as the engine does it: waits for trouble, closes, answers, does
  // its part, goes quiet, waits until everybody is quiet or dead.
  void leave_broken_epoch();
};

// Makes a Communicator for a rank whose Peers and Arena are there. So that one suite serves every
// backend.
using CommunicatorFactory = std::function<std::unique_ptr<Communicator>(Rank&)>;

// A segment for a communicator's words, before there is one.
void add_words(Rank& rank, uint64_t bytes, uint32_t segment = 0);

// Words and staging in segment 0; `disjoint` as in CommunicatorSpec.
CommunicatorFactory shared_memory_factory(bool disjoint = false);

// Ranks of different hosts over links number `links`.
CommunicatorFactory tcp_factory(uint32_t links = 0);

// Ranks that share hosts. Of several communicators of one World each has another `number`: that of
// the segment its words lie in, and the links follow those of the ones before.
CommunicatorFactory hierarchical_factory(std::vector<int> hosts, bool staging = true,
                                         uint32_t number = 0);

class RankThreads {
 public:
  // All on one host. Hosts whose number is odd have far links, so that each suite has both
  // ways in which long sums go.
  explicit RankThreads(int size, const CommunicatorFactory& factory = shared_memory_factory())
      : RankThreads(std::vector{size}, factory) {}
  RankThreads(const std::vector<int>& ranks_per_host, const CommunicatorFactory& factory);
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  int size() const { return world_.size(); }
  InProcessWorld& world() { return world_; }
  InProcessHost& host() { return world_.host(0); }
  Rank& rank(int k) { return *ranks_[static_cast<size_t>(k)]; }
  // Runs `body` once per rank, each in a thread, and waits for all. Rethrows the first exception
  // with the rank's number. Catch's macros are not for threads: bodies throw, or leave results.
  void run(const std::function<void(Rank&)>& body);

 private:
  InProcessWorld world_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace hvd
