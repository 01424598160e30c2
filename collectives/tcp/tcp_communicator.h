// A Communicator among ranks on different hosts, over one link to each of a few of them.
//
// An operation first goes through an *exchange* (exchange.h): in a few steps everybody hears what
// everybody called, and short data ride along. When all have called the same, what is left of a
// long one *flows*: round the ring, down a chain, or between the cube's neighbours. When they have
// not, a second exchange tells everybody who called what, and it is refused. Nothing of a result is
// stored before the exchange has shown that all agree, so nobody finishes an operation that
// somebody has not entered.
//
// Operations follow each other on the same links in the order of calls, so their messages do. There
// is no word between ranks but by links: after a death, a goodbye or an end of a link the epoch
// breaks. Then nothing more is entered, and who has entered an operation goes on with it: whoever
// died may have done its part before. When it is over, or what it waits for cannot come any more, a
// rank ends its links, and so tells those who wait for it. What is not complete then fails with its
// buffers undefined. Ranks may differ in the last operation that they completed, by one at most.
//
// Sources: tcp_communicator (order, ends), flows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/backends.h"
#include "collectives/communicator.h"
#include "collectives/new_segment.h"
#include "collectives/operation_queue.h"
#include "collectives/peers.h"
#include "collectives/schedule.h"
#include "collectives/tcp/cube.h"
#include "collectives/tcp/exchange.h"
#include "collectives/tcp/links.h"
#include "collectives/tcp/ring.h"

namespace hvd {

class TcpCommunicator final : public Communicator {
 public:
  TcpCommunicator(Peers& peers, Arena& arena, const CommunicatorSpec& spec);

  int rank() const override { return me_; }
  int size() const override { return size_; }
  void start(Operation& operation) override;
  bool progress() override;
  bool idle() const override { return queue_.empty() && !links_.says_goodbye(); }
  std::chrono::milliseconds watch(std::vector<pollfd>& descriptors) const override;
  void close() override;
  bool drained() const override { return closed_ && !links_.says_goodbye(); }
  void fail_rest() override;
  void abort() noexcept override;
  std::vector<int> missing_ranks() const override;
  uint64_t entered() const override { return entered_; }

 private:
  using Step = Exchange::Step;
  enum class Stage : uint8_t { kBegin, kExchange, kTell, kFlow };
  // How far what flows after it has come.
  struct Flow {
    size_t at = 0, sent = 0;
    int step = 0;
    bool begun = false, has_header = false;
    std::byte* result = nullptr;  // allgather
    bool has_room = false, refused = false;
  };

  // tcp_communicator.cc
  Step advance(Operation& operation);
  Step begin(Operation& operation);
  Step leave_exchange(Operation& operation);
  Step refuse(Operation& operation);
  void finish(Outcome outcome);
  void go_on_leaving(bool moved);
  Rider rider_of(const Operation& operation) const;
  ExchangeTask exchange_task(const Operation& operation, Rider rider) const;
  FrameHeader header_of(const Operation& operation, unsigned part) const;
  Side own_side(const Operation& operation);

  // flows.cc
  Step flow(Operation& operation);
  Step alone(Operation& operation);
  bool copy_own_part(const Operation& operation);
  Step ring(Operation& operation);
  Step doubling(Operation& operation);
  Step chain(Operation& operation);
  Step gather(Operation& operation);
  bool begin_gather(Operation& operation);
  RingTask ring_task(const Operation& operation, std::byte* data) const;
  void begin_ring(RingTask task);
  Step run_ring();
  bool take_flow_header(Link& link, const FrameHeader& due);

  // Constant after construction.
  Peers& peers_;
  Arena& arena_;
  ControlBlock& block_;
  const int me_;
  const int size_;

  // Owned by the holder.
  Exchange exchange_;
  Links links_;
  OperationQueue queue_;  // the oldest one is under way
  uint64_t entered_ = 0;
  Stage stage_ = Stage::kBegin;
  Flow flow_;
  RingStream ring_;
  NewSegment new_segment_;
  bool leaves_ = false;                   // enters nothing more
  bool closed_ = false;                   // nor has it anything under way
  std::unique_ptr<std::byte[]> nowhere_;  // allgather: for what this rank only hands on
};

}  // namespace hvd
