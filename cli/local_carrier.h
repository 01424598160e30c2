// The carrier of this host: starts the agent as a child.
#pragma once

#include "cli/carrier.h"

namespace hvd {

class LocalCarrier : public Carrier {
 public:
  AgentChannels start_agent(const Host& host) override;
};

}  // namespace hvd
