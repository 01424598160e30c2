// Hosts that are waited for while a job starts, as a user is told of them.
//
// Pure.
#pragma once

#include <string>
#include <vector>

namespace hvd {

struct AwaitedHost {
  std::string host;
  std::string state;         // "connecting": hosts are counted by it
  std::string details = {};  // behind it
  bool queued = false;
  bool told = false;  // the host's own agent has said it: for the result file alone
};

// "h2: connecting, for 2.1 s", of those first that others wait for; at most so many, and how many
// others are in which state.
std::vector<std::string> awaited_lines(std::vector<AwaitedHost> hosts);

}  // namespace hvd
