// Peers of a process that is a world of its own: no launcher, no agent, nobody else.
//
// Everything else runs as in a job, so that a program behaves alike with and without hvdrun.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <vector>

#include "collectives/peers.h"
#include "rendezvous/memory_store.h"
#include "runtime/base/mutex.h"
#include "runtime/base/private_fd.h"

namespace hvd {

class SoloPeers : public Peers {
 public:
  explicit SoloPeers(uint32_t epoch);

  const World& world() const override { return world_; }
  ControlBlock& block() override { return *block_; }
  StatusPage& status_page() override { return status_page_; }
  Store& store() override { return store_; }
  void request_segment(uint32_t id, uint64_t bytes) override;
  std::optional<std::vector<UniqueFd>> take_segment(uint32_t id) override;
  void ring(int local_rank, Sleeper sleeper) override;
  int doorbell(Sleeper sleeper) const override { return doorbells_[sleeper].get(); }
  int agent_fd() const override { return -1; }
  std::string lost_agent() override { return ""; }
  void report_broken() noexcept override {}

 private:
  struct Request {
    UniqueFd memory;
    std::string refusal;
  };
  struct alignas(64) BlockMemory {
    std::array<std::byte, 64 * 32> bytes;
  };

  World world_;
  std::unique_ptr<BlockMemory> memory_;
  ControlBlock* block_ = nullptr;
  StatusPage status_page_{};
  MemoryStore store_;
  std::array<PrivateFd, kSleepers> doorbells_;
  Mutex mutex_;
  std::map<uint32_t, Request> requests_ GUARDED_BY(mutex_);
};

}  // namespace hvd
