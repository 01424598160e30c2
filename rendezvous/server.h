// hvdrun's end of the control streams: a gRPC server that agents attach to.
//
// One thread ("rendezvous") only moves messages; the owner's loop watches wake_fd() and calls the
// rest. A local agent comes over one end of a socketpair, so nothing listens; agents of other hosts
// come over mutual TLS, each with a certificate that says of which host it is. No gRPC type shows
// here. Programs that leave by _exit never destroy it, which saves gRPC's shutdown; destroying it
// cancels all streams and joins the threads.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "proto/rendezvous.pb.h"
#include "rendezvous/admission.h"
#include "rendezvous/credentials.h"
#include "rendezvous/listener.h"
#include "runtime/base/unique_fd.h"

namespace hvd {

class RendezvousServer {
 public:
  // How agents of other hosts come in.
  struct Remote {
    std::string job;
    Credentials credentials;  // JobAuthority::launcher()
    std::vector<Listener> listeners;
    Admission::Limits limits;
    // Each refusal of a new kind or from a new address; the rest is counted. Called in take().
    std::function<void(const std::string& line)> audit;
  };
  struct Incoming {
    int session = 0;  // numbers the streams in the order they were opened
    // By its certificate; nothing for one that came over a connection of ours, which is what it
    // says.
    std::optional<int> host;
    std::vector<proto::FromAgent> messages;
    bool closed = false;  // no more will come, ever
    std::string why;      // it was closed here: what its agent had done
  };

  // With `remote` agents of other hosts may come at once.
  explicit RendezvousServer(std::optional<Remote> remote = std::nullopt);
  ~RendezvousServer();

  // Serves a connected socket from now on. The first one starts gRPC, on the server's own thread.
  void add(UniqueFd connection);

  // Lets agents of other hosts come to these addresses, too; with `remote` only.
  void listen(std::vector<Listener> listeners);
  // All who were to come have: their streams go on, and no address is listened on any more.
  void close_door();

  int wake_fd() const;
  std::vector<Incoming> take();  // sessions with news
  // Never blocks. The stream of an agent that reads nothing is closed once too much waits for it.
  void send(int session, const proto::ToAgent& message);
  // The agent of `host` may speak for these ranks, and no others; at first for none. It counts for
  // agents of other hosts; a stream that claims more is closed.
  void permit(int host, std::set<int> ranks);
  // The agent of `host` may come from these addresses, too, and try several ways in.
  void expect_from(int host, std::set<std::string> addresses);
  size_t refused() const;  // connections, streams and messages

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hvd
