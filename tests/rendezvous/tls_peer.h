// A TLS end that is not gRPC: what it negotiates, and whether the other end talks to it.
#pragma once

#include <string>

#include "rendezvous/credentials.h"
#include "rendezvous/socket_address.h"
#include "runtime/base/deadline.h"
#include "runtime/base/unique_fd.h"

namespace hvd {

// A blocking connection over which reading and writing give up after `patience`.
UniqueFd connect_plainly(const SocketAddress& address,
                         Clock::duration patience = std::chrono::seconds(10),
                         const std::string& from = "");

struct TlsOutcome {
  bool talked_to = false;  // the other end took the certificate and sent the first of its frames
  std::string version;     // "TLSv1.3"; empty when no handshake came about
};

// Connects with a certificate, or with none; from an address of this machine, or from any.
TlsOutcome connect_by_tls(const SocketAddress& address, const Credentials* credentials,
                          const std::string& from = "");
// Waits for one connection at `listener` and answers it.
TlsOutcome answer_by_tls(int listener, const Credentials& credentials);

}  // namespace hvd
