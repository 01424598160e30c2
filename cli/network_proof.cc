#include "cli/network_proof.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "cli/messages.h"
#include "cli/quoted.h"
#include "runtime/base/utf8.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

// For offers that look better and are silent: who is there answers within a round trip.
constexpr milliseconds kForBetter{250};
// For how much comes through one that looks better: 4 MiB take 336 ms at 100 Mbit/s.
constexpr milliseconds kForCarried{1000};
// For words of an agent whose own patience is over, from when hvdrun sees that it is: what came
// while hvdrun was stopped has to be read first.
constexpr milliseconds kForWords{1000};
constexpr int kNamesMax = 3;
// What a process has to wait for a CPU may make one try longer, hardly several.
constexpr int kCarriesMost = 3;
constexpr int64_t kCarriedUsMost = 3'600'000'000;  // an hour: no agent's patience is longer

void note_failure(Offer& offer, const std::string& words) {
  if (offer.failed++ == 0) offer.failure = words;
}

// "h1 at 10.0.0.1 (eth0), where ssh reaches it; h2 at 10.0.0.2 (eth0)"
std::string group_text(const std::vector<const NetworkProof::Place*>& places) {
  std::string text;
  int count = 0;
  for (const NetworkProof::Place* one : places) {
    if (++count > kNamesMax) continue;
    text += (count == 1 ? "" : "; ") + one->name + " at " + one->at.address + " (" +
            one->at.interface + ")";
    if (count == 1) text += ", " + one->why;
  }
  if (count > kNamesMax) text += "; and " + std::to_string(count - kNamesMax) + " more hosts so";
  return text;
}

}  // namespace

void NetworkProof::begin(std::vector<Party> parties, int first, bool asked_for,
                         Clock::duration patience, TimePoint now) {
  parties_ = std::move(parties);
  asked_for_ = asked_for;
  patience_ = patience;
  asked_ = now;
  int at = 0;
  for (size_t i = 0; i < parties_.size(); ++i)
    if (parties_[i].host == first) at = int(i);
  const int hosts = int(parties_.size());
  const auto tries = who_tries_whom(hosts, at);
  for (int who = 0; who < hosts; ++who)
    for (const int whom : tries[size_t(who)]) await(who, whom, false);
  if (hosts > kFasterPairsMax) return;
  const auto left = who_is_left(hosts, at);
  for (int who = 0; who < hosts; ++who)
    for (const int whom : left[size_t(who)]) await(who, whom, true);
}

void NetworkProof::await(int who, int whom, bool only_faster) {
  std::vector<Offer>& offers = parties_[size_t(whom)].offers;
  for (int place = 0; place < int(offers.size()); ++place) {
    if (only_faster && !is_faster(offers[size_t(place)], offers.front())) continue;
    ++offers[size_t(place)].awaited;
    awaited_.emplace(who, whom, place);
  }
}

NetworkProof::Party* NetworkProof::party_of(int host) {
  for (Party& one : parties_)
    if (one.host == host) return &one;
  return nullptr;
}

void NetworkProof::note(int host, const proto::Listening& listening, TimePoint now) {
  Party* party = party_of(host);
  if (party == nullptr || !party->places.empty()) return;
  for (size_t place = 0; place < party->offers.size(); ++place) {
    const ListensAt there = listens_at(listening, int(place), party->offers[place].at.address);
    party->places.push_back(there.address);
    if (there.address.empty()) note_failure(party->offers[place], there.trouble);
  }
  if (began_ || std::ranges::any_of(parties_, is_silent)) return;
  began_ = now;
  tell_all_to_try();
}

void NetworkProof::tell_all_to_try() {
  std::vector<proto::ToAgent> orders(parties_.size(), try_order());
  for (const auto& [who, whom, place] : awaited_) {  // those of one peer are together
    proto::TryToReach& reach = *orders[size_t(who)].mutable_try_to_reach();
    const Party& other = parties_[size_t(whom)];
    if (reach.peers().empty() || reach.peers().rbegin()->number() != other.host) {
      proto::TryToReach::Peer& peer = *reach.add_peers();
      peer.set_number(other.host);
      peer.set_name(other.name);
      for (size_t i = 0; i < other.places.size(); ++i) peer.add_addresses();
    }
    reach.mutable_peers()->rbegin()->set_addresses(place, other.places[size_t(place)]);
  }
  for (size_t who = 0; who < parties_.size(); ++who) send_(parties_[who].host, orders[who]);
}

// What comes through depends on the host's link more than on who sends: one for each, so that each
// link has one to carry for, and one to carry to.
int NetworkProof::carrier_to(int whom) const {
  const int hosts = int(parties_.size());
  return (whom + hosts - 1) % hosts;
}

// Of links that say they are faster than the first, and of that, once all who try have reached the
// host there: who is still trying wants to know the round trip of an idle link. What looks slower
// than it says is compared again.
void NetworkProof::ask_how_much_comes_through(int whom) {
  using Carry = Offer::Carry;
  Party& party = parties_[size_t(whom)];
  if (party.offers.empty()) return;
  const Offer& first = party.offers.front();
  std::vector<bool> asks(party.offers.size());
  bool any_faster = false, any_again = false;
  for (size_t place = 1; place < party.offers.size(); ++place) {
    Offer& one = party.offers[place];
    if (!is_faster(one, first) || !is_good(one)) continue;
    any_faster = true;
    const bool again =
        one.carry == Carry::kKnown && carries_less(one, first) && one.carries < kCarriesMost;
    asks[place] = again || one.carry == Carry::kNotAsked;
    one.looked_slower |= again;
    any_again |= again;
  }
  asks[0] = any_again || (any_faster && is_good(first) && first.carry == Carry::kNotAsked);
  if (std::ranges::find(asks, true) == asks.end()) return;
  proto::ToAgent order = try_order();
  proto::TryToReach::Peer& peer = *order.mutable_try_to_reach()->add_peers();
  peer.set_number(party.host);
  peer.set_name(party.name);
  for (size_t place = 0; place < asks.size(); ++place) {
    peer.add_carry(asks[place] ? party.places[place] : "");
    if (!asks[place]) continue;
    party.offers[place].carry = Carry::kAwaited;
    ++party.offers[place].carries;
  }
  send_(parties_[size_t(carrier_to(whom))].host, order);
}

void NetworkProof::note_carried(Party& party, const proto::Reached::Try& one) {
  if (one.offer() < 0 || one.offer() >= int(party.offers.size())) return;
  Offer& offer = party.offers[size_t(one.offer())];
  if (offer.carry != Offer::Carry::kAwaited) return;
  offer.carry = one.trouble().empty() ? Offer::Carry::kKnown : Offer::Carry::kFailed;
  offer.carry_trouble = printable(head_of(one.trouble(), kReasonMax));
  if (one.trouble().empty())
    offer.carried_us = std::clamp<int64_t>(one.carried_us(), 1, kCarriedUsMost);
}

proto::ToAgent NetworkProof::try_order() const {
  proto::ToAgent order;
  order.mutable_try_to_reach()->set_patience_ms(
      int(std::chrono::duration_cast<milliseconds>(patience_).count()));
  return order;
}

void NetworkProof::note(int host, const proto::Reached& reached) {
  if (!began_) return;
  for (int who = 0; who < int(parties_.size()); ++who) {
    if (parties_[size_t(who)].host != host) continue;
    for (const proto::Reached::Try& one : reached.tries()) {
      Party* other = party_of(one.peer());
      if (other == nullptr) continue;
      const int whom = int(other - parties_.data());
      if (!one.carries())
        note_try(who, whom, one);
      else if (carrier_to(whom) == who)
        note_carried(*other, one);
      ask_how_much_comes_through(whom);
    }
  }
}

void NetworkProof::note_try(int who, int whom, const proto::Reached::Try& one) {
  if (awaited_.erase({who, whom, one.offer()}) == 0) return;
  Offer& offer = parties_[size_t(whom)].offers[size_t(one.offer())];
  --offer.awaited;
  if (one.trouble().empty()) {
    ++offer.reached;
    offer.round_trip_us = std::max(offer.round_trip_us, one.round_trip_us());
  } else {
    note_failure(offer, "not from " + parties_[size_t(who)].name + ": " +
                            printable(head_of(one.trouble(), kReasonMax)));
  }
}

std::optional<NetworkProof::Verdict> NetworkProof::decide(TimePoint now) {
  if (!going()) return {};
  if (began_ && !over_at_ && now >= *began_ + patience_) over_at_ = now + kForWords;
  const bool over = over_at_ && now >= *over_at_;
  bool all_found = true, all_final = true;
  for (const Party& one : parties_) {
    const Choice choice = choose(one.offers, !over);
    if (choice.place < 0 && choice.final) {
      Verdict verdict{{}, none_reached(one.name, one.offers)};
      parties_.clear();
      return verdict;
    }
    all_found = all_found && choice.place >= 0;
    all_final = all_final && choice.final;
  }
  if (!all_found) return {};
  if (!found_) found_ = now;
  if (!all_final && now < *found_ + for_better()) return {};
  Verdict verdict;
  const std::vector<Party> parties = std::exchange(parties_, {});
  for (const Party& one : parties) {
    const int place = choose(one.offers, false).place;
    const Offer& offer = one.offers[size_t(place)];
    const Reason reason = reason_of(one.offers, place, asked_for_);
    verdict.places.push_back({one.host, one.name, offer.at, one.places[size_t(place)], reason,
                              one.here, why_chosen(one.offers, place, asked_for_, one.here),
                              reason != Reason::kOthersSlower && !asked_for_ &&
                                  (offer.by_ssh || !one.offers.front().by_ssh),
                              offer.reached + 1 == int(parties.size())});
  }
  return verdict;
}

std::optional<TimePoint> NetworkProof::next_deadline() const {
  if (!going() || !began_) return {};
  const TimePoint until = over_at_.value_or(*began_ + patience_);
  return found_ ? std::min(until, *found_ + for_better()) : until;
}

Clock::duration NetworkProof::for_better() const {
  const bool carries = std::ranges::any_of(parties_, [](const Party& party) {
    return std::ranges::any_of(party.offers, [&](const Offer& one) {
      return is_faster(one, party.offers.front()) && one.carry == Offer::Carry::kAwaited &&
             is_good(one);
    });
  });
  return carries ? kForCarried : kForBetter;
}

std::vector<AwaitedHost> NetworkProof::progress(TimePoint now, const std::set<int>& away) const {
  char age[32];
  std::snprintf(age, sizeof age, ", for %.1f s",
                std::chrono::duration<double>(now - began_.value_or(asked_)).count());
  const std::string unheard =
      began_ ? age : std::string(age) + "; its agent has not said where it listens";
  std::vector<AwaitedHost> hosts;
  for (const Party& one : parties_)
    if (began_ ? choose(one.offers, true).place < 0 : is_silent(one) && !away.contains(one.host))
      hosts.push_back({one.name, "proving network", unheard});
  return hosts;
}

std::string network_note(const std::vector<NetworkProof::Place>& places) {
  const bool as_ssh = std::ranges::all_of(places, &NetworkProof::Place::as_ssh);
  // ssh leaves hvdrun's own host and reaches the others.
  std::map<std::pair<bool, Reason>, std::vector<const NetworkProof::Place*>> groups;
  std::vector<std::pair<bool, Reason>> order;
  for (const NetworkProof::Place& one : places) {
    if (one.as_ssh && !as_ssh) continue;
    const std::pair key(one.here && one.reason == Reason::kSsh, one.reason);
    if (groups[key].empty()) order.push_back(key);
    groups[key].push_back(&one);
  }
  std::string text = "other hosts reach ";
  for (const auto& key : order)
    text += (key == order.front() ? "" : "; ") + group_text(groups[key]);
  if (!std::ranges::all_of(places, &NetworkProof::Place::by_all))
    text += "; tried by some of the others each, by the rest while ranks run";
  return text;
}

}  // namespace hvd
