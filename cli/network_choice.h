// At which of its addresses a host of a job is reached: what it offers, who tries which, and the
// choice.
//
// Pure. Each host has one address for all others, and hosts may have theirs on networks of
// different names: what counts is who was reached there.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/interfaces.h"

namespace hvd {

// An address that a host offers, and what came of the tries to reach the host there.
struct Offer {
  InterfaceAddress at;
  bool by_ssh = false;        // the host's ssh is reached there; of hvdrun's own, ssh leaves there
  int awaited = 0;            // tries whose end is not known yet
  int reached = 0;            // that found the host
  int failed = 0;             // that did not
  int64_t round_trip_us = 0;  // the longest
  std::string failure = {};   // the first: "not from h1: Connection refused"
  // How long kCarriedBytes took from one other host; asked where links say that they are faster,
  // and again, of both, where one looks slower: a busy host's processes wait for CPUs.
  enum class Carry { kNotAsked, kAwaited, kKnown, kFailed } carry = Carry::kNotAsked;
  int64_t carried_us = 0;          // the last time
  int carries = 0;                 // tries
  bool looked_slower = false;      // the time before
  std::string carry_trouble = {};  // of kFailed
};

// What a host with these interfaces offers: that of ssh first, then the fastest, equal ones in
// their order; of `networks` if there are any (JobSpec::networks), else whatever may lead there. At
// most kOffersMax.
inline constexpr size_t kOffersMax = 8;
std::vector<Offer> offers_of(std::span<const InterfaceAddress> interfaces,
                             std::span<const std::string> networks, std::string_view by_ssh);

// By host, the hosts that it tries to reach, by their numbers from 0: all others up to kAllPairsMax
// hosts. Of more those at distances of 1, 2, 4, … both ways, which are the ones that collectives
// link (a ring, recursive doubling), and `first` all others and they it: libhvd connects them from
// there, programs without it to there. All pairs would be too many: a try costs both agents 0.1 to
// 0.2 ms, and one kernel, whose containers the hosts may be, knows 1,024 neighbours: past that,
// tries are lost.
inline constexpr int kAllPairsMax = 16;
std::vector<std::vector<int>> who_tries_whom(int hosts, int first);
// All others, the farthest first, and those of one distance together: one kernel's neighbours then
// are, too.
std::vector<std::vector<int>> who_is_left(int hosts, int first);
// Up to so many hosts all have to reach each other where the link is faster than the first offer's,
// ssh's as a rule, which is left for nothing less.
inline constexpr int kFasterPairsMax = 64;
bool is_good(const Offer& offer);  // all who tried have reached the host there
bool is_faster(const Offer& offer, const Offer& first);  // by what cards say of themselves
// But far less comes through than there, as behind a switch that is slower than the card.
bool carries_less(const Offer& offer, const Offer& first);

// The best offer at which all who tried reached the host: on the fastest link, then where the round
// trip is not far longer, then ssh's, then the first. ssh's link counts as one of kAssumedMbps
// where its speed is not known, others as slower than any; one that says it is faster, and carries
// less, as slower. What is awaited counts as lost if nobody `waits` for it any longer.
inline constexpr int kAssumedMbps = 10'000;
struct Choice {
  int place = -1;      // -1: there is none yet
  bool final = false;  // nothing that is awaited can change it
};
Choice choose(std::span<const Offer> offers, bool waits);

// Why it was `place`.
enum class Reason {
  kAsked,
  kSsh,
  kOthersSlower,
  kReached,
  kFaster,
  kSshFailed,
  kSshSilent,
  kNearer
};
Reason reason_of(std::span<const Offer> offers, int place, bool asked_for);
// The same in words that go on "…, ": "where ssh reaches it", "on a faster link, 40 beside 10
// Gbit/s". `here`: the host is hvdrun's own.
std::string why_chosen(std::span<const Offer> offers, int place, bool asked_for, bool here = false);
// "no address of h2 is reached by all other hosts: 10.77.0.2 (eth0) not from h1: Connection
// refused; …", and what to do.
std::string none_reached(const std::string& host, std::span<const Offer> offers);

}  // namespace hvd
