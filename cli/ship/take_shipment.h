// On a host that is reached by ssh, before its agent says hello: takes what --ship names, of which
// hvdrun sends what is not there yet.
//
// A dialogue over standard input and output. All we say is frames:
//
//   -> kWanted "list"     we are there
//   <- kFrameMagic, kShipment    a proto::Shipment
//   -> kWanted "0 5 17"   these files of it; any number of times
//   <- their bytes, one behind the other
//   -> kNotShipped WORDS  it cannot be done: why. hvdrun says it to the user
#pragma once

#include "cli/ship/shipped.h"

namespace hvd {

// Call in a single-threaded process, before anything else reads or writes there. Frames it writes
// come behind kFrameMagic, which it writes first. A hvdrun that is silent may have been stopped: it
// is waited for as long as the connection lives, which signs of life find out (cli/pipe.h). Throws
// after it has said why, and at hvdrun's end.
Shipped take_shipment();

}  // namespace hvd
