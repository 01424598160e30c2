#include "collectives/nccl/nccl_environment.h"

#include "hvd/error.h"
#include "runtime/base/env.h"

namespace hvd {

void check_nccl_environment() {
  if (env::get("NCCL_COMM_ID"))
    throw Error(ErrorCode::kInvalidArgument,
                "NCCL_COMM_ID is set, by which ranks would meet where nothing tells them from "
                "strangers; unset it, in NCCL's configuration file too: hvdrun's ranks do without");
  if (const std::string blocking = env::get("NCCL_COMM_BLOCKING").value_or("");
      !blocking.empty() && blocking != "0")
    throw Error(ErrorCode::kInvalidArgument,
                "NCCL_COMM_BLOCKING=" + blocking +
                    " is set, by which a rank would hear of no death while it waits in NCCL; unset "
                    "it, in NCCL's configuration file too");
}

}  // namespace hvd
