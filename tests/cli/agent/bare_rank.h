// What a rank does that speaks to its agent and moves its words by hand, without an engine.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <functional>
#include <memory>

#include "runtime/agent_peers.h"
#include "runtime/base/env.h"

namespace hvd {

inline std::shared_ptr<AgentConnection> connect_to_agent() {
  return std::make_shared<AgentConnection>(AgentAddress::parse(env::get("HVD_AGENT").value_or("")));
}

// Waits, as the engine would, for a word in the control block; the agent's doorbell wakes it.
inline void wait_for(Peers& peers, const std::function<bool()>& done) {
  while (!done()) {
    pollfd polled[2] = {{peers.doorbell(kCaller), POLLIN, 0}, {peers.agent_fd(), POLLIN, 0}};
    poll(polled, 2, 1'000);
    uint64_t count;
    [[maybe_unused]] const ssize_t drained = read(peers.doorbell(kCaller), &count, sizeof count);
    if (!peers.lost_agent().empty()) _exit(9);
  }
}

inline void leave(Peers& peers) {
  RankWords& words = peers.block().rank(peers.world().local_rank);
  words.quiet = 1;
  words.left = 1;
}

}  // namespace hvd
