// This process's connection to its host's agent: claims the rank once, then joins one epoch after
// another.
//
// Any thread may call; the socket and what came from it are guarded by one mutex. A thread that
// waits here polls the socket and takes in whatever comes, also for others, and wakes them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rendezvous/agent_socket.h"
#include "rendezvous/world.h"
#include "runtime/base/mutex.h"
#include "runtime/base/private_fd.h"
#include "runtime/base/status_page.h"
#include "runtime/base/unique_fd.h"

namespace hvd {

class AgentConnection {
 public:
  // Connects and claims. Throws kUnavailable when nobody answers or the claim is refused.
  explicit AgentConnection(const AgentAddress& address);
  ~AgentConnection();
  AgentConnection(const AgentConnection&) = delete;
  AgentConnection& operator=(const AgentConnection&) = delete;

  StatusPage& status_page() { return *page_; }
  int fd() const { return fd_; }

  struct Epoch {
    World world;
    HostNames hosts;
    UniqueFd block;
    std::vector<UniqueFd> doorbells;  // by local rank and sleeper
  };
  // Asks for the next epoch and waits until it starts; the agent decides how long (it says who is
  // missing). Throws what the agent says, kUnavailable when it ends.
  Epoch join();

  // Never blocks. Throws kUnavailable when the agent leaves thousands of messages unread.
  void post(const AgentMessage& message);
  // A question to the Store; waits for its answer, which the agent gives at the latest when the
  // question's deadline passes. Throws what it says.
  AgentMessage ask(AgentMessage question);
  // The descriptors of a segment of the epoch once all have come, given out once. Never blocks;
  // throws kUnavailable with the agent's reason when it was refused.
  std::optional<std::vector<UniqueFd>> take_segment(uint32_t id);
  // Before they are asked for: links to these ranks will come by this number.
  void expect_links(uint32_t id, std::span<const int> ranks);
  // Their sockets in this order; as take_segment().
  std::optional<std::vector<UniqueFd>> take_links(uint32_t id);
  std::vector<int> missing_links(uint32_t id);  // ranks whose have not come
  // `arrived` is called when a segment or links are complete or refused, from whichever thread took
  // it in; it must not call back. forget() ends that, unless somebody else is called by now.
  void on_segment(const void* owner, std::function<void()> arrived);
  void forget(const void* owner);

  // Why nothing comes from the agent any more: it has ended, or sent what cannot be read; or empty.
  std::string lost();

  // In a forked child, which must not speak for the rank: closes the socket, takes no lock.
  void close_in_child() noexcept;

 private:
  // Descriptors that come together, in several messages.
  struct Parts {
    std::vector<UniqueFd> pieces;
    std::string refusal;
  };
  struct Links {
    std::vector<int> ranks;
    std::vector<UniqueFd> sockets;  // by place in `ranks`
    size_t missing = 0;
    std::string refusal;
  };
  struct Pending {
    UniqueFd wake;  // an eventfd, rung by who took in the answer, or what ends all answers
    std::optional<AgentMessage> answer;
  };

  static void wake(int eventfd);
  void take_in() REQUIRES(mutex_);
  void take_in(AgentMessage message) REQUIRES(mutex_);
  void take_in_segment(AgentMessage message) REQUIRES(mutex_);
  void take_in_link(AgentMessage message) REQUIRES(mutex_);
  std::string why_lost() const REQUIRES(mutex_);
  void check_alive() REQUIRES(mutex_);
  void wait_readable(int also) EXCLUDES(mutex_);

  int fd_ = -1;
  PrivateFd joiner_;  // an eventfd, rung by who took in what join() waits for
  StatusPage* page_ = nullptr;

  Mutex mutex_;
  AgentSocket socket_ GUARDED_BY(mutex_);
  std::string failure_ GUARDED_BY(mutex_);  // why nothing can be read any more
  uint32_t epoch_ GUARDED_BY(mutex_) = 0;
  int local_size_ GUARDED_BY(mutex_) = 0;
  bool claimed_ GUARDED_BY(mutex_) = false;
  std::optional<AgentMessage> refusal_ GUARDED_BY(mutex_);
  std::optional<Epoch> next_ GUARDED_BY(mutex_);  // complete with its last doorbell
  std::map<uint32_t, Parts> segments_ GUARDED_BY(mutex_);
  std::map<uint32_t, Links> links_ GUARDED_BY(mutex_);
  std::function<void()> arrived_ GUARDED_BY(mutex_);
  const void* arrived_owner_ GUARDED_BY(mutex_) = nullptr;
  std::map<uint32_t, Pending> pending_ GUARDED_BY(mutex_);
  uint32_t last_question_ GUARDED_BY(mutex_) = 0;
};

}  // namespace hvd
