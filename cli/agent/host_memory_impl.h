// The state behind HostMemory, and the parts of its work: sockets and claims (host_claims.cc),
// epochs and what ranks ask for (host_memory.cc), deaths and questions (host_deaths.cc).
#pragma once

#include <list>

#include "cli/agent/death_watch.h"
#include "cli/agent/epoch_memory.h"
#include "cli/agent/host_memory.h"
#include "cli/agent/questions.h"
#include "cli/agent/store_service.h"
#include "rendezvous/agent_socket.h"
#include "runtime/base/error.h"
#include "runtime/base/job_clock.h"
#include "runtime/base/status_page.h"

namespace hvd {

struct HostMemory::Impl {
  // A worker's socket; before the claim it belongs to no slot.
  struct Connection {
    AgentSocket socket;
    int slot = -1;
    bool watching_room = false;  // EPOLLOUT is asked for
  };

  struct Slot {
    int rank = 0;      // as it was started
    pid_t worker = 0;  // the agent's child; 0: not started yet
    bool worker_ended = false;

    // The process that speaks for it; kept after its death, for the facts.
    pid_t pid = 0;
    UniqueFd pidfd;  // open while that process lives
    Connection* connection = nullptr;
    SharedMemory page;
    bool asked = false;   // waits in init()
    int local_rank = -1;  // in the current epoch
    uint32_t epoch = 0;
    bool dead = false;     // that process runs no more
    std::string given_up;  // why, if it was
    bool stranded_others = false;
    bool left = false;
    std::string doing;  // frozen at its death

    bool claimed() const { return pid != 0; }
    bool speaks() const { return bool(pidfd); }
    // Something of it may still ask for an epoch.
    bool living() const {
      if (dead && pid == worker) return false;
      return !worker_ended || (speaks() && !dead);
    }
    StatusPage& status() const { return *static_cast<StatusPage*>(page.mapping.get()); }
  };

  Impl(Loop& loop, HostMemoryOptions options, HostMemoryEvents events);
  ~Impl();

  // host_claims.cc
  void accept_workers();
  void turn_away(AgentSocket socket, const PeerIdentity& peer);
  void rest_listener(std::chrono::milliseconds pause);
  void read(Connection& connection, uint32_t events);
  void refuse(Connection& connection, ErrorCode code, const std::string& text);
  void handle(Connection& connection, const AgentMessage& message);
  void claim(Connection& connection, const AgentMessage& message);
  std::string objection(const Connection& connection, const AgentMessage& message,
                        pid_t* pid) const;
  void send(Connection& connection, const AgentMessage& message, std::span<const int> fds = {},
            const std::shared_ptr<const void>& owner = nullptr);
  void send_descriptors(Connection& connection, const AgentMessage& message,
                        const Descriptors& descriptors);
  void drop(Connection& connection);
  void watch_for(Connection& connection);
  void retry_later();
  void retry();
  void warn(const std::string& text) const;

  // host_memory.cc
  void want_epoch(Slot& slot);
  void tell_who_wants();
  void start_epoch(std::span<const EpochMember> members);
  void check_epoch(std::span<const EpochMember> members) const;
  void greet(const EpochMember& member);
  void refuse_init(const std::string& text);
  void give_segment(Slot& slot, const AgentMessage& message);
  void tell_clock() const;
  static pid_t held_process(const Slot& slot);
  // Null when another process has claimed its slot since.
  Slot* member(int local_rank);
  bool in_epoch(const Slot& slot) const { return epoch && slot.local_rank >= 0; }
  RankWords& words(const Slot& slot) const { return epoch->block().rank(slot.local_rank); }

  // host_deaths.cc
  void ended(int slot);
  void process_ended(int slot);
  void declare_dead(Slot& slot);
  void freeze(int local_rank);
  bool others_live(int local_rank) const;
  void socket_ended(Slot& slot);
  void found(int slot, pid_t pid, DeathWatch::Finding finding);
  void raise_trouble(TroubleReason reason, int local_rank);
  std::string trouble_text() const;
  void add_waited_in_vain(RankFacts& facts) const;
  void ask();
  std::vector<Questions::Answer> answers();
  void look(TimePoint now);
  void give_up(Slot& slot, bool stopped);

  Loop& loop;
  const HostMemoryOptions options;
  const HostMemoryEvents events;
  const std::string name;
  const UniqueFd listener;
  std::list<Connection> connections;
  std::vector<Slot> slots;
  std::unique_ptr<EpochMemory> epoch;  // the current one
  std::unique_ptr<StoreService> store;
  std::optional<Questions> questions;
  std::vector<int> members;  // slots by local rank
  std::vector<int> ranks;    // in the job, by local rank
  JobClock clock;            // the ranks see it; the Store's deadlines are its
  bool suspended = false;
  std::vector<Held> held;             // as it was told last
  std::optional<TimePoint> next_try;  // of what the kernel refused for want of descriptors
  bool accepting = true;
  int strangers = 0;  // turned away since the listener rested
  bool shortage_told = false;
  DeathWatch watch;  // last: its thread looks at what is above
};

}  // namespace hvd
