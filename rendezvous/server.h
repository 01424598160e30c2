// hvdrun's end of the control streams: a gRPC server that agents attach to.
//
// One thread ("rendezvous") only moves messages; the owner's loop watches wake_fd() and calls the
// rest. A local agent comes over one end of a socketpair, so nothing listens. No gRPC type shows
// here. Programs that leave by _exit never destroy it, which saves gRPC's shutdown; destroying it
// cancels all streams and joins the thread.
#pragma once

#include <memory>
#include <vector>

#include "proto/rendezvous.pb.h"
#include "runtime/base/unique_fd.h"

namespace hvd {

class RendezvousServer {
 public:
  struct Incoming {
    int session = 0;  // numbers the streams in the order they were opened
    std::vector<proto::FromAgent> messages;
    bool closed = false;  // no more will come, ever
  };

  // Serves `connection`, a connected socket, and each one added later.
  explicit RendezvousServer(UniqueFd connection);
  ~RendezvousServer();

  int wake_fd() const;
  std::vector<Incoming> take();                           // sessions with news
  void send(int session, const proto::ToAgent& message);  // never blocks

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hvd
