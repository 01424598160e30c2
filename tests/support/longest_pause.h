// The longest pause after which a socket repeats what nobody acknowledges, as the kernel tells it.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <vector>

#include "runtime/base/unique_fd.h"

namespace hvd {

inline constexpr int kRtoMaxMs = 44;  // TCP_RTO_MAX_MS, newer than the headers we build with

// What it tells of one socket: `ms`, or nothing where it does not know the option.
inline std::vector<int> expected_pauses(int ms) {
  const UniqueFd any(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  int value = 0;
  socklen_t bytes = sizeof value;
  const bool known = getsockopt(any.get(), IPPROTO_TCP, kRtoMaxMs, &value, &bytes) == 0;
  return known ? std::vector{ms} : std::vector<int>{};
}

}  // namespace hvd
