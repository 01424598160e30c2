// Finds two ranks that wait for each other: one in a call in program order or in a step, the other
// in another one, or for what it has submitted asynchronously. Pure.
//
// Of ranks that are slow, stopped, or called in other orders than usual none is found, whatever
// they said last and how long ago: the submitter waits for something that the caller has not asked
// for, and has not made the caller's call, without which the caller does not go on. Only another
// thread of the caller's could still ask for it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "runtime/engine/coordinator.h"

namespace hvd {

// What a rank's init thread has begun: calls in program order, steps of all bucket lists.
struct Begun {
  uint64_t calls = 0;
  uint32_t steps = 0;
};

// What a rank's init thread waits for: LogWords::waits_for, waits_in and steps.
struct RankWait {
  uint64_t name = 0, number = 0;
  uint32_t steps = 0;

  friend bool operator==(const RankWait&, const RankWait&) = default;
};

struct CrossedWaits {
  std::string name;
  int caller = 0, submitter = 0;

  friend bool operator==(const CrossedWaits&, const CrossedWaits&) = default;
};

// `waits` by rank: said by then, at the latest, when it was heard that others are missing in
// `waiting`, and not taken back when it was heard who has asked.
std::optional<CrossedWaits> find_crossed_waits(std::span<const WaitingName> waiting,
                                               std::span<const RankWait> waits);

struct CrossedStep {
  int stepper = 0, other = 0;
  std::string name = {};  // that the other waits for in the log; empty: it is in a call or a step

  friend bool operator==(const CrossedStep&, const CrossedStep&) = default;
};

// A rank in a step that another one comes to only behind what it waits in, and the first comes to
// only behind that step: a call, another list's step, or what it has asked for under a name and the
// first has not. All hold up the init thread, and but for the last, where `waits` are as above,
// none is ever old: what a rank has begun before what does not change any more.
std::optional<CrossedStep> find_crossed_step(std::span<const WaitingName> waiting,
                                             std::span<const RankWait> waits);

}  // namespace hvd
