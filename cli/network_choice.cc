#include "cli/network_choice.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "rendezvous/link_handshake.h"

namespace hvd {
namespace {

// Shorter than that, and twice the shortest, a round trip tells of the hosts' load, not of the way;
// nor does what some MiB take.
constexpr int64_t kFarUs = 2000, kCarryUs = 10'000;

bool is_open(const Offer& offer) { return offer.awaited > 0 && offer.failed == 0; }

// Smaller is better. Of what is awaited the best is assumed.
using Rank = std::tuple<int, bool, bool, size_t>;

// Where nothing is known of ssh's link, as on a virtual machine, another is not called faster for
// having some speed; but a card that is faster than nearly all of those is.
int speed_of(const Offer& offer) {
  return offer.by_ssh && offer.at.speed_mbps == 0 ? kAssumedMbps : offer.at.speed_mbps;
}

// As above, unless what came through says otherwise.
int proven_speed(std::span<const Offer> offers, size_t place, bool waits) {
  const Offer &offer = offers[place], &first = offers.front();
  if (!is_faster(offer, first)) return speed_of(offer);
  const bool lost = !waits && offer.carry == Offer::Carry::kAwaited &&
                    (first.carry == Offer::Carry::kKnown || offer.looked_slower);
  return lost || carries_less(offer, first) ? speed_of(first) - 1 : speed_of(offer);
}

Rank rank_of(std::span<const Offer> offers, size_t place, bool waits) {
  const Offer& offer = offers[place];
  const int speed = proven_speed(offers, place, waits);
  int64_t nearest = std::numeric_limits<int64_t>::max() / 4;
  for (size_t i = 0; i < offers.size(); ++i) {
    if (proven_speed(offers, i, waits) != speed) continue;
    if (is_good(offers[i])) nearest = std::min(nearest, offers[i].round_trip_us);
    if (waits && is_open(offers[i])) nearest = 0;
  }
  const bool far = is_good(offer) && offer.round_trip_us > kFarUs + 2 * nearest;
  return {-speed, far, !offer.by_ssh, place};
}

std::string text_of(const Offer& offer) {
  return offer.at.address + " (" + offer.at.interface + ")";
}

// "25 Gbit/s", "100 Mbit/s", "unknown", "a tunnel".
std::string speed_text(int mbps) {
  if (mbps == 0) return "unknown";
  if (mbps == kTunnelMbps) return "a tunnel";
  char text[32];
  if (mbps < 1000)
    std::snprintf(text, sizeof text, "%d Mbit/s", mbps);
  else
    std::snprintf(text, sizeof text, "%g Gbit/s", double(mbps) / 1000);
  return text;
}

std::string milliseconds_text(int64_t us) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f ms", double(us) / 1000);
  return text;
}

// Over which all reached the host, and less comes through than its card says; null: there is none.
const Offer* slower_in_fact(std::span<const Offer> offers) {
  const Offer& first = offers.front();
  for (size_t place = 1; place < offers.size(); ++place)
    if (is_good(offers[place]) && is_faster(offers[place], first) &&
        proven_speed(offers, place, false) <= speed_of(first))
      return &offers[place];
  return nullptr;
}

// "10.77.0.1 (ib0), 40 Gbit/s by its own word, is slower: 4 MiB took 1200.0 ms there, 1.5 ms here".
std::string why_slower(const Offer& slower, const Offer& first) {
  const std::string some = std::to_string(kCarriedBytes >> 20) + " MiB ";
  const std::string text = text_of(slower) + ", " + speed_text(slower.at.speed_mbps) +
                           " by its own word, is slower: " + some;
  if (slower.carry == Offer::Carry::kFailed)
    return text + "did not come through: " + slower.carry_trouble;
  if (slower.carried_us == 0) return text + "did not come through in time";
  return text + "took " + milliseconds_text(slower.carried_us) + " there, " +
         milliseconds_text(first.carried_us) + " here";
}

}  // namespace

std::vector<Offer> offers_of(std::span<const InterfaceAddress> interfaces,
                             std::span<const std::string> networks, std::string_view by_ssh) {
  std::vector<InterfaceAddress> fit = find_network(interfaces, networks);
  if (networks.empty())
    std::copy_if(interfaces.begin(), interfaces.end(), std::back_inserter(fit),
                 [&](const InterfaceAddress& one) {
                   // Link-local ones are on many hosts that are not each other's neighbours.
                   return may_lead_here(one.address) &&
                          (one.address == by_ssh || !one.address.starts_with("169.254."));
                 });
  std::vector<Offer> offers;
  for (const InterfaceAddress& one : fit) offers.push_back({one, one.address == by_ssh});
  std::stable_sort(offers.begin(), offers.end(), [](const Offer& one, const Offer& other) {
    return std::pair(!one.by_ssh, -one.at.speed_mbps) <
           std::pair(!other.by_ssh, -other.at.speed_mbps);
  });
  if (offers.size() > kOffersMax) offers.resize(kOffersMax);
  return offers;
}

std::vector<std::vector<int>> who_tries_whom(int hosts, int first) {
  std::vector<std::vector<int>> tries;
  for (int host = 0; host < hosts; ++host) {
    std::set<int> others{first};
    const bool all = hosts <= kAllPairsMax || host == first;
    for (int distance = 1; distance < hosts; distance = all ? distance + 1 : 2 * distance) {
      others.insert((host + distance) % hosts);
      others.insert((host + hosts - distance) % hosts);
    }
    others.erase(host);
    tries.emplace_back(others.begin(), others.end());
  }
  return tries;
}

std::vector<std::vector<int>> who_is_left(int hosts, int first) {
  std::vector<std::vector<int>> left = who_tries_whom(hosts, first);
  for (int host = 0; host < hosts; ++host) {
    std::vector<int>& others = left[size_t(host)];  // who have been tried, in order, so far
    const std::vector<int> tried = std::exchange(others, {});
    for (int distance = hosts / 2; distance > 0; --distance)
      for (const int other : std::set{(host + distance) % hosts, (host + hosts - distance) % hosts})
        if (!std::ranges::binary_search(tried, other)) others.push_back(other);
  }
  return left;
}

bool is_good(const Offer& offer) { return offer.awaited == 0 && offer.failed == 0; }

bool is_faster(const Offer& offer, const Offer& first) { return speed_of(offer) > speed_of(first); }

bool carries_less(const Offer& offer, const Offer& first) {
  using Carry = Offer::Carry;
  if (offer.carry != Carry::kKnown) return offer.carry == Carry::kFailed;
  return first.carry == Carry::kKnown && offer.carried_us > kCarryUs + 2 * first.carried_us;
}

Choice choose(std::span<const Offer> offers, bool waits) {
  std::optional<size_t> best;
  for (size_t place = 0; place < offers.size(); ++place)
    if (is_good(offers[place]) &&
        (!best || rank_of(offers, place, waits) < rank_of(offers, *best, waits)))
      best = place;
  Choice choice{best ? int(*best) : -1, true};
  for (size_t place = 0; place < offers.size() && waits; ++place)
    if (is_open(offers[place]) &&
        (!best || rank_of(offers, place, waits) < rank_of(offers, *best, waits)))
      choice.final = false;
  const auto others =
      std::ranges::count_if(offers, [](const Offer& one) { return is_good(one) || is_open(one); });
  if (waits && best && others > 1 && is_faster(offers[*best], offers.front()) &&
      offers[*best].carry == Offer::Carry::kAwaited)
    choice.final = false;
  return choice;
}

Reason reason_of(std::span<const Offer> offers, int place, bool asked_for) {
  const Offer& chosen = offers[size_t(place)];
  const Offer& ssh = offers.front();
  if (asked_for) return Reason::kAsked;
  if (chosen.by_ssh)
    return slower_in_fact(offers) != nullptr ? Reason::kOthersSlower : Reason::kSsh;
  if (!ssh.by_ssh) return Reason::kReached;  // a name for it that it does not know itself
  if (proven_speed(offers, size_t(place), false) > speed_of(ssh)) return Reason::kFaster;
  if (ssh.failed > 0) return Reason::kSshFailed;
  return ssh.awaited > 0 ? Reason::kSshSilent : Reason::kNearer;
}

std::string why_chosen(std::span<const Offer> offers, int place, bool asked_for, bool here) {
  const Offer& chosen = offers[size_t(place)];
  const Offer& ssh = offers.front();
  const std::string by_ssh = here ? "where ssh leaves it" : "where ssh reaches it";
  const std::string there = text_of(ssh) + ", " + by_ssh;
  switch (reason_of(offers, place, asked_for)) {
    case Reason::kAsked:
      return "by --network-interface";
    case Reason::kSsh:
      return by_ssh;
    case Reason::kOthersSlower:
      return by_ssh + ", since " + why_slower(*slower_in_fact(offers), ssh);
    case Reason::kReached:
      return "where all hosts reach it";
    case Reason::kFaster:
      return "on a faster link (" + speed_text(chosen.at.speed_mbps) + ") than at " + there + " (" +
             speed_text(ssh.at.speed_mbps) +
             (ssh.at.speed_mbps == 0 ? ", taken for " + speed_text(kAssumedMbps) : "") + ")";
    case Reason::kSshFailed:
      return "since not all hosts reach it at " + there + ": " + ssh.failure;
    case Reason::kSshSilent:
      return "since not all hosts have reached it yet at " + there;
    case Reason::kNearer:
      break;
  }
  return "nearer (" + milliseconds_text(chosen.round_trip_us) + ") than at " + there + " (" +
         milliseconds_text(ssh.round_trip_us) + ")";
}

std::string none_reached(const std::string& host, std::span<const Offer> offers) {
  if (offers.empty()) return host + " has no address that other hosts could reach";
  std::string text = "no address of " + host + " is reached by all other hosts: ";
  for (size_t i = 0; i < offers.size(); ++i)
    text += (i == 0 ? "" : "; ") + text_of(offers[i]) + " " +
            (offers[i].failed > 0 ? offers[i].failure : "was not answered in time");
  return text + "; open a way between them, or name another network (--network-interface)";
}

}  // namespace hvd
