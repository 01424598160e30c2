#include "cli/agent/link_service.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <system_error>
#include <utility>

#include "runtime/base/cut_link.h"
#include "runtime/base/error.h"
#include "runtime/base/open_files.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kNoDescriptorsPause{100};
constexpr milliseconds kFirstPause{50}, kLongestPause{800};  // between two calls for one link
constexpr size_t kArrivedMax = 4096;  // links that nobody here has asked for yet
constexpr int kAcceptedPerTurn = 64;
constexpr int kCallsAtOnce = 4;  // to one host, which lets in 8 that have not proven who they are
constexpr int kCallsMax = 256;   // to all, each a descriptor

template <size_t size>
std::array<unsigned char, size> random_bytes() {
  std::array<unsigned char, size> bytes;
  if (getrandom(bytes.data(), size, 0) != ssize_t(size))
    throw std::system_error(errno, std::generic_category(), "getrandom");
  return bytes;
}

// Twice as long each time, and then up to half of that more, so that agents that were refused
// together do not come back together.
milliseconds pause_after(int attempts) {
  const milliseconds pause = std::min(kFirstPause * (1 << std::min(attempts, 10)), kLongestPause);
  return pause + pause * random_bytes<1>()[0] / 512;
}

// Nobody elsewhere has a part in it, but for who is called on this very host, and for a neighbour
// that did not answer the call before (EHOSTUNREACH).
std::string not_begun(int error) {
  std::string why = std::strerror(error);
  if (error == ECONNREFUSED || error == EHOSTUNREACH) return why;
  if (error == EMFILE) why += std::string("; ") + kRaiseOpenFiles;
  return "the call did not leave its own host: " + why;
}

std::string no_answer(const LinkHandshake& handshake) {
  if (!handshake.awaits_verdict_on_padding() || handshake.link().carries()) return "no answer";
  return "small packets pass, large ones do not: the MTU differs on the way";
}

// The sizes of buffers are the rank's to choose, which knows what it sends
// (collectives/tcp/link.cc).
void make_link(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ask_when_idle(socket);
}

}  // namespace

// A connection on which the handshake goes on.
struct LinkService::Connection {
  UniqueFd socket;
  SocketAddress peer;
  LinkHandshake handshake;
  std::optional<Admission::Ticket> ticket = {};  // it came from elsewhere; else:
  LinkName link = {};                            // it is called for,
  std::string at = {};                           // there,
  TimePoint until = TimePoint::max();            // and has to be proven by then
  bool connected = true;
  bool cut = false;  // by the other end
  std::string unsent = {};
  size_t sent = 0;        // of that
  TimePoint padded_at{};  // its padding was first sent
};

LinkService::LinkService(Loop& loop, int host, std::vector<Listener> listeners, Secret secret,
                         const Admission::Limits& limits)
    : loop_(loop),
      host_(host),
      listeners_(std::make_move_iterator(listeners.begin()),
                 std::make_move_iterator(listeners.end())),
      secret_(std::move(secret)),
      admission_(limits) {
  for (const Listener& listener : listeners_)
    loop_.watch(listener.socket.get(), EPOLLIN,
                [this, &listener](uint32_t) { accept_all(listener); });
}

LinkService::~LinkService() {
  for (const Listener& listener : listeners_) loop_.unwatch(listener.socket.get());
  for (const auto& [fd, connection] : connections_) loop_.unwatch(fd);
}

void LinkService::start_epoch(uint32_t epoch, std::set<int> local_ranks) {
  epoch_ = epoch;
  local_ranks_ = std::move(local_ranks);
  const auto is_old = [epoch](const LinkName& link) {
    return link.epoch < epoch && !link.is_proof();
  };
  const auto of_old = [&](const auto& one) { return is_old(one.first); };
  std::erase_if(requests_, of_old);
  std::erase_if(arrived_, of_old);
  std::erase_if(given_, is_old);
  ready_.clear();
  std::vector<int> old;
  for (const auto& [fd, connection] : connections_)
    if (!connection->ticket && is_old(connection->link)) old.push_back(fd);
  for (int fd : old) remove(fd);
}

void LinkService::prove(const Peer& peer, Proven proven) {
  const LinkName proof{0, peer.offer | (peer.carries ? LinkName::kCarries : 0), host_, peer.host};
  HVD_CHECK(!requests_.contains(proof), "a host is proven once at an address");
  Request request;
  request.address = peer.address;
  request.at = peer.address.host();
  request.deadline = peer.deadline;
  request.proven = std::move(proven);
  requests_.emplace(proof, std::move(request));  // tick() is due
}

void LinkService::settle(const SocketAddress& address) {
  std::erase_if(requests_, [](const auto& one) {
    return one.first.is_proof() && one.second.state == Request::kToCall;
  });
  std::erase_if(listeners_, [&](const Listener& one) {
    if (one.address == address) return false;
    loop_.unwatch(one.socket.get());
    return true;
  });
}

void LinkService::request(const Wanted& wanted, Done done) {
  const bool calls = wanted.local_rank < wanted.remote_rank;
  const LinkName link{epoch_, wanted.id, std::min(wanted.local_rank, wanted.remote_rank),
                      std::max(wanted.local_rank, wanted.remote_rank)};
  HVD_CHECK(!requests_.contains(link) && !given_.contains(link), "a link is asked for once");
  Request request;
  request.state = calls ? Request::kToCall : Request::kAwaited;
  request.address = wanted.address;
  request.at = wanted.address.empty() ? "" : wanted.address.host();
  request.agent = "the agent on " + wanted.host;
  if (calls) request.agent += " at " + wanted.address.text();
  if (calls) request.deadline = wanted.deadline;
  request.done = std::move(done);
  requests_.emplace(link, std::move(request));
  if (!calls && arrived_.contains(link)) ready_.push_back(link);  // tick() is due
}

void LinkService::complete(const LinkName& link, UniqueFd socket, const std::string& why,
                           Clock::duration carried) {
  auto found = requests_.extract(link);
  if (!found) return;
  if (socket && found.mapped().state == Request::kAwaited) given_.insert(link);
  if (link.is_proof()) return found.mapped().proven(std::move(socket), why, carried);
  found.mapped().done(std::move(socket), why.empty() ? why : link.text() + ": " + why);
}

bool LinkService::may_call(const Request& request) const {
  if (request.state != Request::kToCall || connections_.size() >= size_t(kCallsMax)) return false;
  const auto calls = calls_.find(request.at);
  return calls == calls_.end() || calls->second < kCallsAtOnce;
}

std::optional<TimePoint> LinkService::next_deadline() const {
  if (!ready_.empty()) return TimePoint();
  TimePoint next = admission_.next_deadline().value_or(TimePoint::max());
  if (!listening_) next = std::min(next, accepts_at());
  for (const auto& [link, request] : requests_) {
    next = std::min(next, request.deadline.when());
    if (may_call(request)) next = std::min(next, request.call_at);
  }
  for (const auto& [fd, connection] : connections_) next = std::min(next, connection->until);
  if (next == TimePoint::max()) return {};
  return next;
}

void LinkService::tick(TimePoint now) {
  for (const LinkName& link : std::exchange(ready_, {}))
    if (auto arrived = arrived_.extract(link)) complete(link, std::move(arrived.mapped()), {});
  for (Admission::Ticket late : admission_.take_late(now))
    turn_out(late, "it did not prove in time who it is");
  std::vector<int> slow;
  for (const auto& [fd, connection] : connections_)
    if (connection->until <= now) slow.push_back(fd);
  for (int fd : slow) lost(fd, no_answer(connections_.at(fd)->handshake));
  std::vector<LinkName> over;
  for (const auto& [link, request] : requests_)
    if (request.deadline.passed(now)) over.push_back(link);
  for (const LinkName& link : over) give_up(link);
  begin_calls(now);
  watch_listeners();
}

void LinkService::give_up(const LinkName& link) {
  const auto at = requests_.find(link);
  if (at == requests_.end()) return;
  const Request& request = at->second;
  std::string why = request.last_words;
  for (const auto& [fd, connection] : connections_)
    if (!connection->ticket && connection->link == link) {
      if (why.empty()) why = no_answer(connection->handshake);
      remove(fd);
      break;
    }
  if (why.empty()) why = "no answer";
  if (!link.is_proof()) why = "cannot connect to " + request.agent + " in time: " + why;
  complete(link, {}, why);
}

// Of a stranger whose ticket is settled.
void LinkService::turn_out(Admission::Ticket stranger, const std::string& why) {
  const auto at = std::find_if(connections_.begin(), connections_.end(),
                               [&](const auto& one) { return one.second->ticket == stranger; });
  if (at == connections_.end()) return;
  if (!may_go(*at->second)) refuse(at->second->peer, why);
  remove(at->first);
}

void LinkService::watch_listeners() {
  const bool now = Clock::now() >= accepts_at();
  if (now == std::exchange(listening_, now)) return;
  for (const Listener& listener : listeners_)
    loop_.rearm(listener.socket.get(), now ? uint32_t(EPOLLIN) : 0);
}

void LinkService::accept_all(const Listener& listener) {
  for (int i = 0; i < kAcceptedPerTurn && accept_one(listener); ++i) {
  }
  watch_listeners();
}

bool LinkService::accept_one(const Listener& listener) {
  if (Clock::now() < admission_.accepts_at()) return false;
  Accepted accepted = accept_from(listener);
  if (accepted.exhausted) accept_at_ = Clock::now() + kNoDescriptorsPause;
  if (!accepted.socket) return false;
  const SocketAddress peer = SocketAddress::peer_of(accepted.socket.get());
  if (peer.empty()) return true;  // gone already
  const std::optional<Admission::Admitted> admitted = admission_.admit(peer.host(), Clock::now());
  if (!admitted) {
    refuse(peer, "too many connections from there have not proven yet who they are");
    return true;
  }
  if (admitted->displaced)
    turn_out(*admitted->displaced, "others came, and it had not proven yet who it is");
  auto made = std::make_unique<Connection>(
      std::move(accepted.socket), peer,
      LinkHandshake::answer(secret_, random_bytes<sizeof(LinkNonce)>(),
                            [this](const LinkName& link) { return judge(link); }));
  made->ticket = admitted->ticket;
  add(std::move(made), EPOLLIN);
  return true;
}

// An epoch that is ahead of ours has begun where the caller is, and will here.
LinkVerdict LinkService::judge(const LinkName& link) const {
  if (link.is_proof())
    return link.answerer == host_ ? LinkVerdict::kWelcome : LinkVerdict::kOtherHost;
  if (link.epoch < epoch_) return LinkVerdict::kOldEpoch;
  const bool here = link.epoch > epoch_ || local_ranks_.contains(link.answerer);
  if (!here || link.caller >= link.answerer) return LinkVerdict::kNoSuchRank;
  if (given_.contains(link) || arrived_.size() >= kArrivedMax) return LinkVerdict::kTaken;
  return LinkVerdict::kWelcome;
}

void LinkService::begin_calls(TimePoint now) {
  std::vector<LinkName> due;
  for (const auto& [link, request] : requests_)
    if (request.state == Request::kToCall && request.call_at <= now) due.push_back(link);
  for (const LinkName& link : due)
    if (Request& request = requests_.at(link); may_call(request)) call(link, request, now);
}

void LinkService::call(const LinkName& link, Request& request, TimePoint now) {
  UniqueFd fd(
      socket(request.address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  const bool begun = fd && (connect(fd.get(), request.address.get(), request.address.size()) == 0 ||
                            errno == EINPROGRESS);
  const int error = errno;
  ++request.attempts;
  if (!fd) return call_again(link, not_begun(error));
  if (!begun) return not_there(link, not_begun(error));
  auto made = std::make_unique<Connection>(
      std::move(fd), request.address,
      LinkHandshake::call(secret_, link, random_bytes<sizeof(LinkNonce)>()));
  made->link = link;
  made->at = request.at;
  made->until = now + admission_.limits().patience;
  made->connected = false;
  request.state = Request::kCalling;
  ++calls_[request.at];
  add(std::move(made), EPOLLOUT);
}

void LinkService::call_again(const LinkName& link, const std::string& why) {
  Request& request = requests_.at(link);
  request.state = Request::kToCall;
  request.call_at = Clock::now() + pause_after(request.attempts);
  request.last_words = why;
}

// An agent that has said where it listens is there, or never will be reached from here; of one
// whose rank is called for later it is worth trying again.
void LinkService::not_there(const LinkName& link, const std::string& why) {
  if (link.is_proof())
    complete(link, {}, why);
  else
    call_again(link, why);
}

void LinkService::add(std::unique_ptr<Connection> connection, uint32_t events) {
  const int fd = connection->socket.get();
  connections_[fd] = std::move(connection);
  loop_.watch(fd, events, [this, fd](uint32_t) { on_event(fd); });
}

std::unique_ptr<LinkService::Connection> LinkService::remove(int fd) {
  loop_.unwatch(fd);
  auto connection = std::move(connections_.extract(fd).mapped());
  if (connection->ticket)
    admission_.settle(*connection->ticket);
  else if (--calls_[connection->at] == 0)
    calls_.erase(connection->at);
  return connection;
}

void LinkService::on_event(int fd) {
  Connection& connection = *connections_.at(fd);
  if (!std::exchange(connection.connected, true))
    if (const std::string why = connect_result(connection); !why.empty())
      return not_there(remove(fd)->link, why);
  do {
    if (!send_some(connection)) {
      connection.cut = true;
      return lost(fd, std::strerror(errno));
    }
  } while (connection.unsent.empty() && receive_some(connection));
  if (!connection.unsent.empty())
    loop_.rearm(fd, EPOLLOUT);
  else if (connection.handshake.state() == LinkHandshake::State::kGoing)
    loop_.rearm(fd, EPOLLIN);
  else
    finished(fd);
  watch_listeners();
}

// What came of connecting: "" or an error.
std::string LinkService::connect_result(const Connection& connection) const {
  int error = 0;
  socklen_t bytes = sizeof error;
  getsockopt(connection.socket.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
  return error == 0 ? "" : std::strerror(error);
}

// False: the connection is broken, see errno.
bool LinkService::send_some(Connection& connection) {
  const std::string& unsent = connection.unsent += connection.handshake.take_output();
  if (connection.padded_at == TimePoint{} && connection.handshake.awaits_verdict_on_padding())
    connection.padded_at = Clock::now();
  // Who has welcomed it has given its rank the link, and takes no other call for it: a verdict that
  // a cut holds up is waited for, as long as for the link.
  if (!connection.ticket && !connection.link.is_proof() && connection.handshake.awaits_verdict())
    connection.until = requests_.at(connection.link).deadline.when();
  while (connection.sent < unsent.size()) {
    const ssize_t n = send(connection.socket.get(), unsent.data() + connection.sent,
                           unsent.size() - connection.sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    connection.sent += size_t(n);
  }
  connection.unsent.clear();
  connection.sent = 0;
  return true;
}

// No more than the handshake wants: what comes after it is the link's. False: nothing to go on
// with.
bool LinkService::receive_some(Connection& connection) {
  char bytes[size_t{64} << 10];
  const size_t wanted = std::min(connection.handshake.wanted(), sizeof bytes);
  if (wanted == 0) return false;
  const ssize_t n = recv(connection.socket.get(), bytes, wanted, MSG_DONTWAIT);
  if (n > 0) {
    connection.handshake.feed({bytes, size_t(n)});
    return true;
  }
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  connection.cut = true;
  connection.handshake.end();
  return false;
}

// Who asks whether this is another host, as at the docker0 that all have, or has hung up since
// that was decided without this host's word, is no stranger to tell the user of.
bool LinkService::may_go(const Connection& connection) {
  const LinkHandshake& handshake = connection.handshake;
  return connection.ticket && handshake.called() && handshake.link().is_proof() &&
         (handshake.proven() || connection.cut);
}

void LinkService::lost(int fd, const std::string& why) {
  const auto connection = remove(fd);
  if (may_go(*connection)) return;
  if (connection->ticket)
    refuse(connection->peer, why);
  else
    call_again(connection->link, why);
}

void LinkService::finished(int fd) {
  const auto connection = remove(fd);
  const LinkHandshake& handshake = connection->handshake;
  if (handshake.state() == LinkHandshake::State::kRefused) {
    if (may_go(*connection)) return;
    if (connection->ticket) return refuse(connection->peer, handshake.reason());
    // A connection that ends early may have come at a bad moment; a no is a no. Who was called has
    // the same patience, and may be the first to lose it.
    const bool waited = Clock::now() >= connection->until - admission_.limits().patience / 2;
    const bool in_vain = waited && handshake.awaits_verdict_on_padding();
    if (connection->cut)
      return call_again(connection->link, in_vain ? no_answer(handshake) : handshake.reason());
    const std::string& agent = requests_.at(connection->link).agent;
    return complete(connection->link, {}, agent + (agent.empty() ? "" : ": ") + handshake.reason());
  }
  const LinkName& link = handshake.link();
  if (link.is_proof() && connection->ticket) return;  // that was all
  make_link(fd);
  if (!connection->ticket || requests_.contains(link))
    complete(link, std::move(connection->socket), {}, Clock::now() - connection->padded_at);
  else if (link.epoch >= epoch_)
    arrived_[link] = std::move(connection->socket);
}

void LinkService::refuse(const SocketAddress& peer, const std::string& why) {
  refusals_.note(peer.host(), why);
}

}  // namespace hvd
