// Tries the pairs of hosts that the proof of the network left out: of many, and while ranks run.
//
// libhvd's links are proven before (who_tries_whom()), but programs that connect all hosts by
// themselves, as torch's gloo and NCCL do, need every pair. Each host tries one other at a time, at
// the address that was chosen, and lets go of it at once: where all are containers of one kernel,
// which knows 1,024 neighbours, it can forget those again. Lives on the supervisor's loop.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/network_proof.h"
#include "proto/rendezvous.pb.h"
#include "runtime/base/deadline.h"

namespace hvd {

class OtherPairs {
 public:
  explicit OtherPairs(NetworkProof::Send send) : send_(std::move(send)) {}

  // `first`: rank 0's host. Where all have reached a host (Place::by_all) nothing is left to try.
  void begin(std::vector<NetworkProof::Place> places, int first, Clock::duration patience,
             TimePoint now);
  // Its ranks have ended, before others' maybe: it is not there any more.
  void leave(int host) { gone_.insert(host); }
  // A line for each pair that did not reach each other twice. What is not asked here is a late word
  // of the proof, about an address that was not chosen.
  std::vector<std::string> note(int host, const proto::Reached& reached, TimePoint now);
  std::optional<TimePoint> next_deadline() const { return due_; }
  void tick(TimePoint now);

 private:
  const NetworkProof::Place* place_of(int host) const;

  const NetworkProof::Send send_;
  std::vector<NetworkProof::Place> places_;
  std::vector<std::vector<int>> left_;  // by place, whom it has to try, the last one first
  Clock::duration patience_{};
  std::optional<TimePoint> due_;         // the next tries
  std::set<int> gone_;                   // hosts
  std::set<std::pair<int, int>> asked_;  // who tries whom, and has not told
  std::set<std::pair<int, int>> again_;  // who tries whom once more
  std::set<std::pair<int, int>> told_;   // pairs of hosts, the lower number first
};

}  // namespace hvd
