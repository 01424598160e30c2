// The socket between a worker and its agent: framed messages with file descriptors.
//
// An abstract unix socket of the sequenced-packet kind, so that a message arrives whole, with its
// descriptors, or not at all. The plain structs on the wire begin with magic and version: hvdrun
// and libhvd have to be of one version. Neither end ever blocks here: what cannot be sent waits in
// a queue. One thread at a time per socket.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rendezvous/store.h"
#include "rendezvous/world.h"
#include "runtime/base/unique_fd.h"

namespace hvd {

// The kernel's short name of the agent's process, by which others on its host know it.
inline constexpr const char* kAgentProcessName = "hvd-agent";

struct AgentMessage {
  enum Kind : uint16_t {
    // Worker to agent.
    kClaim,           // id: the slot on this host that this process wants to be
    kWantEpoch,       // init(): start me in the next epoch; value: StatusPage::shown
    kRequestSegment,  // id, value: bytes per rank
    kRequestLinks,    // id, body: encode_ranks() of those on other hosts
    kBroken,          // the epoch is broken: see to it that everybody goes quiet
    kStoreSet,        // id: number of the question, key, body
    kStoreGet,        // id, key, value: milliseconds left, -1 for ever
    kStoreWait,       // as kStoreGet, but the answer brings no value
    kStoreAdd,        // id, key, value
    // Agent to worker.
    kClaimed,         // one descriptor: the status page
    kRefused,         // of a claim or of init(); value and body as kStoreRefused
    kWorld,           // the epoch starts; body: encode(World), key: the host; descriptor: the block
    kDoorbells,       // descriptors by local rank and sleeper; several messages when many
    kSegment,         // id, value: bytes per rank; descriptors by local rank, likewise
    kSegmentRefused,  // id, body: why
    kLink,            // id, value: its place among those asked for; its socket
    kLinksRefused,    // id, body: why
    kStoreAnswer,     // id, value: the sum, body: the value
    kStoreRefused,    // id, value: ErrorCode, or kCommFailureCode; body: the text
    kKinds
  };

  Kind kind = kKinds;
  uint32_t epoch = 0;  // that the message belongs to; the receiver drops another one's
  uint32_t id = 0;
  int64_t value = 0;
  std::string key;
  Bytes body;
  std::vector<UniqueFd> fds;
  bool fds_lost = false;  // received: there was no room for them in this process; `fds` is empty

  std::string text() const;  // the body as words
};

inline constexpr int64_t kCommFailureCode = -1;  // the epoch is broken: CommFailure
inline constexpr size_t kAgentMessageKeyMax = 256;
inline constexpr size_t kAgentMessageBodyMax = 64 << 10;
inline constexpr size_t kAgentMessageFdsMax = 250;  // the kernel takes 253

Bytes to_bytes(const std::string& text);
Bytes encode(const World& world);
World decode_world(const AgentMessage& message);  // throws kInvalidArgument when it is none
// Behind a world of several hosts: their names, by the first rank of each, as many as there is room
// for.
using HostNames = std::map<int, std::string>;
void add_hosts(AgentMessage& world, const HostNames& names);
HostNames decode_hosts(const AgentMessage& world);  // likewise
Bytes encode_ranks(std::span<const int> ranks);
std::vector<int> decode_ranks(const AgentMessage& message);  // likewise

class AgentSocket {
 public:
  AgentSocket() = default;
  explicit AgentSocket(UniqueFd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  explicit operator bool() const { return bool(fd_); }

  // Sends, or queues behind what waits. The descriptors in `fds` are the caller's: a queued message
  // keeps their `owner`, or duplicates of them when there is none. Does nothing when the other end
  // is gone (ended() says so later). Throws kUnavailable when 4,096 messages wait already.
  void send(const AgentMessage& message, std::span<const int> fds = {},
            std::shared_ptr<const void> owner = nullptr);
  // Tries again to send what waits. True when nothing is left.
  bool flush();
  bool waiting() const { return !queue_.empty(); }
  // It waits for the kernel, not for its reader, so no event of the socket says when to try again.
  bool waiting_for_kernel() const { return waiting() && kernel_refused_; }

  // The next message, or nothing: none yet, or ended(). Throws kInvalidArgument when what came is
  // not a message of this version.
  std::optional<AgentMessage> receive();
  bool ended() const { return ended_; }  // the other end closed its socket

  void close() { fd_.reset(); }

 private:
  struct Packet {
    std::vector<std::byte> bytes;
    std::vector<int> fds;
    std::shared_ptr<const void> owner;  // keeps them open
  };
  enum class Sent { kYes, kNoRoom, kKernelRefuses, kGone };
  Sent send_packet(const Packet& packet);
  static void duplicate_fds(Packet& packet);

  UniqueFd fd_;
  bool ended_ = false;
  bool kernel_refused_ = false;  // the first of the queue
  std::deque<Packet> queue_;
};

// What HVD_AGENT holds: where the agent listens, and which slot of the host the process may claim.
struct AgentAddress {
  std::string name;  // of the abstract socket: 32 hexadecimal digits
  int slot = 0;

  std::string text() const { return name + ":" + std::to_string(slot); }
  // Throws kInvalidArgument quoting the text.
  static AgentAddress parse(const std::string& text);
};

std::string make_agent_name();                 // 128 random bits
UniqueFd listen_at(const std::string& name);   // non-blocking; throws std::system_error
UniqueFd connect_to(const std::string& name);  // throws kUnavailable when nobody listens

// Who is at the other end, as the kernel knows it since the connection was made.
struct PeerIdentity {
  pid_t pid = 0;
  uid_t uid = 0;
};
PeerIdentity identity_of(int socket);

}  // namespace hvd
