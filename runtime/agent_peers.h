// Peers of one epoch of a job: the agent's memory and doorbells, and its Store.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "collectives/peers.h"
#include "runtime/agent_connection.h"
#include "runtime/base/private_fd.h"
#include "runtime/base/process_mark.h"

namespace hvd {

class AgentPeers : public Peers {
 public:
  // Joins the next epoch through the connection, which outlives this object, and waits until it
  // starts. Throws as AgentConnection::join().
  explicit AgentPeers(std::shared_ptr<AgentConnection> connection);
  ~AgentPeers() override;

  const World& world() const override { return world_; }
  ControlBlock& block() override { return *block_; }
  std::string host_name(int rank) override;
  StatusPage& status_page() override { return connection_->status_page(); }
  Store& store() override { return *store_; }
  void request_segment(uint32_t id, uint64_t bytes) override;
  std::optional<std::vector<UniqueFd>> take_segment(uint32_t id) override {
    return connection_->take_segment(id);
  }
  bool gives_links() const override { return true; }
  void request_links(uint32_t id, std::span<const int> ranks) override;
  std::optional<std::vector<UniqueFd>> take_links(uint32_t id) override {
    return connection_->take_links(id);
  }
  std::vector<int> missing_links(uint32_t id) override { return connection_->missing_links(id); }
  void ring(int local_rank, Sleeper sleeper) override;
  int doorbell(Sleeper sleeper) const override { return doorbell(world_.local_rank, sleeper); }
  int agent_fd() const override { return connection_->fd(); }
  std::string lost_agent() override { return connection_->lost(); }
  void report_broken() noexcept override;

 private:
  int doorbell(int local_rank, Sleeper sleeper) const {
    return doorbells_[static_cast<size_t>(local_rank * kSleepers) + sleeper].get();
  }

  const std::shared_ptr<AgentConnection> connection_;
  const ProcessMark process_;
  World world_;
  HostNames hosts_;
  ControlBlock* block_ = nullptr;
  std::vector<PrivateFd> doorbells_;
  std::unique_ptr<Store> store_;
  std::atomic<bool> reported_{false};
};

}  // namespace hvd
