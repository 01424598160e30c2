// Where the ranks of a communicator meet: a thread in the process that made its unique id.
//
// As NCCL's bootstrap root it is reached by an address in the id; unlike that all data passes
// through it. It answers a call when all ranks have made the same; where they differ it never does,
// as NCCL hangs.
#pragma once

#include <cstdint>
#include <string>

namespace hvd {

// Starts it at the first call. Empty: no socket could be made.
const std::string& hub_name();

}  // namespace hvd
