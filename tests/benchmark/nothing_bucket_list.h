// Buckets that nobody exchanges: what a training step costs with everything but the collectives.
#pragma once

#include <memory>

#include "runtime/engine/bucket_list.h"

namespace hvd {

// Memory like the real one's, shared and faulted in, and every result is this rank's own part.
std::unique_ptr<BucketList> make_nothing_bucket_list(const BucketListSpec& spec);

}  // namespace hvd
