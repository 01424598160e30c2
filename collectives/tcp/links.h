// The links of one rank in one communicator: asked for, taken, watched, and what follows when one
// ends.
//
// Whoever finds that something is wrong here breaks the epoch, by raise_trouble(), with a text that
// names both ends. The holder only.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "collectives/peers.h"
#include "collectives/tcp/link.h"
#include "runtime/base/deadline.h"

namespace hvd {

class Links {
 public:
  // Asks for links to those ranks of the job (in any order, itself and repeated ones left out),
  // under number `id`. `name` as in CommunicatorSpec.
  Links(Peers& peers, uint32_t id, std::vector<int> ranks, std::string name);

  // True once they are there.
  bool take();
  bool taken() const { return taken_; }
  std::vector<int> missing() const {  // ranks to whom none is there yet
    return taken_ ? std::vector<int>{} : peers_.missing_links(id_);
  }
  bool far() const { return far_; }  // one of them, at least
  Link& to(int rank);
  const Link& to(int rank) const;

  // Nothing moved: has a link ended, or is it cut? Who ended it is known by its death, which its
  // agent tells; a link that ends while both live is a fault of its own. To be called once a second
  // at least.
  void look();
  // What came from that rank is no message that was due.
  void reject(int rank, const std::string& fault);
  // It enters no more, and is needed.
  void notice_departure(int rank);
  void break_off(TroubleReason reason, const std::string& text, int rank);
  bool broken_off() const { return broken_off_; }

  // In a whole epoch, with nothing under way: whoever waits for this rank's `sequence` is told, at
  // once or, where a link is full and says_goodbye(), by go_on_with_goodbye(), true if anything
  // moved. It has an end: when the epoch breaks, or nobody reads for too long.
  void say_goodbye(uint64_t sequence);
  bool go_on_with_goodbye();
  bool says_goodbye() const { return says_goodbye_; }

  // The way out of a broken epoch. leave(): from now on silence has an end. Then, while something
  // is under way, is_hopeless() after each try to go on: what is waited for will not come, since
  // who owes it has ended its links, or is silent for too long. end(): this rank has done its part,
  // or cannot; whoever waits for it sees that, once it has read what was sent.
  void leave();
  bool is_hopeless(bool moved);
  void end();
  // Communicator::watch().
  std::chrono::milliseconds watch(std::vector<pollfd>& descriptors) const;

 private:
  bool is_silent_for(Clock::duration most, bool moved);

  Peers& peers_;
  const int me_;
  const uint32_t id_;
  const std::string name_;
  const std::vector<int> ranks_;
  std::vector<Link> links_;  // to those, once they are there
  bool taken_ = false, far_ = false, broken_off_ = false;
  TimePoint looked_for_cuts_{};
  TimePoint lost_since_{};  // an end of a link was seen, and nobody has said why
  bool leaving_ = false, says_goodbye_ = false;
  uint64_t unread_ = 0;  // of what was sent before the goodbye
  TimePoint looked_{};
  Clock::duration silence_{};  // as is_silent_for() counts it
};

}  // namespace hvd
