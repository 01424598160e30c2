// Finds two ranks that wait for each other: one in a call in program order, the other for what it
// has submitted, under that name, asynchronously, or on a GPU and without a name, as only the init
// thread may; or one in a step, the other in a call or in another list's step. Pure.
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

// What a rank's init thread waits for: LogWords::waits_for, waits_in and steps.
struct RankWait {
  uint64_t name = 0, number = 0;
  uint32_t steps = 0;

  friend bool operator==(const RankWait&, const RankWait&) = default;
};

struct CrossedWaits {
  std::string name, asked;  // as in WaitingName
  int caller = 0, submitter = 0;

  friend bool operator==(const CrossedWaits&, const CrossedWaits&) = default;
};

// `waits` by rank: said by then, at the latest, when it was heard that others are missing in
// `waiting`, and not taken back when it was heard who has asked.
std::optional<CrossedWaits> find_crossed_waits(std::span<const WaitingName> waiting,
                                               std::span<const RankWait> waits);

// For the user, with what the caller waits in and how both ranks are called.
std::string crossed_text(const CrossedWaits& crossed, const std::string& call,
                         const std::string& caller, const std::string& submitter);

struct CrossedStep {
  int stepper = 0, other = 0;

  friend bool operator==(const CrossedStep&, const CrossedStep&) = default;
};

// A rank in a step that another one comes to only behind the call, or another list's step, that it
// waits in, which the first comes to only behind that step. All hold up the init thread, and none
// is old: what a rank has made before what does not change any more.
std::optional<CrossedStep> find_crossed_step(std::span<const RankWait> waits);

}  // namespace hvd
