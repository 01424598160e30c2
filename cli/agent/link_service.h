// Makes the links between ranks of this host and ranks of others: agents connect, prove to each
// other that they are of this job, and hand the connected sockets on.
//
// Of two ranks the agent of the lower one connects, the other one's waits for it: which agent is
// sooner does not matter. A link that comes for an epoch that has not begun here yet is kept until
// it does. They may call each other to prove who is where, too. Everything happens on the loop's
// thread, in its handlers and in tick().
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/loop.h"
#include "rendezvous/admission.h"
#include "rendezvous/link_handshake.h"
#include "rendezvous/listener.h"
#include "rendezvous/refusals.h"
#include "rendezvous/secret.h"
#include "runtime/base/deadline.h"

namespace hvd {

class LinkService {
 public:
  // A connected, non-blocking socket from which nothing of the link's has been read; or none, and
  // why.
  using Done = std::function<void(UniqueFd link, const std::string& why)>;
  // The same, and how long the padding took.
  using Proven =
      std::function<void(UniqueFd there, const std::string& why, Clock::duration carried)>;
  struct Wanted {
    uint32_t id = 0;  // of the communicator, in the epoch that was started last
    int local_rank = 0, remote_rank = 0;
    std::string host;       // of the remote rank, for texts
    SocketAddress address;  // where its agent listens
    // For that agent to answer. Who is called waits for as long as the other rank takes to ask.
    Deadline deadline = Deadline::never();
  };

  // `secret` is the job's, the same for all its agents; `host` this one's number among its hosts.
  LinkService(Loop& loop, int host, std::vector<Listener> listeners, Secret secret,
              const Admission::Limits& limits = {});
  ~LinkService();
  LinkService(const LinkService&) = delete;
  LinkService& operator=(const LinkService&) = delete;

  // Another host of the job, and where it might be.
  struct Peer {
    int host = 0;
    uint32_t offer = 0;    // which of its addresses
    bool carries = false;  // shows how long kCarriedBytes take
    SocketAddress address;
    Deadline deadline = Deadline::never();
  };
  // In any epoch, or before. `proven` is called once, from a later handler or tick(), unless
  // settle() comes before the call begins: with a connection on which that host's agent has proven
  // itself, or why not.
  void prove(const Peer& peer, Proven proven);
  // It is known who is where: links come to this address alone, and who had not been called for a
  // proof by then is not. Calls that have begun go on: who is called should see no stranger in who
  // hangs up. What is asked for later is tried as before.
  void settle(const SocketAddress& address);

  // What was asked for in earlier epochs is forgotten, what came for them closed.
  void start_epoch(uint32_t epoch, std::set<int> local_ranks);
  // Never blocks. `done` is called once, from a later handler or tick(), unless the epoch ends
  // before.
  void request(const Wanted& wanted, Done done);

  std::optional<TimePoint> next_deadline() const;
  void tick(TimePoint now);

  size_t refused() const { return refusals_.count(); }  // connections from elsewhere
  std::vector<std::string> take_refusals() { return refusals_.take(); }  // new ones, once each

 private:
  struct Connection;
  struct Request {
    enum State { kToCall, kCalling, kAwaited };
    State state = kToCall;
    SocketAddress address;
    std::string at;     // its host, without a port
    std::string agent;  // in words
    Deadline deadline = Deadline::never();
    Done done;            // of a link,
    Proven proven;        // of a proof
    TimePoint call_at{};  // not before
    int attempts = 0;
    std::string last_words;  // of the attempt before
  };

  void turn_out(Admission::Ticket stranger, const std::string& why);
  TimePoint accepts_at() const { return std::max(accept_at_, admission_.accepts_at()); }
  void watch_listeners();
  void accept_all(const Listener& listener);
  bool accept_one(const Listener& listener);
  LinkVerdict judge(const LinkName& link) const;
  void begin_calls(TimePoint now);
  void call(const LinkName& link, Request& request, TimePoint now);
  void add(std::unique_ptr<Connection> connection, uint32_t events);
  std::unique_ptr<Connection> remove(int fd);
  void on_event(int fd);
  std::string connect_result(const Connection& connection) const;
  bool send_some(Connection& connection);
  bool receive_some(Connection& connection);
  void lost(int fd, const std::string& why);
  void finished(int fd);
  void give_up(const LinkName& link);
  void call_again(const LinkName& link, const std::string& why);
  void not_there(const LinkName& link, const std::string& why);
  void refuse(const SocketAddress& peer, const std::string& why);
  void complete(const LinkName& link, UniqueFd socket, const std::string& why,
                Clock::duration carried = {});
  bool may_call(const Request& request) const;
  static bool may_go(const Connection& connection);

  Loop& loop_;
  const int host_;
  std::list<Listener> listeners_;
  const Secret secret_;
  Admission admission_;
  bool listening_ = true;
  TimePoint accept_at_{};  // not before: no descriptor was left
  uint32_t epoch_ = 0;
  std::set<int> local_ranks_;
  std::map<LinkName, Request> requests_;
  std::map<LinkName, UniqueFd> arrived_;                    // and not given out yet
  std::vector<LinkName> ready_;                             // both asked for and arrived
  std::set<LinkName> given_;                                // of those that came from elsewhere
  std::map<int, std::unique_ptr<Connection>> connections_;  // by descriptor; not yet proven
  std::map<std::string, int> calls_;                        // under way, by address
  Refusals refusals_;
};

}  // namespace hvd
