#include "collectives/nccl/unique_ids.h"

namespace hvd {

int unique_ids_for(int ranks, bool scalable, int each) {
  return scalable ? (ranks + each - 1) / each : 1;
}

bool makes_unique_id(int rank, int ranks, int ids) {
  const int each = ranks / ids, larger = ranks % ids;
  const int in_larger = larger * (each + 1);
  return rank < in_larger ? rank % (each + 1) == 0 : (rank - in_larger) % each == 0;
}

}  // namespace hvd
