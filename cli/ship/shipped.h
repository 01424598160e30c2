// What became of a job's files on a host that they were shipped to, and how its ranks start there.
//
// Pure but for where_to_start().
#pragma once

#include <string>
#include <vector>

#include "proto/rendezvous.pb.h"
#include "runtime/base/unique_fd.h"

namespace hvd {

struct Shipped {
  std::string folder;     // the absolute path P of this list lies at folder + P
  std::string libraries;  // a folder with those that the host lacks; empty: none
  std::string loader;     // in `libraries`, to start the command by; empty: by the host's own
  std::vector<proto::ShippedWord> words;
  bool home_will_do = false;
  std::vector<UniqueFd> locks;  // of its trees, for as long as they are used: for TreeUse
};

// Throws kInvalidArgument when the list is not one that an hvdrun makes: a path that is not
// absolute and plain, a name with a slash, a number of no file, a sum that is none.
void check_shipment(const proto::Shipment& list);

// Words of the command become the paths of what they name, and libraries are looked for in
// `libraries` first: by LD_LIBRARY_PATH, or by the loader that the command is started with, so
// that programs of the host's own that it starts do not get another C library than theirs.
void start_from_shipped(const Shipped& shipped, proto::StartWorkers& start);

// The directory that ranks start in: the one asked for, or where that is not there and need not be,
// the home folder.
std::string where_to_start(const Shipped& shipped, const std::string& wanted);

}  // namespace hvd
