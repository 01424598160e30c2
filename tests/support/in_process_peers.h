// Peers for ranks that are threads of one process: memory, doorbells, a Store, and an agent.
//
// What an agent does for processes, InProcessHost does for threads: it makes segments, declares
// ranks dead, and, once somebody reported the epoch broken, asks until everybody is quiet or dead.
// A thread cannot be killed, so the agent "kills" a rank only after the test has promised, by
// stop(), that the rank's thread touches nothing any more. Several hosts make an InProcessWorld
// (in_process_world.h); ranks here are local ranks.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "collectives/peers.h"

namespace hvd {

// The other hosts, as a host's agent reaches them. Called with no lock held.
class InProcessRelay {
 public:
  virtual ~InProcessRelay() = default;
  virtual void relay_death(int world_rank) = 0;
  // A rank of that host broke the epoch off.
  virtual void relay_trouble(int host, const std::string& text) = 0;
  virtual void request_links(uint32_t id, int world_rank, std::span<const int> ranks) = 0;
  virtual std::optional<std::vector<UniqueFd>> take_links(uint32_t id, int world_rank) = 0;
};

// Where a host stands among all.
struct HostPlace {
  int host = 0, hosts = 1;
  int first_rank = 0;
  std::vector<int> ranks_per_host = {};  // empty: this host alone
  InProcessRelay* others = nullptr;
};

class InProcessHost {
 public:
  explicit InProcessHost(int ranks, uint32_t epoch = 1, const HostPlace& place = {});
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
  // The same Store as that host's; before any rank starts.
  void share_store_of(const InProcessHost& other) { store_ = other.store_; }
  // The rank's thread touches nothing any more, and nobody was told: it is declared dead when it
  // does not answer a question. As a stopped process that is given up on.
  void stop(int rank);

  // From now on segments of more bytes are refused with this text.
  void limit_segments(uint64_t bytes, const std::string& reason);
  // From now on this rank gets other memory than the others, of the same size.
  void keep_apart(int rank);
  // From now on the ranks' memory is limited as `root`/proc and `root`/cgroup say.
  void limit_memory(const std::string& root);
  // As the agent that was told by another one: of a rank of another host, or that the epoch broke
  // there.
  void hear_of_death(int world_rank);
  void hear_of_trouble(const std::string& text);

  // Asks and relays nothing from now on.
  void stop_agent();

 private:
  class RankPeers;
  class MemoryStore;
  struct SegmentRequest {
    uint64_t bytes = 0;
    std::vector<UniqueFd> memories;  // by local rank; empty when refused
    std::string refusal;
  };

  int doorbell(int rank, int sleeper) const {
    return doorbells_[static_cast<size_t>(rank) * kSleepers + static_cast<size_t>(sleeper)].get();
  }
  void ring(int rank, int sleeper);
  void request_segment(uint32_t id, uint64_t bytes);
  std::optional<std::vector<UniqueFd>> take_segment(uint32_t id, int rank);
  void check_headroom(uint64_t bytes);
  void report_broken() noexcept;
  void answer_questions(std::stop_token stop);
  bool ask();
  void ring_all();
  std::string reason_text() const;

  const int ranks_;
  const uint32_t epoch_;
  const HostPlace place_;
  std::unique_ptr<std::byte[]> block_memory_;
  ControlBlock* block_ = nullptr;
  std::unique_ptr<StatusPage[]> status_pages_;
  std::vector<UniqueFd> doorbells_;  // rank * kSleepers + sleeper
  std::shared_ptr<MemoryStore> store_;

  std::mutex mutex_;
  std::condition_variable_any reported_;
  // guarded by mutex_
  std::map<uint32_t, SegmentRequest> segments_;
  uint64_t segment_bytes_max_ = uint64_t{1} << 40;
  std::string segment_refusal_;
  int apart_ = -1;  // this rank shares no segment
  std::string proc_ = "/proc", cgroups_ = "/sys/fs/cgroup";
  bool broken_ = false;
  std::vector<bool> stopped_;
  bool told_elsewhere_ = false;

  std::jthread agent_;
};

}  // namespace hvd
