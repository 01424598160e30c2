// What collectives and engine need from outside: who is there, the shared words, memory, doorbells,
// and somebody to tell.
//
// Backed by the agent in a job, in-process for ranks as threads. "Local rank" counts the members of
// this host.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rendezvous/store.h"
#include "rendezvous/world.h"
#include "runtime/base/control_block.h"
#include "runtime/base/status_page.h"
#include "runtime/base/unique_fd.h"

namespace hvd {

class Peers {
 public:
  virtual ~Peers() = default;

  virtual const World& world() const = 0;
  // Of that rank's host; empty: there is but one, or it is not known.
  virtual std::string host_name(int /*rank*/) { return ""; }
  virtual ControlBlock& block() = 0;
  virtual StatusPage& status_page() = 0;
  virtual Store& store() = 0;

  // Asks for segment `id` (numbered from 0 in program order, with gaps; all ranks ask for the
  // same): one sealed memory of `bytes` per local rank. Never blocks. All memories are made at the
  // first request, so a dead rank owes nobody a descriptor.
  virtual void request_segment(uint32_t id, uint64_t bytes) = 0;
  // The descriptors by local rank once they are there, given out once. Never blocks; throws
  // kUnavailable when it was refused (out of memory, too large), with the reason.
  virtual std::optional<std::vector<UniqueFd>> take_segment(uint32_t id) = 0;
  // Throws kUnavailable, with both figures, when the limits of this process's memory leave no room
  // for `bytes` more of its segments. Any thread.
  virtual void check_headroom(uint64_t bytes);

  // Can ranks of other hosts be reached at all?
  virtual bool gives_links() const { return false; }
  // Asks for links to those ranks, which ask for theirs to this one by the same id (numbered from 0
  // in program order, apart from segments). A link is a connected, authenticated byte stream, of
  // this epoch and this id alone. Never blocks.
  virtual void request_links(uint32_t id, std::span<const int> ranks);
  // The non-blocking sockets in the order of `ranks` once all are there, given out once. Never
  // blocks; throws kUnavailable when one cannot be had, with the reason.
  virtual std::optional<std::vector<UniqueFd>> take_links(uint32_t id);
  // Of those asked for by `id` and not taken yet: ranks to whom none is there. Empty also where
  // that is not known.
  virtual std::vector<int> missing_links(uint32_t) { return {}; }

  // Wakes one sleeper of a rank. Any thread; never blocks.
  virtual void ring(int local_rank, Sleeper sleeper) = 0;
  // Own doorbell (an eventfd, non-blocking): readable after ring().
  virtual int doorbell(Sleeper sleeper) const = 0;
  // Readable when the agent said something (drained by take_segment(), take_links() and the Store),
  // or is gone; -1: nothing to watch.
  virtual int agent_fd() const = 0;
  // Empty while the agent is there; else why nobody would tell of deaths any more, so that the
  // process has to end.
  virtual std::string lost_agent() = 0;
  // Tells the agent that the epoch is broken, so that it sees to it that everybody goes quiet. Any
  // thread; never blocks.
  virtual void report_broken() noexcept = 0;
};

// Between a store and a load of another word that must not pass it: who publishes stores and then
// looks for sleepers; who goes to sleep says so and then looks once more.
void full_fence();

// After a store that a peer may be asleep for: a full fence, then rings whoever sleeps. Nearly
// always a few loads of words that nobody writes.
void ring_sleepers(Peers& peers);

// The same for this rank's own threads, by another one of them: who waits in a call and, if `all`,
// the engine's.
void ring_own_sleepers(Peers& peers, bool all);

// This rank declares the epoch broken: notes its reason (the first one of all ranks is kept),
// raises trouble, wakes everybody and tells the agent. What comes of it is told in
// runtime/engine/epoch_end.h: nobody gives up, everybody closes. `missing`: the ranks of the job
// who are to blame: those it waited for in vain, or itself. Any thread.
void raise_trouble(Peers& peers, TroubleReason reason, const std::string& text,
                   std::span<const int> missing = {}) noexcept;

// Ranks of the job, for texts: "rank 3", of several hosts "rank 3 on gpu7", "ranks 0, 1 on gpu6, 4
// on gpu8".
std::string rank_text(Peers& peers, int rank);
std::string ranks_text(Peers& peers, std::span<const int> ranks);

// What is said of a rank of the job that enters no more while others need it: by shutdown(), or
// because it let go of what the communicator called `name`, if it has one, is for.
std::string departure_text(Peers& peers, int rank, const std::string& name);

}  // namespace hvd
