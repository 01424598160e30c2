// Fuzz target: what an agent says. Whatever comes, it is refused or speaks for its own ranks.
#include <cstddef>
#include <cstdint>

#include "rendezvous/permission.h"
#include "runtime/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  hvd::proto::FromAgent message;
  if (!message.ParseFromArray(bytes, int(count))) return 0;
  if (!hvd::objection(message, 1, {2, 3}).empty()) return 0;
  HVD_CHECK(
      !message.has_claimed() || message.claimed().rank() == 2 || message.claimed().rank() == 3,
      "an agent spoke for a rank of another host");
  for (const int rank : message.started().ranks())
    HVD_CHECK(rank == 2 || rank == 3, "an agent spoke for a rank of another host");
  return 0;
}
