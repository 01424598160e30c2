// Ranks as threads, each with its Peers, its Arena and a Communicator, and how a test waits.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/backends.h"
#include "tests/support/in_process_peers.h"

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
  // progress() until `done`, yielding; throws after a minute.
  void advance_until(const std::function<bool()>& done);
  // The way out of a broken epoch, as the engine does it: waits for trouble, closes, answers, does
  // its part, goes quiet, waits until everybody is quiet or dead.
  void leave_broken_epoch();
};

// Makes a Communicator for a rank whose Peers and Arena are there. So that one suite serves every
// backend.
using CommunicatorFactory = std::function<std::unique_ptr<Communicator>(Rank&)>;

// Words and staging in segment 0; `disjoint` as in CommunicatorSpec.
CommunicatorFactory shared_memory_factory(bool disjoint = false);

class RankThreads {
 public:
  explicit RankThreads(int size, const CommunicatorFactory& factory = shared_memory_factory());
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  int size() const { return host_.ranks(); }
  InProcessHost& host() { return host_; }
  Rank& rank(int k) { return *ranks_[static_cast<size_t>(k)]; }
  // Runs `body` once per rank, each in a thread, and waits for all. Rethrows the first exception
  // with the rank's number. Catch's macros are not for threads: bodies throw, or leave results.
  void run(const std::function<void(Rank&)>& body);

 private:
  InProcessHost host_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace hvd
