// An agent's end of the control stream to hvdrun, over one connected socket.
//
// One thread ("rendezvous") only moves messages; the owner's loop watches wake_fd() and calls the
// rest. No gRPC type shows here. Programs that leave by _exit never destroy it; destroying it
// cancels the stream and joins the thread.
#pragma once

#include <memory>
#include <vector>

#include "proto/rendezvous.pb.h"
#include "runtime/base/unique_fd.h"

namespace hvd {

class RendezvousClient {
 public:
  struct Incoming {
    std::vector<proto::ToAgent> messages;
    bool closed = false;  // no more will come; after finish() that hvdrun has read everything
  };

  explicit RendezvousClient(UniqueFd connection);
  ~RendezvousClient();

  int wake_fd() const;
  Incoming take();
  void send(const proto::FromAgent& message);          // never blocks
  void send_if_idle(const proto::FromAgent& message);  // dropped while anything waits to be sent
  void finish();                                       // after the last send()

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hvd
