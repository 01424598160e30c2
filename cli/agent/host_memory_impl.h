// The state behind HostMemory, and the parts of its work: sockets and claims (host_claims.cc),
// epochs and what ranks ask for (host_memory.cc, host_links.cc), deaths and questions
// (host_deaths.cc), and what is told to and heard of other hosts (host_elsewhere.cc).
#pragma once

#include <list>
#include <set>

#include "cli/agent/death_watch.h"
#include "cli/agent/epoch_memory.h"
#include "cli/agent/host_memory.h"
#include "cli/agent/questions.h"
#include "rendezvous/agent_socket.h"
#include "rendezvous/store_service.h"
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
    std::set<uint32_t> links_asked;  // for, in that epoch
    bool dead = false;               // that process runs no more
    bool ended_well = false;         // by exit status 0
    std::string given_up;            // why, if it was
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

  // Of the current epoch, as far as it has ranks on other hosts.
  struct Elsewhere {
    std::vector<int> started_as;  // by rank of its world; empty: the same
    std::vector<bool> here;       // by rank of its world: on this host
    bool broken_told = false;
    Breakage heard;  // why it is broken, if that was heard first
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
  void want_epoch(Slot& slot, const AgentMessage& message);
  void tell_who_wants();
  void start_epoch(std::span<const EpochMember> members, std::span<const int> started_as);
  void check_epoch(std::span<const EpochMember> members, std::span<const int> started_as) const;
  void greet(const EpochMember& member);
  void refuse_init(const std::string& text, bool timed_out);
  void give_segment(Slot& slot, const AgentMessage& message);
  void write_hosts();
  void want_links(Slot& slot, const AgentMessage& message);
  void refuse_links(const LinksWanted& wanted, const std::string& why);
  int slot_number(const Slot& slot) const { return static_cast<int>(&slot - slots.data()); }
  std::string objection_to_links(const Slot& slot, const LinksWanted& wanted) const;
  void answer_links(const LinksWanted& wanted, AgentMessage answer, const Descriptors& links);
  void tell_clock() const;
  static pid_t held_process(const Slot& slot);
  // Null when another process has claimed its slot since.
  Slot* member(int local_rank);
  bool in_epoch(const Slot& slot) const { return epoch && slot.local_rank >= 0; }
  RankWords& words(const Slot& slot) const { return epoch->block().rank(slot.local_rank); }

  // host_elsewhere.cc
  void start_elsewhere(std::span<const int> started_as);
  bool is_current(uint32_t number) const { return epoch && epoch->epoch() == number; }
  bool anyone_elsewhere_lives() const;
  int started_as(int rank) const;
  std::vector<int> numbers_elsewhere(std::span<const int> started) const;
  std::vector<int> missed_by(int local_rank) const;
  std::string shown(int rank) const;
  void hear_of_deaths(std::span<const int> started);
  void hear_of_trouble(const Breakage& breakage);
  void break_elsewhere(const std::string& text);
  void ask_store(Slot& slot, const AgentMessage& question);
  void answer_store(const Slot& slot, const AgentMessage& answer);
  void tell_broken();

  // host_deaths.cc
  void ended(int slot, bool well);
  void process_ended(int slot, bool well);
  void declare_dead(Slot& slot, bool well, std::optional<int> status);
  void freeze(const Slot& slot);
  bool others_live(int local_rank) const;
  bool owes_nothing(const Slot& slot) const;
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
  Elsewhere elsewhere;
  std::vector<int> first_of_host;  // of the next epoch
  HostNames host_names;            // of that one, and then of the current one
  JobClock clock;                  // the ranks see it; the Store's deadlines are its
  bool suspended = false;
  std::vector<Held> held;             // as it was told last
  std::optional<TimePoint> next_try;  // of what the kernel refused for want of descriptors
  bool accepting = true;
  int strangers = 0;  // turned away since the listener rested
  bool shortage_told = false;
  DeathWatch watch;  // last: its thread looks at what is above
};

}  // namespace hvd
