// hvdrun's part in an epoch whose ranks are on several hosts: tells each agent who its members are
// and where the agents of the others listen, passes on what each has to say of its ranks, and keeps
// the Store of them all.
//
// Lives on the supervisor's loop. Ranks are as they were started. What is said of another epoch
// than the one that was started last is dropped. Deaths go out by flush(), in the owner's next
// turn: ranks, and hosts, mostly end together.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "proto/rendezvous.pb.h"
#include "rendezvous/membership.h"
#include "rendezvous/store_service.h"
#include "runtime/base/deadline.h"

namespace hvd {

class EpochRelay {
 public:
  using Send = std::function<void(int host, const proto::ToAgent& order)>;
  explicit EpochRelay(Send send) : send_(std::move(send)) {}

  // Where its agent listens for links: the first place counts.
  void note(int host, const proto::Listening& listening) { listening_[host] = listening; }
  void start(const action::StartEpoch& start);
  void note(int host, const proto::Died& died);
  // True: it is the first that is heard of what broke the epoch.
  bool note(int host, const proto::Broken& broken);
  void note(int host, const proto::StoreQuestion& question, TimePoint now);
  void note_end(int rank);
  // Its agent is gone, and why: nobody else will say what became of its ranks. The first time
  // counts.
  void lose(int host, const std::string& why);
  void flush();

  // Of waits in the Store.
  std::optional<TimePoint> deadline() const { return store_ ? store_->deadline() : std::nullopt; }
  void tick(TimePoint now) {
    if (store_) store_->tick(now);
  }

 private:
  struct Place {
    int host, rank;
  };
  struct News {
    std::vector<int> ranks;
    std::set<int> from;  // hosts
  };
  void start_store();
  bool is_member(int host, int rank) const;
  void tell_all_but(const std::set<int>& hosts, const proto::ToAgent& order) const;

  const Send send_;
  std::map<int, proto::Listening> listening_;  // for links, by host
  uint32_t epoch_ = 0;
  std::vector<Place> places_;            // by rank of its world
  std::map<int, int> numbers_;           // ranks of its world, by rank
  std::set<int> hosts_;                  // that have members
  std::set<int> gone_;                   // ranks that ended, or died
  std::set<int> dead_;                   // that others were, or are to be, told of
  bool broken_ = false;                  // all have been told, or are with `died_`
  News died_;                            // since the last flush()
  std::unique_ptr<StoreService> store_;  // of a world on several hosts
};

}  // namespace hvd
