// hvdrun's part in the proof of the network: tells the agents of several hosts to try all that the
// others offer, hears who was reached, and decides at which address each host is.
//
// Each agent listens at all that its host offers (ListenForLinks), then tries all that the others
// offer, at once (TryToReach); Reached says what came of each try, as it comes. When it is decided
// the listeners elsewhere are closed (LinksAt), before any worker starts.
//
// A try is the handshake of links (rendezvous/link_handshake): who is called shows that it knows
// the job's secret and is the agent of that very host. Whoever else has the same address, as every
// host has that of its docker0, cannot. Lives on the supervisor's loop.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "cli/awaited_hosts.h"
#include "cli/network_choice.h"
#include "proto/rendezvous.pb.h"
#include "runtime/base/deadline.h"

namespace hvd {

class NetworkProof {
 public:
  struct Party {
    int host = 0;      // its number among the job's
    std::string name;  // for texts
    std::vector<Offer> offers;
    bool here = false;                     // hvdrun's own
    std::vector<std::string> places = {};  // by offer, where its agent listens: with a port
  };
  struct Place {
    int host = 0;
    std::string name;
    InterfaceAddress at;
    std::string listens;  // with the port
    Reason reason = Reason::kSsh;
    bool here = false;  // hvdrun's own
    std::string why;
    bool as_ssh = true;  // where ssh reaches the host, if that is known, and nobody asked for more
    bool by_all = true;  // every other host has reached it there
  };
  struct Verdict {
    std::vector<Place> places;
    std::string trouble;  // why there are none
  };
  using Send = std::function<void(int host, const proto::ToAgent& order)>;

  explicit NetworkProof(Send send) : send_(std::move(send)) {}

  // Agents have been told to listen at what their hosts offer (ListenForLinks), in this order.
  // `first`: rank 0's host. `patience`: for an answer of an address, once all agents listen, which
  // is not this one's to wait for.
  void begin(std::vector<Party> parties, int first, bool asked_for, Clock::duration patience,
             TimePoint now);
  bool going() const { return !parties_.empty(); }
  void note(int host, const proto::Listening& listening, TimePoint now);
  // What nobody asked for is dropped.
  void note(int host, const proto::Reached& reached);

  // Once: when it is decided, of all that has been heard, so not between words that came together.
  // Every offer that could be better is waited for, for a short while
  // from when there is one for each host.
  std::optional<Verdict> decide(TimePoint now);
  std::optional<TimePoint> next_deadline() const;
  // Hosts that have no address yet; before all agents listen those that do not, which is what the
  // others wait for. `away`: has not reached hvdrun yet.
  std::vector<AwaitedHost> progress(TimePoint now, const std::set<int>& away) const;

 private:
  Party* party_of(int host);
  void await(int who, int whom, bool only_faster);
  void tell_all_to_try();
  void note_try(int who, int whom, const proto::Reached::Try& one);
  void note_carried(Party& party, const proto::Reached::Try& one);
  void ask_how_much_comes_through(int whom);
  int carrier_to(int whom) const;
  proto::ToAgent try_order() const;
  Clock::duration for_better() const;
  static bool is_silent(const Party& one) { return one.places.empty() && !one.offers.empty(); }

  const Send send_;
  std::vector<Party> parties_;
  // Tries whose end is not known: who, whom (by their places in parties_), at which offer.
  std::set<std::tuple<int, int, int>> awaited_;
  bool asked_for_ = false;
  Clock::duration patience_{};
  TimePoint asked_{};                 // all were told to listen
  std::optional<TimePoint> began_;    // all were told to try
  std::optional<TimePoint> over_at_;  // patience was seen to be over
  std::optional<TimePoint> found_;    // there is an address for each host
};

// Where hosts are reached and why, in one line: if some are not reached where ssh reaches them,
// then of those; hosts with one reason together, with the first one's words. Pure.
std::string network_note(const std::vector<NetworkProof::Place>& places);

}  // namespace hvd
