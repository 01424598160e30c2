// `hvdrun clean` in a store of shipped files: what nobody has used for long goes, what ranks wrote
// beside it stays.
#pragma once

#include <cstdint>
#include <string>

#include "proto/rendezvous.pb.h"

namespace hvd {

// Removes trees from which no job has run for `unused_s` seconds (TreeUse), the files that only
// they had, and what was being made for longer than a day. Where ranks wrote into such a tree, what
// was shipped goes alone; what python has compiled can be made again, and goes too. Nothing goes
// while a job takes files from there, in a folder that others may write to, and where other hosts
// may have jobs that cannot be seen from here. With `dry_run` it only tells.
proto::CleanReport::Store clean_store(const std::string& folder, int64_t unused_s, bool dry_run);

}  // namespace hvd
