// Peers for ranks that are threads of one process: memory, doorbells, a Store, and an agent.
//
// What an agent does for processes, InProcessHost does for threads: it makes segments, declares
// ranks dead, and, once somebody reported the epoch broken, asks until everybody is quiet or dead.
// A thread cannot be killed, so the agent "kills" a rank only after the test has promised, by
// stop(), that the rank's thread touches nothing any more.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "collectives/peers.h"

namespace hvd {

class InProcessHost {
 public:
  explicit InProcessHost(int ranks, uint32_t epoch = 1);
  ~InProcessHost();  // after all Peers are gone
  InProcessHost(const InProcessHost&) = delete;
  InProcessHost& operator=(const InProcessHost&) = delete;

  int ranks() const { return ranks_; }
  ControlBlock& block() { return *block_; }
  StatusPage& status_page(int rank) { return status_pages_[static_cast<size_t>(rank)]; }
  // One per rank; may outlive nothing of the host.
  std::unique_ptr<Peers> peers(int rank);

  // As the agent: writes the death word, raises trouble, rings everybody. The rank's thread must
  // have ended its part.
  void declare_dead(int rank);
  // The rank's thread touches nothing any more, and nobody was told: it is declared dead when it
  // does not answer a question. As a stopped process that is given up on.
  void stop(int rank);

  // From now on segments of more bytes are refused with this text.
  void limit_segments(uint64_t bytes, const std::string& reason);
  // The agent is gone: agent_alive() is false.
  void end_agent() { agent_alive_ = false; }

 private:
  class RankPeers;
  class MemoryStore;
  struct SegmentRequest {
    std::vector<UniqueFd> memories;  // by local rank; empty when refused
    std::string refusal;
  };

  int doorbell(int rank, int sleeper) const {
    return doorbells_[static_cast<size_t>(rank) * kSleepers + static_cast<size_t>(sleeper)].get();
  }
  void ring(int rank, int sleeper);
  void request_segment(uint32_t id, uint64_t bytes);
  std::optional<std::vector<UniqueFd>> take_segment(uint32_t id);
  void report_broken() noexcept;
  void answer_questions(std::stop_token stop);
  bool ask();

  const int ranks_;
  const uint32_t epoch_;
  std::unique_ptr<std::byte[]> block_memory_;
  ControlBlock* block_ = nullptr;
  std::unique_ptr<StatusPage[]> status_pages_;
  std::vector<UniqueFd> doorbells_;  // rank * kSleepers + sleeper
  std::unique_ptr<MemoryStore> store_;
  std::atomic<bool> agent_alive_{true};

  std::mutex mutex_;
  std::condition_variable_any reported_;
  // guarded by mutex_
  std::map<uint32_t, SegmentRequest> segments_;
  uint64_t segment_bytes_max_ = uint64_t{1} << 40;
  std::string segment_refusal_;
  bool broken_ = false;
  std::vector<bool> stopped_;

  std::jthread agent_;
};

}  // namespace hvd
