// What the workers of one host share, and who says that one of them is dead.
//
// The agent's end of the workers' sockets: claims of ranks, status pages, the control block and the
// segments of each epoch, doorbells, the Store, death words, and questions to ranks of a broken
// epoch (the rules: "Waiting, death, giving up"). A passive object on the agent's loop thread; it
// starts and reaps no process. Tests drive it without hvdrun.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/agent/rank_facts.h"
#include "cli/loop.h"
#include "rendezvous/agent_socket.h"
#include "rendezvous/world.h"
#include "runtime/base/deadline.h"
#include "runtime/base/unique_fd.h"

namespace hvd {

// A slot is a worker's place on this host, 0 … slots - 1, for the whole job; its local rank may
// differ in a later epoch.
struct EpochMember {
  int slot = 0;
  World world;
};

struct HostMemoryOptions {
  int slots = 1;
  std::vector<int> ranks{};  // by slot: the rank it was started as, for texts; empty: the slot
  int machine_ranks = 0;     // that share its CPUs, on this host or others; 0: the epoch's here
  std::chrono::milliseconds stopped_grace{150};  // for an answer of a rank that /proc shows stopped
  std::chrono::milliseconds grace{2'000};        // of any other one
  uint64_t segment_bytes_max = 0;                // per rank; 0: twice the machine's memory
  uid_t user = getuid();                         // whose processes may be ranks
};

struct Held {
  int slot = 0;
  pid_t pid = 0;
  bool operator==(const Held&) const = default;
};

// A rank of this host asks for links to ranks of others, by their numbers in the epoch's world.
struct LinksWanted {
  int slot = 0;
  uint32_t epoch = 0;
  uint32_t id = 0;
  int rank = 0;
  std::vector<int> remote_ranks;
};

// Why an epoch broke, and for whom the rank whose words these are had waited in vain: ranks as they
// were started.
struct Breakage {
  uint32_t epoch = 0;
  std::string reason;
  std::vector<int> waited_for;
  bool lost_link = false;  // between ranks of several hosts: none of them is to blame
};

// Of the process that spoke for a rank. `breaks_epoch`: others needed the rank, and libhvd had not
// told it of another's death before.
struct Death {
  pid_t pid = 0;
  std::optional<int> status;  // as waitpid() has it; nothing: it was waited for, and nobody knows
  bool breaks_epoch = false;
};

// Called on the loop's thread, from inside the loop or a call of HostMemory. Any may be empty.
struct HostMemoryEvents {
  // A process that speaks for the slot: the worker itself or something that it started.
  std::function<void(int slot, pid_t pid)> claimed{};
  // The slots that wait in init() for the next epoch, each time one more does; `all`: nobody else
  // lives on this host. The answer is start_epoch() or refuse_init().
  std::function<void(const std::vector<int>& slots, bool all)> epoch_wanted{};
  // No task of the rank runs any more; next its death word is written. Up to a second before it can
  // be reaped.
  std::function<void(int slot, const Death& death)> dead{};
  // These are held by debuggers now, with the processes that are; after each change.
  std::function<void(const std::vector<Held>&)> held{};
  // The rank did not answer and is killed now; why: what broke the epoch, and that of this rank.
  std::function<void(int slot, const std::string& why)> given_up{};
  // The answer is give_link() for each or refuse_links(), now or later. Empty: refused.
  std::function<void(const LinksWanted&)> links_wanted{};
  // For the agents of the other hosts of the epoch, if it has any: a rank of this one died before
  // it had left; something else than a death broke it here.
  std::function<void(uint32_t epoch, int slot)> died{};
  std::function<void(const Breakage&)> broken{};
  // A question of such an epoch's Store; the answer is answer_store(). Empty: this host has its
  // own.
  std::function<void(int slot, const AgentMessage& question)> store_asked{};
  std::function<void(const std::string& text)> warn{};
};

class HostMemory {
 public:
  // Listens from now on. Throws std::system_error when the kernel refuses sockets or memory.
  HostMemory(Loop& loop, HostMemoryOptions options, HostMemoryEvents events);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // HVD_AGENT in the slot's environment.
  std::string address(int slot) const;

  // What the agent knows about its own children: the worker of a slot runs, or waitid() returned
  // it; `well`: by exit status 0.
  void started(int slot, pid_t pid);
  void ended(int slot, bool well);

  // Before start_epoch(): by rank of its world, the first rank of the host that rank is on, and by
  // first rank the hosts' names. Without it all are on this one.
  void know_hosts(std::vector<int> first_of_host, HostNames names);
  // Starts the epoch with these members of this host, in the order of their local ranks; all of
  // them wait in init(). Its number is larger than any before. `started_as`: by rank of its world,
  // the rank that each was started as; empty: the same.
  void start_epoch(std::span<const EpochMember> members, std::span<const int> started_as = {});
  // init() of every waiting slot throws kTimeout or, where that is not it, CommFailure, with this
  // text.
  void refuse_init(const std::string& text, bool timed_out);

  // The socket to the rank at that place in `remote_ranks`. Dropped when the epoch or the rank is
  // over.
  void give_link(const LinksWanted& wanted, size_t place, UniqueFd link);
  void refuse_links(const LinksWanted& wanted, const std::string& why);

  // What agents of other hosts have told of ranks of theirs, as those were started; dropped when it
  // is of another epoch than the current one. Each death, and whatever broke the epoch there,
  // breaks it here.
  void hear_of_deaths(uint32_t epoch, std::span<const int> ranks);
  void hear_of_trouble(const Breakage& breakage);
  // Dropped when the epoch or the rank is over.
  void answer_store(int slot, const AgentMessage& answer);

  // While the job is suspended its clocks stand, those of questions and those of ranks.
  void suspend();
  void resume();
  // Looks which ranks a debugger holds: the clocks of time-outs stand as long as it holds any.
  void look_for_debuggers();
  void hold_elsewhere(bool any);  // likewise, of other hosts' ranks

  // When tick() wants to be called next, and that call: both from the agent's loop, every turn.
  std::optional<TimePoint> deadline() const;
  void tick(TimePoint now);

  // What is known about a slot; after its death its last state, for the report.
  RankFacts facts(int slot) const;
  bool anyone_claimed() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hvd
