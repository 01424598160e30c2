// What the environment, or NCCL's configuration file, must not have NCCL do.
#pragma once

namespace hvd {

// Throws kInvalidArgument, by name: NCCL_COMM_ID, by which whoever connects first would be taken
// for a rank; NCCL_COMM_BLOCKING, by which NCCL's calls would wait for other ranks (src/init.cc: it
// wins over ncclConfig_t). To be asked before NCCL is called and, since NCCL puts what its file
// says into the environment at its first look there, after calls that do look.
void check_nccl_environment();

}  // namespace hvd
