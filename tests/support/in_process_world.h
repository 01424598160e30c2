// Several hosts in one process, each with its own control block, memory and agent; links between
// their ranks are TCP connections on loopback.
//
// What agents tell each other through hvdrun is told here at once: deaths and trouble.
// Ranks are numbered host by host.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/support/in_process_peers.h"

namespace hvd {

// Two ends of a TCP connection on loopback, non-blocking.
std::pair<UniqueFd, UniqueFd> connected_pair();
// A link of whose round trips nothing is known: it is taken for far.
std::pair<UniqueFd, UniqueFd> connected_far();

class InProcessWorld final : private InProcessRelay {
 public:
  explicit InProcessWorld(const std::vector<int>& ranks_per_host, uint32_t epoch = 1);
  ~InProcessWorld() override;  // after all Peers are gone

  int size() const { return static_cast<int>(host_of_.size()); }
  int hosts() const { return static_cast<int>(hosts_.size()); }
  InProcessHost& host(int index) { return *hosts_[static_cast<size_t>(index)]; }
  InProcessHost& host_of(int rank) { return host(host_of_[static_cast<size_t>(rank)]); }
  int local_rank(int rank) const;

  std::unique_ptr<Peers> peers(int rank) { return host_of(rank).peers(local_rank(rank)); }
  void declare_dead(int rank) { host_of(rank).declare_dead(local_rank(rank)); }
  void stop(int rank) { host_of(rank).stop(local_rank(rank)); }

  // From now on links are refused with this text.
  void refuse_links(const std::string& reason);
  // Makes each link, the lower rank's end first; connected_pair() unless set before any rank
  // starts.
  using MakeLink = std::function<std::pair<UniqueFd, UniqueFd>()>;
  void make_links_by(MakeLink make) { make_link_ = std::move(make); }
  // Called with a rank's links as it takes them, in its thread; set before any rank starts.
  using LinksTaken = std::function<void(uint32_t id, int rank, std::span<const UniqueFd> in_order)>;
  void on_links(LinksTaken taken) { links_taken_ = std::move(taken); }

 private:
  // By id and the two ranks, the lower one first.
  using LinkKey = std::tuple<uint32_t, int, int>;

  void relay_death(int world_rank) override;
  void relay_trouble(int host, const std::string& text) override;
  void request_links(uint32_t id, int world_rank, std::span<const int> ranks) override;
  std::optional<std::vector<UniqueFd>> take_links(uint32_t id, int world_rank) override;

  // Constant after construction.
  std::vector<std::unique_ptr<InProcessHost>> hosts_;
  std::vector<int> host_of_;  // by rank
  std::vector<int> first_rank_;
  LinksTaken links_taken_;
  MakeLink make_link_ = connected_pair;

  std::mutex mutex_;
  // guarded by mutex_
  std::map<LinkKey, std::pair<UniqueFd, UniqueFd>> links_;  // the lower rank's end first
  std::map<std::pair<uint32_t, int>, std::vector<int>> requests_;
  std::string refusal_;
};

}  // namespace hvd
