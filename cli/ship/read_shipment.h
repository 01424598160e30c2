// Reads what --ship names: the files and folders, and the shared libraries of the programs among
// them.
#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <string>

#include "cli/job_spec.h"
#include "cli/ship/ship_offer.h"

namespace hvd {

// Who waits hears how far it is, after `first` and then every `next`.
struct ReadProgress {
  std::function<void(const std::string& line)> say = {};
  std::chrono::milliseconds first{1000}, next{5000};
};

// Call as spawn(). `environment` is that of the ranks, "NAME=value": its LD_LIBRARY_PATH counts.
// Takes as long as reading all files does. Links are followed. Throws kInvalidArgument, in one line
// that names the path, for what cannot be read or is no file, and when it is more than
// --ship-limit; below a folder, what is no file is left out.
ShipOffer read_shipment(const JobSpec& spec, std::span<const std::string> environment,
                        const ReadProgress& progress = {});

}  // namespace hvd
