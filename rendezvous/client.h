// An agent's end of the control stream to hvdrun: over one connected socket, or over mutual TLS to
// the first of hvdrun's addresses that answers.
//
// One thread ("rendezvous") only moves messages; the owner's loop watches wake_fd() and calls the
// rest. No gRPC type shows here. Programs that leave by _exit never destroy it; destroying it
// cancels the stream and joins the thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "proto/rendezvous.pb.h"
#include "rendezvous/credentials.h"
#include "runtime/base/deadline.h"
#include "runtime/base/unique_fd.h"

namespace hvd {

// Where an agent does not come back to hvdrun.
inline constexpr char kOpenTheWay[] =
    "where a firewall stands between, open it for --port-range, or name another network "
    "(--network-interface)";

inline constexpr int kOrderBytesMax = 16 << 20;  // of one message to an agent

class RendezvousClient {
 public:
  // hvdrun on another host.
  struct Remote {
    std::vector<std::string> addresses;  // "10.0.0.1:4000", tried in this order, soon side by side
    Credentials credentials;             // AgentKey::with()
    Clock::duration patience;            // until one of them has answered
  };
  struct Incoming {
    std::vector<proto::ToAgent> messages;
    bool closed = false;  // no more will come; after finish() that hvdrun has read everything
    std::string why;      // it was closed, when that was not in order
  };

  explicit RendezvousClient(UniqueFd connection);
  explicit RendezvousClient(Remote remote);
  ~RendezvousClient();

  int wake_fd() const;
  Incoming take();
  // Never blocks. The stream is closed once too much waits for a hvdrun that reads nothing.
  void send(const proto::FromAgent& message);
  void send_if_idle(const proto::FromAgent& message);  // dropped while anything waits to be sent
  void finish();                                       // after the last send()
  // hvdrun's host answers nothing any more. It does while hvdrun is stopped. Looks at all sockets.
  bool is_cut() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hvd
