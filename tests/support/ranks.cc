#include "tests/support/ranks.h"

#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <stdexcept>
#include <thread>
#include <utility>

namespace hvd {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

}  // namespace

void add_words(Rank& rank, uint64_t bytes, uint32_t segment) {
  rank.peers->request_segment(segment, bytes);
  rank.arena.add(std::make_shared<Segment>(segment, *rank.peers->take_segment(segment), bytes,
                                           rank.peers->world().local_rank, 0));
}

void Rank::advance_until(const std::function<bool()>& done) {
  const Deadline deadline = Deadline::in(kPatience);
  for (int idle = 0; !done();) {
    if (communicator->progress()) {
      idle = 0;
      continue;
    }
    sched_yield();
    if (++idle % 1024 == 0 && deadline.passed()) throw std::runtime_error("waited for a minute");
  }
}

Outcome Rank::run(Operation& operation) {
  communicator->start(operation);
  advance_until(
      [&] { return operation.outcome.load(std::memory_order_acquire) != Outcome::kPending; });
  return operation.outcome.load(std::memory_order_acquire);
}

void Rank::complete(Operation& operation) {
  const Outcome outcome = run(operation);
  if (outcome != Outcome::kComplete)
    throw std::runtime_error("outcome " + std::to_string(static_cast<int>(outcome)) + ": " +
                             operation.error);
}

std::byte* Rank::add_segment(uint64_t bytes) {
  Operation operation;
  operation.kind = OperationKind::kSegment;
  operation.segment = next_segment++;
  operation.segment_bytes = bytes;
  operation.populate_bytes = bytes;
  complete(operation);
  return arena.segment(operation.segment)->own();
}

std::span<std::byte> Rank::own_memory(uint32_t segment) const {
  if (!arena.has(segment)) return {};
  const std::shared_ptr<Segment> memory = arena.segment(segment);
  return {memory->own(), memory->bytes()};
}

void Rank::leave_broken_epoch() {
  ControlBlock& block = peers->block();
  RankWords& mine = block.rank(peers->world().local_rank);
  advance_until([&] { return block.trouble.load(std::memory_order_acquire) != 0; });
  communicator->close();
  peers->report_broken();
  advance_until([&] {
    mine.seen.store(block.trouble.load(std::memory_order_acquire), std::memory_order_release);
    return communicator->drained();
  });
  mine.quiet.store(1, std::memory_order_release);
  ring_sleepers(*peers);
  advance_until([&] {
    mine.seen.store(block.trouble.load(std::memory_order_acquire), std::memory_order_release);
    for (int k = 0; k < static_cast<int>(block.local_size); ++k)
      if (block.rank(k).quiet.load(std::memory_order_acquire) == 0 &&
          block.rank(k).dead.load(std::memory_order_acquire) == 0)
        return false;
    return true;
  });
  communicator->fail_rest();
}

CommunicatorFactory shared_memory_factory(bool disjoint) {
  return [disjoint](Rank& rank) {
    const uint64_t bytes = communicator_bytes(true);
    add_words(rank, bytes);
    return make_communicator(*rank.peers, rank.arena, {.seed = 1, .disjoint = disjoint});
  };
}

CommunicatorFactory hierarchical_factory(std::vector<int> hosts, bool staging, uint32_t number) {
  return [hosts, staging, number](Rank& rank) {
    add_words(rank, hierarchical_bytes(hosts, staging), number);
    return make_hierarchical_communicator(*rank.peers, rank.arena,
                                          {.segment = number,
                                           .links = number * hierarchical_links(hosts),
                                           .hosts = hosts,
                                           .seed = 1 + number,
                                           .staging = staging});
  };
}

CommunicatorFactory tcp_factory(uint32_t links) {
  return [links](Rank& rank) {
    return make_tcp_communicator(*rank.peers, rank.arena, {.links = links, .seed = 1 + links});
  };
}

RankThreads::RankThreads(const std::vector<int>& ranks_per_host, const CommunicatorFactory& factory)
    : world_(ranks_per_host) {
  if (ranks_per_host.size() % 2 == 1) world_.make_links_by(connected_far);
  for (int k = 0; k < world_.size(); ++k) {
    ranks_.push_back(std::make_unique<Rank>());
    Rank& rank = *ranks_.back();
    rank.rank = k;
    rank.size = world_.size();
    rank.peers = world_.peers(k);
    rank.communicator = factory(rank);
  }
}

void RankThreads::run(const std::function<void(Rank&)>& body) {
  std::vector<std::string> errors(ranks_.size());
  {
    std::vector<std::jthread> threads;
    for (size_t k = 0; k < ranks_.size(); ++k)
      threads.emplace_back([&, k] {
        try {
          body(*ranks_[k]);
        } catch (const std::exception& error) {
          errors[k] = error.what();
        }
      });
  }
  for (size_t k = 0; k < errors.size(); ++k)
    if (!errors[k].empty())
      throw std::runtime_error("rank " + std::to_string(k) + ": " + errors[k]);
}

}  // namespace hvd
