// One suite over Communicator, conformance_test.cc, is linked with the settings that it is to pass.
#pragma once

#include <numeric>
#include <string>
#include <vector>

#include "tests/collectives/reference.h"
#include "tests/support/ranks.h"

namespace hvd {

using Hosts = std::vector<int>;  // ranks of each
using Reference = ByteVector (*)(DataType type, const Reduction& reduction,
                                 const std::vector<ByteVector>& inputs, const Hosts& hosts);

// A backend among ranks that lie so.
struct Setting {
  std::string name;
  Hosts hosts;
  CommunicatorFactory factory;
  Reference reference;
  CommunicatorFactory another;       // a second one of a rank; none: all share one order
  Values values = Values::kStrange;  // that it sums by the reference's rules

  int ranks() const { return std::accumulate(hosts.begin(), hosts.end(), 0); }
};

std::vector<Setting> settings();

}  // namespace hvd
