// Reads what --ship names: the files and folders, and the shared libraries of the programs among
// them.
#pragma once

#include <span>
#include <string>

#include "cli/job_spec.h"
#include "cli/ship/ship_offer.h"

namespace hvd {

// Call as spawn(). `environment` is that of the ranks, "NAME=value": its LD_LIBRARY_PATH counts.
// Takes as long as reading all files does. Links are followed. Throws kInvalidArgument, in one line
// that names the path, for what cannot be read or is no file, and when it is more than
// --ship-limit; below a folder, what is no file is left out.
ShipOffer read_shipment(const JobSpec& spec, std::span<const std::string> environment);

}  // namespace hvd
