// The agent's part in a job with several hosts: listens for links, tries at which addresses the
// others do, knows where the agents of an epoch's other members are, tells them what became of the
// ranks here, and hears of theirs.
//
// Lives on the agent's loop.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/agent/host_memory.h"
#include "cli/agent/link_requests.h"
#include "cli/agent/link_service.h"
#include "cli/loop.h"
#include "proto/rendezvous.pb.h"

namespace hvd {

// By rank of the epoch's world: as what it was started.
std::vector<int> started_as(const proto::StartEpoch& start);

class OtherHosts {
 public:
  struct Callbacks {
    std::function<void(const proto::FromAgent&)> send;
    std::function<void(const std::string& text)> say;
  };
  // Listens, though not on `kept_port`, and says where. `host`: this one's number among the job's.
  OtherHosts(Loop& loop, int host, const proto::ListenForLinks& order, uint16_t kept_port,
             Callbacks callbacks);

  // Says of each address whether that host is there, as it turns out.
  void on(const proto::TryToReach& order);
  void on(const proto::LinksAt& order);

  // `ranks`: by slot, the rank that was started there.
  void add_to(HostMemoryEvents& events, std::vector<int> ranks);
  void use(HostMemory& memory);  // which has these events, and lives as long as this
  void start_epoch(const proto::StartEpoch& start);  // before `memory` does
  // Passed on by hvdrun.
  void on(const proto::Died& died);
  void on(const proto::Broken& broken);
  void on(const proto::StoreAnswer& answer);

  std::optional<TimePoint> next_deadline() const { return links_->next_deadline(); }
  void tick(TimePoint now);

 private:
  void prove(int peer, int offer, bool carries, const std::string& address, Deadline deadline);

  const Callbacks callbacks_;
  const Clock::duration patience_;
  std::unique_ptr<LinkService> links_;
  proto::Reached reached_;  // since the last tick()
  std::unique_ptr<LinkRequests> requests_;
  std::vector<int> ranks_;  // by slot, as they were started
  HostMemory* memory_ = nullptr;
};

}  // namespace hvd
