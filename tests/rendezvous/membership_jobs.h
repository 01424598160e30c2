// Jobs for the tests of Membership.
#pragma once

#include <chrono>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/membership.h"

namespace hvd {

inline constexpr TimePoint kStart{};

inline Membership job(int hosts, int slots_each, int size_min = 0) {
  std::vector<Host> all;
  for (int i = 0; i < hosts; ++i) all.push_back({"host" + std::to_string(i), "", slots_each});
  return {all,
          assign_slots(all, hosts * slots_each),
          {.size_min = size_min, .start_timeout = std::chrono::seconds(30)},
          kStart};
}

template <typename T>
std::vector<T> all_of(const std::vector<Action>& actions) {
  std::vector<T> found;
  for (const Action& action : actions)
    if (const T* one = std::get_if<T>(&action)) found.push_back(*one);
  return found;
}

// One host whose workers run.
inline Membership running(int size, int size_min = 0) {
  Membership membership = job(1, size, size_min);
  membership.begin(kStart);
  membership.apply(event::AgentJoined{0}, kStart);
  event::WorkersStarted started;
  for (int rank = 0; rank < size; ++rank) started.ranks.push_back(rank);
  membership.apply(started, kStart);
  return membership;
}

}  // namespace hvd
