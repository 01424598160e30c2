// The sockets of this host's workers: who may claim a rank, and what comes and goes.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "cli/agent/host_memory_impl.h"
#include "cli/agent/process_state.h"
#include "cli/agent/system_error_text.h"
#include "runtime/base/error.h"
#include "runtime/base/open_files.h"
#include "runtime/base/utf8.h"

namespace hvd {
namespace {

constexpr size_t kStrangersMax = 64;  // programs that connect and say nothing must not fill us
constexpr int kMessagesPerTurn = 64;  // of one worker, before the others have theirs
constexpr int kAcceptsPerTurn = 64;
// Other users may connect as fast as we refuse them, some 10 us each: after so many of them the
// listener rests, and they cost a few per cent of this loop.
constexpr int kStrangersPerRest = 16;
constexpr std::chrono::milliseconds kStrangersRest{5};
// Descriptors become free when some other process reads its messages or closes files: no event.
constexpr std::chrono::milliseconds kRetryPause{20};
constexpr const char* kLeaveAgent = "; leave HVD_AGENT as hvdrun has set it for each rank";

UniqueFd open_pidfd(pid_t pid) {
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

bool hung_up(int fd) {
  pollfd end{fd, POLLRDHUP, 0};
  return poll(&end, 1, 0) > 0;
}

AgentMessage refusal(ErrorCode code, const std::string& text) {
  AgentMessage message;
  message.kind = AgentMessage::kRefused;
  message.value = static_cast<int64_t>(code);
  message.body = to_bytes(std::string(head_of(text, kAgentMessageBodyMax)));
  return message;
}

}  // namespace

void HostMemory::Impl::warn(const std::string& text) const {
  if (events.warn) events.warn(text);
}

void HostMemory::Impl::accept_workers() {
  for (int i = 0; i < kAcceptsPerTurn && accepting; ++i) {
    UniqueFd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)) return;
    if (!fd) {
      retry_later();
      rest_listener(kRetryPause);
      return;
    }
    if (const PeerIdentity peer = identity_of(fd.get()); peer.uid != options.user) {
      turn_away(AgentSocket(std::move(fd)), peer);
      continue;
    }
    const auto unclaimed = [](const Connection& one) { return one.slot < 0; };
    if (size_t(std::count_if(connections.begin(), connections.end(), unclaimed)) >=
        slots.size() + kStrangersMax)
      drop(*std::find_if(connections.begin(), connections.end(), unclaimed));
    Connection& connection = connections.emplace_back();
    connection.socket = AgentSocket(std::move(fd));
    loop.watch(connection.socket.fd(), EPOLLIN,
               [this, &connection](uint32_t what) { read(connection, what); });
  }
}

// Not among those who have yet to claim: no other user may crowd workers out.
void HostMemory::Impl::turn_away(AgentSocket socket, const PeerIdentity& peer) {
  socket.send(refusal(ErrorCode::kUnavailable, "process " + std::to_string(peer.pid) +
                                                   " runs as user " + std::to_string(peer.uid) +
                                                   ", the job is user " +
                                                   std::to_string(options.user) + "'s"));
  if (++strangers < kStrangersPerRest) return;
  strangers = 0;
  rest_listener(kStrangersRest);
}

// Or the listener would wake us for ever.
void HostMemory::Impl::rest_listener(std::chrono::milliseconds pause) {
  accepting = false;
  loop.rearm(listener.get(), 0);
  if (!next_try) next_try = Clock::now() + pause;
}

void HostMemory::Impl::read(Connection& connection, uint32_t what) {
  try {
    if (what & EPOLLOUT) connection.socket.flush();
    for (int i = 0; i < kMessagesPerTurn; ++i) {
      std::optional<AgentMessage> message = connection.socket.receive();
      if (!message) break;
      handle(connection, *message);
    }
  } catch (const Error& error) {
    refuse(connection, error.code(), error.what());
    drop(connection);
    return;
  } catch (const std::exception& error) {
    refuse(connection, ErrorCode::kUnavailable, text_of(error));
    drop(connection);
    return;
  }
  if (connection.socket.ended()) {
    drop(connection);
    return;
  }
  watch_for(connection);
}

// Room in the socket is an event. What the kernel refused is not: the socket would say "writable"
// in every turn.
void HostMemory::Impl::watch_for(Connection& connection) {
  if (connection.socket.waiting_for_kernel()) retry_later();
  const bool room = connection.socket.waiting() && !connection.socket.waiting_for_kernel();
  if (connection.watching_room == room) return;
  connection.watching_room = room;
  loop.rearm(connection.socket.fd(), EPOLLIN | (room ? EPOLLOUT : 0u));
}

void HostMemory::Impl::retry_later() {
  if (next_try) return;
  next_try = Clock::now() + kRetryPause;
  if (std::exchange(shortage_told, true)) return;
  warn(std::string("workers wait for descriptors: as many are open or under way as this user may "
                   "have; ") +
       kRaiseOpenFiles);
}

void HostMemory::Impl::retry() {
  next_try.reset();
  if (!accepting) {
    accepting = true;
    loop.rearm(listener.get(), EPOLLIN);
  }
  for (Connection& connection : connections) {
    if (!connection.socket.waiting_for_kernel()) continue;
    connection.socket.flush();
    watch_for(connection);
  }
}

void HostMemory::Impl::refuse(Connection& connection, ErrorCode code, const std::string& text) {
  warn("a worker's socket is closed: " + text);
  send(connection, refusal(code, text));
}

// Throws when the message is none that this connection may send.
void HostMemory::Impl::handle(Connection& connection, const AgentMessage& message) {
  if (connection.slot < 0 || message.kind == AgentMessage::kClaim) {
    claim(connection, message);
    return;
  }
  Slot& slot = slots[static_cast<size_t>(connection.slot)];
  watch.poke();
  if (message.kind == AgentMessage::kWantEpoch) {
    want_epoch(slot, message);
    return;
  }
  if (!in_epoch(slot) || message.epoch != epoch->epoch()) return;  // of another epoch
  switch (message.kind) {
    case AgentMessage::kRequestSegment:
      give_segment(slot, message);
      return;
    case AgentMessage::kRequestLinks:
      want_links(slot, message);
      return;
    case AgentMessage::kBroken:
      ask();
      return;
    case AgentMessage::kStoreSet:
    case AgentMessage::kStoreGet:
    case AgentMessage::kStoreWait:
    case AgentMessage::kStoreAdd:
      ask_store(slot, message);
      return;
    default:
      throw Error(ErrorCode::kInvalidArgument, "a worker sent what only agents send");
  }
}

// Why this process cannot be that rank; empty: it can.
std::string HostMemory::Impl::objection(const Connection& connection, const AgentMessage& message,
                                        pid_t* pid) const {
  const PeerIdentity peer = identity_of(connection.socket.fd());
  *pid = peer.pid;
  const std::string who = "process " + std::to_string(peer.pid);
  if (message.kind != AgentMessage::kClaim || connection.slot >= 0)
    return who + " did not begin with one claim of a rank";
  if (message.id >= slots.size())
    return who + " claims place " + std::to_string(message.id) + " of " +
           std::to_string(slots.size()) + kLeaveAgent;
  const Slot& slot = slots[message.id];
  const std::string what = who + " claims rank " + std::to_string(slot.rank) + ", but ";
  if (peer.pid != slot.worker) {  // which counts also where /proc hides it
    errno = 0;
    const std::vector<pid_t> chain = ancestry(peer.pid, getpid());
    if (chain.empty() && errno == EMFILE)
      return what + "no descriptor is left to see who started it; " + kRaiseOpenFiles;
    if (chain.empty())
      return what + "this job did not start it; start it with hvdrun, or unset HVD_AGENT and " +
             "HVD_SIZE for a world of one";
    for (const Slot& other : slots) {
      if (&other == &slot || other.worker == 0 || other.worker_ended) continue;
      if (std::find(chain.begin(), chain.end(), other.worker) != chain.end())
        return what + "it was started by rank " + std::to_string(other.rank) + kLeaveAgent;
    }
  }
  if (!slot.speaks()) return "";
  const bool by_exec =
      slot.pid == peer.pid && (slot.connection == nullptr || hung_up(slot.connection->socket.fd()));
  if (!by_exec)
    return what + "process " + std::to_string(slot.pid) +
           " has done so before; a rank is one process: call hvd::init() in one of them, or in the "
           "later one once the former has ended";
  return owes_nothing(slot) ? ""
                            : what +
                                  "its program has replaced itself by exec without "
                                  "hvd::shutdown(), on which others count; call that before exec";
}

void HostMemory::Impl::claim(Connection& connection, const AgentMessage& message) {
  pid_t pid = 0;
  std::string why = objection(connection, message, &pid);
  UniqueFd pidfd;
  if (why.empty()) {
    pidfd = open_pidfd(pid);
    if (!pidfd)
      why = "process " + std::to_string(pid) +
            (errno == ESRCH ? " ended while it claimed a rank"
                            : " claims a rank, but " +
                                  text_of(std::system_error(errno, std::generic_category(),
                                                            "it cannot be watched: pidfd_open")));
  }
  if (!why.empty()) throw Error(ErrorCode::kUnavailable, why);

  Slot& slot = slots[message.id];
  if (slot.speaks()) {  // what was its program before an exec
    loop.unwatch(slot.pidfd.get());
    slot.pidfd.reset();
    watch.forget(slot_number(slot));
    if (slot.connection != nullptr) drop(*slot.connection);
  }
  slot.page = make_mapped_memory("hvd-status", sizeof(StatusPage));
  StatusPage& page = *new (slot.page.mapping.get()) StatusPage{};
  page.magic = StatusPage::kMagic;
  page.version = StatusPage::kVersion;
  slot.pid = pid;
  slot.pidfd = std::move(pidfd);
  slot.connection = &connection;
  slot.asked = slot.dead = slot.ended_well = slot.left = slot.stranded_others = false;
  slot.given_up.clear();
  slot.local_rank = -1;
  slot.epoch = 0;
  slot.doing.clear();
  connection.slot = static_cast<int>(message.id);
  loop.watch(slot.pidfd.get(), EPOLLIN, [this, id = connection.slot, pid](uint32_t) {
    process_ended(id, !slots[static_cast<size_t>(id)].dead && exits_well(pid));
  });

  AgentMessage answer;
  answer.kind = AgentMessage::kClaimed;
  const int fd = slot.page.fd.get();
  send(connection, answer, std::span(&fd, 1));
  if (events.claimed) events.claimed(connection.slot, pid);
}

void HostMemory::Impl::send(Connection& connection, const AgentMessage& message,
                            std::span<const int> fds, const std::shared_ptr<const void>& owner) {
  try {
    connection.socket.send(message, fds, owner);
  } catch (const Error& error) {
    // Not here, where any loop may hold a reference to it: its end is read on the next turn.
    warn(std::string("a worker's socket is closed: ") + error.what());
    shutdown(connection.socket.fd(), SHUT_RDWR);
    return;
  }
  watch_for(connection);
}

void HostMemory::Impl::send_descriptors(Connection& connection, const AgentMessage& message,
                                        const Descriptors& descriptors) {
  const std::span<const int> fds(descriptors.fds);
  for (size_t at = 0; at < fds.size(); at += kAgentMessageFdsMax) {
    const size_t count = std::min(kAgentMessageFdsMax, fds.size() - at);
    send(connection, message, fds.subspan(at, count), descriptors.owner);
  }
}

// The socket is gone: of a living process that is no death, but nobody may wait for it in vain.
void HostMemory::Impl::drop(Connection& connection) {
  const int id = connection.slot;
  loop.unwatch(connection.socket.fd());
  connections.remove_if([&](const Connection& one) { return &one == &connection; });
  if (id < 0) return;
  Slot& slot = slots[static_cast<size_t>(id)];
  slot.connection = nullptr;
  if (slot.speaks()) socket_ended(slot);
}

}  // namespace hvd
