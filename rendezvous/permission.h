// What the agent of a host may say: of its own host, and of ranks that were started there.
//
// Pure. Every field named `host`, `rank` or `ranks`, however deep, is looked at; others may name
// ranks of other hosts.
#pragma once

#include <set>
#include <string>

#include "proto/rendezvous.pb.h"

namespace hvd {

// Why the agent of `host`, where `ranks` run, may not say this. Empty when it may.
std::string objection(const proto::FromAgent& message, int host, const std::set<int>& ranks);

}  // namespace hvd
