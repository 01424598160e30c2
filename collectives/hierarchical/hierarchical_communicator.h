// A Communicator among ranks that share hosts: sums inside a host through its memory, rings between
// hosts, one for each slice of a tensor, so that a host's ranks send at the same time.
//
// One operation is under way at a time. Each rank *enters* it: an entry in its words. The first
// rank of a host, its *leader*, waits for the entries of its host and then goes through one
// exchange (tcp/exchange.h) with the other leaders; its *verdict* tells its host that all ranks of
// all hosts agree, or that they differ: then all say what they called, by the same ways, and it is
// refused. Nothing of a result is stored before the verdict, so nobody finishes an operation that
// somebody has not entered. A short operation rides on the exchange: the leader sums what its host
// brought, and everybody copies the result out of the leader's area. A long one *flows* over lanes
// (lane_plan.h), one for each slice that this rank leads on its host, which is described in
// flows.cc.
//
// Deaths, ends of links and goodbyes break the epoch. Then nothing more is entered, and who has
// entered an operation goes on with it: whoever died may have done its part before. When it is
// over, or what it waits for cannot come any more, a rank touches no peer's memory from then on,
// ends its links and tells its host what it gave up: by that, those who wait for it know, whatever
// it still waits for in other communicators. Survivors may differ in the last operation that they
// completed, by one at most.
//
// Sources: hierarchical_communicator (order, ends), agree (entries, exchange, verdict, refusal),
// flows (lanes).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/arena.h"
#include "collectives/backends.h"
#include "collectives/communicator.h"
#include "collectives/hierarchical/areas.h"
#include "collectives/hierarchical/host_map.h"
#include "collectives/hierarchical/lane_plan.h"
#include "collectives/hierarchical/words.h"
#include "collectives/new_segment.h"
#include "collectives/operation_queue.h"
#include "collectives/peers.h"
#include "collectives/tcp/exchange.h"
#include "collectives/tcp/links.h"
#include "collectives/tcp/ring.h"

namespace hvd {

class HierarchicalCommunicator final : public Communicator {
 public:
  HierarchicalCommunicator(Peers& peers, Arena& arena, const CommunicatorSpec& spec);

  int rank() const override { return peers_.world().rank; }
  int size() const override { return map_.ranks(); }
  void start(Operation& operation) override;
  bool progress() override;
  bool idle() const override { return queue_.empty() && !says_goodbye(); }
  std::chrono::milliseconds watch(std::vector<pollfd>& descriptors) const override;
  void close() override;
  bool drained() const override { return closed_ && !says_goodbye(); }
  void fail_rest() override;
  void abort() noexcept override;
  std::vector<int> missing_ranks() const override;
  uint64_t entered() const override { return entered_; }

  // For tests of old words: the next operation is `sequence` + 1. On every rank, before anybody
  // starts anything.
  void start_at(uint64_t sequence);

 private:
  using Step = Exchange::Step;
  enum class Stage : uint8_t {
    kBegin,
    kMeet,          // the leader: waits for the entries of its host
    kExchange,      // the leader: with the other leaders
    kVerdict,       // all others: wait for what came of it
    kTell,          // the leader: waits until its host has said what it called
    kTellExchange,  // the leader: tells the other leaders
    kTold,          // all others: wait for what all ranks called
    kRoom,          // makes room for what is gathered
    kFlow,
    kSettle,  // waits until nobody touches this rank's tensor any more
  };
  // A slice that this rank leads on its host.
  struct Lane {
    Lane(int its_slice, Peers& peers, uint32_t id, std::vector<int> ranks, const std::string& name)
        : slice(its_slice), links(peers, id, std::move(ranks), name) {}

    const int slice;
    Links links;  // the first one's of a leader are the exchange's, too
    RingStream ring;
    bool begun = false;
    size_t own_ready = 0, rest_ready = 0;  // taken in
    size_t pushed = 0;                     // results that lie in all tensors of the arena
  };
  // How far a flow has come.
  struct Flow {
    size_t chunk_bytes = kWholeParts;  // of the lanes' rings
    std::byte* data = nullptr;         // this rank's tensor, or what it gathers
    bool others_bring = false;         // allreduce: through their input areas
    bool pushes = false;               // results, into tensors in the arena
    uint64_t bring_rounds = 0, brought = 0;
    uint64_t sum_rounds = 0, summed = 0;
    uint64_t give_rounds = 0, given = 0;
    uint64_t take_rounds = 0, taken = 0;
    int next_slice = 0;  // of the round that is taken
    int next_rank = 0;   // kSegment: whose piece is faulted in
    uint64_t at = 0;     // kSegment
    bool refused = false;
  };

  // hierarchical_communicator.cc
  bool take_links();
  bool is_broken_off() const;
  bool says_goodbye() const { return leads() && lanes_.front().links.says_goodbye(); }
  Step advance(Operation& operation);
  Step begin(Operation& operation);
  void finish(Outcome outcome);
  void publish(std::atomic<uint64_t>& word, uint64_t value);
  Step settle(Operation& operation);
  bool has_said(int rank, const std::atomic<uint64_t>& word, uint64_t wanted);
  bool is_frozen(int rank, uint64_t sequence) const;
  void go_on_leaving(bool moved);

  // agree.cc
  void write_entry(Operation& operation);
  TensorPlace place_of(Operation& operation);
  bool rides(const Operation& operation) const;
  Step await_entries(Operation& operation);
  void begin_exchange(Operation& operation, bool differs);
  Rider rider_of(const Operation& operation) const;
  FrameHeader header_of(const Operation& operation) const;
  void fill_result_area(const Operation& operation);
  Step leave_exchange(Operation& operation);
  Step await_verdict(Operation& operation);
  Step go_on(Operation& operation, Verdict verdict);
  void tell(const Operation& operation);
  Step await_tellers(Operation& operation);
  Step leave_tell_exchange(Operation& operation);
  Step refuse(Operation& operation);
  void notice_departure(int local_rank, uint64_t sequence);

  // flows.cc
  Step begin_flow(Operation& operation, size_t chunk_bytes);
  void copy_result(Operation& operation);
  void plan(Operation& operation);
  Step make_room(Operation& operation);
  Step flow(Operation& operation);
  Step meet_segment(Operation& operation);
  bool bring(const Operation& operation);
  bool take_in(const Operation& operation);
  bool input_is_wanted() const;
  void sum_block(const Operation& operation, Lane& lane, const InputBlock& block);
  bool copy_own_part(const Operation& operation, Lane& lane);
  bool turn(const Operation& operation, Lane& lane);
  void begin_ring(const Operation& operation, Lane& lane);
  size_t results_of(const Lane& lane) const;
  bool push(Lane& lane);
  bool give(const Operation& operation);
  bool take(const Operation& operation);
  bool is_over(const Lane& lane) const;

  // Local ranks.
  HostWords& words(int rank) const { return *words_[static_cast<size_t>(rank)]; }
  HostWords& mine() const { return words(me_); }
  const HostEntry& entry(int rank, uint64_t sequence) const {
    return words(rank).entries[sequence % 2];
  }
  // Behind a rank's words.
  std::byte* counts_area(int rank) const;
  std::byte* input_area(int rank) const;
  std::byte* output_area(int rank) const;
  std::byte* tensor_of(int rank) const;  // in the arena
  bool is_private(int rank) const;
  bool takes_results(int rank) const;
  bool gets_pushed(int rank) const;
  int world_rank(int rank) const { return map_.first_rank(host_) + rank; }
  int leader_of(int slice) const { return slice % local_size_; }
  LanePlan& plan_of(const Lane& lane) { return plans_[static_cast<size_t>(lane.slice)]; }
  const LanePlan& plan_of(const Lane& lane) const {
    return plans_[static_cast<size_t>(lane.slice)];
  }
  bool leads() const { return me_ == 0; }
  const Operation& under_way() const { return *queue_.oldest(); }

  // Constant after construction.
  Peers& peers_;
  Arena& arena_;
  ControlBlock& block_;
  const HostMap map_;
  const int host_;
  const int me_;  // local rank
  const int local_size_;
  const std::string name_;  // of one that ranks may close alone
  const std::shared_ptr<Segment> segment_;
  std::vector<HostWords*> words_;
  const Areas areas_;

  // Owned by the holder.
  Exchange exchange_;  // the leader's; the others know by it who is heard of when
  std::deque<Lane> lanes_;
  OperationQueue queue_;  // the oldest one is under way
  uint64_t entered_ = 0;
  Stage stage_ = Stage::kBegin;
  int next_rank_ = 0;  // whose word is awaited
  bool differs_ = false;
  Flow flow_;
  std::vector<LanePlan> plans_;  // of all slices
  NewSegment new_segment_;
  bool departure_noticed_ = false;
  bool leaves_ = false;                   // enters nothing more
  bool will_not_come_ = false;            // what is waited for, since who owes it is frozen
  bool closed_ = false;                   // nor has it anything under way
  std::vector<uint64_t> counts_;          // allgather
  std::unique_ptr<std::byte[]> nowhere_;  // allgather: for what this rank only hands on
  std::vector<const std::byte*> sources_;
};

}  // namespace hvd
