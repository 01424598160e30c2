// The first words of an agent on another host: which hvdrun it is, and a request to be trusted.
//
// Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/host_identity.h"
#include "cli/interfaces.h"

namespace hvd {

struct Hello {
  std::string version;
  std::string build;    // AgentFile::name()
  std::string request;  // AgentKey::request()
  // As its sshd sees them, without ports; empty where that is not known.
  std::string hvdrun_address = {}, own_address = {};
  HostIdentity identity = {};
  std::vector<InterfaceAddress> interfaces = {};
  int gpus = 0;              // that programs started there may use
  int gpus_there = 0;        // in all, as its files say; 0: they say nothing
  uint16_t hvdrun_port = 0;  // with hvdrun_address, the end of ssh's connection there; 0: not known

  friend bool operator==(const Hello&, const Hello&) = default;
};

std::string hello_bytes(const Hello& hello);

// Throws kUnavailable when the bytes are none, and when they come from another hvdrun than the one
// that is `ours`: both are named.
Hello read_hello(std::string_view bytes, const Hello& ours);

}  // namespace hvd
