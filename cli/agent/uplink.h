// The agent's way to hvdrun: over the socket that it came with, or, from another host, over mutual
// TLS once its bootstrap has said whereto.
//
// Lives on the agent's loop.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cli/loop.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/client.h"
#include "runtime/base/deadline.h"

namespace hvd {

class Uplink {
 public:
  struct Events {
    std::function<void(const proto::ToAgent&)> order;
    // hvdrun reads nothing any more; `why` is empty when that was in order.
    std::function<void(const std::string& why)> closed;
  };
  Uplink(Loop& loop, Events events) : loop_(loop), events_(std::move(events)) {}

  void use(UniqueFd connection);
  void connect(RendezvousClient::Remote hvdrun);

  void send(proto::FromAgent message);  // never blocks; dropped while there is no way
  void beat();                          // dropped while anything waits to be sent
  void finish();                        // after the last send()
  bool open() const { return client_ != nullptr && !closed_; }

  // hvdrun is on another host and has said nothing for so long that it takes this one for cut off:
  // nothing may run here when it says that nothing does.
  bool is_cut_off(TimePoint now) const;
  void excuse(TimePoint now);  // it was not to speak; its host answers all the same

 private:
  void begin(std::unique_ptr<RendezvousClient> client);
  void on_messages();

  Loop& loop_;
  const Events events_;
  std::unique_ptr<RendezvousClient> client_;
  bool remote_ = false, closed_ = false;
  TimePoint heard_{};
};

}  // namespace hvd
