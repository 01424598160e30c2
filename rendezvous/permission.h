// What the agent of a host may say: of its own host, of ranks that were started there, and of
// epochs that it was told to start.
//
// Pure. Every field named `host`, `rank`, `ranks` or `epoch`, however deep, is looked at; others
// may name ranks of other hosts.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "proto/rendezvous.pb.h"

namespace hvd {

// Why the agent of `host`, where `ranks` run, may not say this. Empty when it may. `epoch`: the
// last that it was told to start; what it says of an older one is only late.
std::string objection(const proto::FromAgent& message, int host, const std::set<int>& ranks,
                      uint32_t epoch);

}  // namespace hvd
