#include "runtime/agent_peers.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/fault_point.h"

namespace hvd {
namespace {

// The worker's end of the Store; the agent keeps the table and the deadlines.
class AgentStore final : public Store {
 public:
  AgentStore(AgentConnection& connection, uint32_t epoch)
      : connection_(connection), epoch_(epoch) {}

  void set(const std::string& key, Bytes value) override {
    // Not even sent: the wire has the same limits as the table.
    if (value.size() > kAgentMessageBodyMax) {
      throw Error(ErrorCode::kInvalidArgument,
                  "the value of \"" + key + "\" has " + std::to_string(value.size()) +
                      " bytes; the store takes 65536, use broadcast() for more");
    }
    AgentMessage question = about(AgentMessage::kStoreSet, key);
    question.body = std::move(value);
    connection_.ask(std::move(question));
  }

  Bytes get(const std::string& key, Deadline deadline) override {
    AgentMessage question = about(AgentMessage::kStoreGet, key);
    question.value = milliseconds_left(deadline);
    return connection_.ask(std::move(question)).body;
  }

  void wait(std::span<const std::string> keys, Deadline deadline) override {
    for (const std::string& key : keys) {
      AgentMessage question = about(AgentMessage::kStoreWait, key);
      question.value = milliseconds_left(deadline);
      connection_.ask(std::move(question));
    }
  }

  int64_t add(const std::string& key, int64_t amount) override {
    AgentMessage question = about(AgentMessage::kStoreAdd, key);
    question.value = amount;
    return connection_.ask(std::move(question)).value;
  }

 private:
  AgentMessage about(AgentMessage::Kind kind, const std::string& key) const {
    if (key.size() > kAgentMessageKeyMax) {
      throw Error(ErrorCode::kInvalidArgument,
                  "a key of the store has " + std::to_string(key.size()) + " bytes; use 1 to 256");
    }
    AgentMessage question;
    question.kind = kind;
    question.epoch = epoch_;
    question.key = key;
    return question;
  }

  static int64_t milliseconds_left(Deadline deadline) {
    if (deadline.is_never()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.when() - Clock::now());
    return std::max<int64_t>(left.count(), 0);
  }

  AgentConnection& connection_;
  const uint32_t epoch_;
};

}  // namespace

AgentPeers::AgentPeers(std::shared_ptr<AgentConnection> connection)
    : connection_(std::move(connection)) {
  AgentConnection::Epoch epoch = connection_->join();
  world_ = std::move(epoch.world);
  hosts_ = std::move(epoch.hosts);
  for (UniqueFd& doorbell : epoch.doorbells) doorbells_.emplace_back(std::move(doorbell));
  fault_point("block_map");
  const size_t bytes = ControlBlock::bytes(world_.local_size, world_.size);
  struct stat memory{};
  const bool known = fstat(epoch.block.get(), &memory) == 0;
  const auto there = known ? static_cast<size_t>(memory.st_size) : 0;
  const Error too_small(ErrorCode::kInvalidArgument,
                        "the control block from the agent is too small");
  if (there < sizeof(ControlBlock)) throw too_small;
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, epoch.block.get(), 0);
  if (at == MAP_FAILED) throw Error(ErrorCode::kUnavailable, "the control block cannot be mapped");
  madvise(at, bytes, MADV_DONTFORK);
  block_ = static_cast<ControlBlock*>(at);
  if (block_->magic == ControlBlock::kMagic && block_->version != ControlBlock::kVersion) {
    const uint32_t theirs = block_->version;
    munmap(at, bytes);
    throw Error(ErrorCode::kUnavailable,
                "hvdrun and the libhvd of this program are of different versions (control block " +
                    std::to_string(theirs) + " and " + std::to_string(ControlBlock::kVersion) +
                    "); build the program with the libhvd that came with hvdrun");
  }
  if (there < bytes) {
    munmap(at, bytes);
    throw too_small;
  }
  if (block_->magic != ControlBlock::kMagic || block_->epoch != world_.epoch ||
      static_cast<int>(block_->local_size) != world_.local_size ||
      static_cast<int>(block_->world_size) != world_.size) {
    munmap(at, bytes);
    throw Error(ErrorCode::kInternal, "the control block is not that of this epoch");
  }
  store_ = std::make_unique<AgentStore>(*connection_, world_.epoch);
  // Whoever waits for a segment sleeps on its doorbell; another thread may have read the answer.
  connection_->on_segment(this, [this] {
    for (int sleeper = 0; sleeper < kSleepers; ++sleeper)
      ring(world_.local_rank, static_cast<Sleeper>(sleeper));
  });
}

AgentPeers::~AgentPeers() {
  if (process_.in_child()) return;  // a forked child has neither
  connection_->forget(this);
  munmap(block_, ControlBlock::bytes(world_.local_size, world_.size));
}

std::string AgentPeers::host_name(int rank) {
  const auto found = hosts_.find(static_cast<int>(block_->fate(rank).host_first));
  return found != hosts_.end() ? found->second : "";
}

void AgentPeers::request_segment(uint32_t id, uint64_t bytes) {
  AgentMessage request;
  request.kind = AgentMessage::kRequestSegment;
  request.epoch = world_.epoch;
  request.id = id;
  request.value = static_cast<int64_t>(bytes);
  fault_point("segment_ask");
  connection_->post(request);
}

void AgentPeers::request_links(uint32_t id, std::span<const int> ranks) {
  AgentMessage request;
  request.kind = AgentMessage::kRequestLinks;
  request.epoch = world_.epoch;
  request.id = id;
  request.body = encode_ranks(ranks);
  connection_->expect_links(id, ranks);
  connection_->post(request);
}

void AgentPeers::ring(int local_rank, Sleeper sleeper) {
  const uint64_t one = 1;
  // A full counter is a doorbell that rings already.
  [[maybe_unused]] const ssize_t rung = write(doorbell(local_rank, sleeper), &one, sizeof one);
}

void AgentPeers::report_broken() noexcept {
  if (reported_.exchange(true)) return;
  AgentMessage report;
  report.kind = AgentMessage::kBroken;
  report.epoch = world_.epoch;
  try {
    connection_->post(report);
  } catch (const Error&) {
    // The agent reads nothing any more; whoever waits finds that out by lost_agent().
  }
}

}  // namespace hvd
