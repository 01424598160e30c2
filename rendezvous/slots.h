// Splits the job's processes over its hosts.
//
// Pure: no I/O, clock or globals, so every rule is tested with literals.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "rendezvous/world.h"

namespace hvd {

struct Host {
  std::string name;  // as the user wrote it, without user and slots
  std::string user;  // empty: the carrier's default
  int slots = 1;
  bool remote = false;  // not this machine
  // Of `slots`: so many stand for one for each of its GPUs, which are counted there, at least one.
  int per_gpu = 0;

  friend bool operator==(const Host&, const Host&) = default;
};

// One place for one worker.
struct Slot {
  int host = 0;  // index into the hosts
  World world;   // epoch 0 until a Membership starts one

  friend bool operator==(const Slot&, const Slot&) = default;
};

// Fills hosts in the given order, each up to its slot count, and numbers ranks host by host,
// densely. Exactly `count` slots come out; a host without a rank has no cross position. Throws
// kInvalidArgument, naming both numbers, when the hosts offer fewer, and when one host would get
// more than kLocalRanksMax ranks.
std::vector<Slot> assign_slots(std::span<const Host> hosts, int count);

}  // namespace hvd
