// TCP between network namespaces, as between hosts.
#pragma once

#include <string>
#include <utility>

#include "runtime/base/unique_fd.h"

namespace hvd {

// Two ends of a connection, non-blocking, the first in the namespace of the first file
// (/proc/PID/ns/net), which needs an IPv4 address that the other reaches. Needs root; throws
// std::system_error or std::runtime_error.
std::pair<UniqueFd, UniqueFd> connected_between(const std::string& one, const std::string& other);

}  // namespace hvd
