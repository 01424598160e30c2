// What a host is: a kernel, the namespaces in it, and a user. Names and addresses say too little:
// one host may have several, and two containers of one machine are two hosts.
#pragma once

#include <cstdint>
#include <string>

namespace hvd {

struct HostIdentity {
  std::string boot = {};  // of the kernel; empty: it is not known which host this is
  uint64_t network = 0, mounts = 0, processes = 0;  // inodes of the namespaces
  uint32_t user = 0;                                // ranks of two users share nothing

  friend bool operator==(const HostIdentity&, const HostIdentity&) = default;
};

bool is_one_host(const HostIdentity& one, const HostIdentity& other);

// The same CPUs.
bool is_one_machine(const HostIdentity& one, const HostIdentity& other);

// Addresses mean the same to both, 127.0.0.1 among them.
bool is_one_network(const HostIdentity& one, const HostIdentity& other);

// Of this process.
HostIdentity look_at_this_host();

}  // namespace hvd
