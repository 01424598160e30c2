// The links of the log between hosts: one from each host's leader to rank 0, whole messages on
// them, never blocking. No host's slowness holds up another's: what a link does not take yet waits
// for it alone. With the progress token held.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "collectives/peers.h"
#include "collectives/world_shape.h"
#include "runtime/base/deadline.h"
#include "runtime/base/private_fd.h"
#include "runtime/engine/log_messages.h"

namespace hvd {

class LogLinks {
 public:
  // Asks for the links of this leader, number `links`.
  LogLinks(Peers& peers, const WorldShape& shape, uint32_t links);

  // Are all there? Throws kUnavailable when one cannot be had.
  bool take();
  std::vector<int> missing() const {  // ranks whose links are not there
    return linked_ ? std::vector<int>{} : peers_.missing_links(number_);
  }

  // To all others, or to all but one rank; sent by flush() and whenever a link takes more.
  void post(const LogMessage& message, int but = -1);
  bool flush();
  // Hands over what has come, message by message, some tens of KiB of each link at most; true if
  // anything has.
  bool receive(const std::function<void(int from, const LogMessage&)>& take);
  bool has_unsent() const;

  // Ends of links, and cuts: the agent's word about a death says more, so that is waited for first.
  // Breaks the epoch off when none comes.
  void look(TimePoint now);
  // That leader asks and answers no more: its link may end.
  void expect_end(int rank);
  // This rank has said its last. Blocks, for half a second at most, while a link is full.
  void finish_sending();

  // As Communicator::watch().
  std::chrono::milliseconds watch(std::vector<pollfd>& descriptors) const;

 private:
  struct Link {
    int rank = 0;
    LogSender sender;
    PrivateFd socket;
    bool open = true;        // may say something
    bool ending = false;     // has said that it will say nothing more
    bool deaf = false;       // takes nothing any more
    bool waits_out = false;  // for room in the socket
    std::string lost = {};   // how it ended, unannounced
    TimePoint lost_since = {};
    std::vector<std::byte> in = {}, out = {};
    size_t sent = 0;  // of `out`
  };

  bool read(Link& link, const std::function<void(int, const LogMessage&)>& take);
  bool write(Link& link);
  void look_for_cuts(TimePoint now);
  void note_end(Link& link, int error);
  void reject(Link& link, const std::string& fault);
  void watch_socket(const Link& link, int operation);

  Peers& peers_;
  const uint32_t number_;
  std::vector<Link> links_;
  PrivateFd epoll_;
  bool linked_ = false, any_lost_ = false;
  TimePoint looked_for_cuts_{};
};

}  // namespace hvd
