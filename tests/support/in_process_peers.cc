#include "tests/support/in_process_peers.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "collectives/arena.h"
#include "hvd/error.h"
#include "runtime/base/utf8.h"

namespace hvd {
namespace {

constexpr auto kGrace = std::chrono::milliseconds(20);  // before a silent rank is given up on

UniqueFd make_memory(uint64_t bytes) {
  UniqueFd memory(memfd_create("hvd-test-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory || ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw std::runtime_error("the test cannot make " + std::to_string(bytes) + " bytes of memory");
  return memory;
}

}  // namespace

class InProcessHost::MemoryStore final : public Store {
 public:
  void set(const std::string& key, Bytes value) override {
    std::lock_guard lock(mutex_);
    values_[key] = std::move(value);
    changed_.notify_all();
  }

  Bytes get(const std::string& key, Deadline deadline) override {
    wait(std::span(&key, 1), deadline);
    std::lock_guard lock(mutex_);
    return values_.at(key);
  }

  void wait(std::span<const std::string> keys, Deadline deadline) override {
    std::unique_lock lock(mutex_);
    for (const std::string& key : keys) {
      auto there = [&] { return values_.count(key) != 0; };
      const auto most = std::min(deadline.when(), Clock::now() + std::chrono::hours(1));
      if (!changed_.wait_until(lock, most, there))
        throw Error(ErrorCode::kTimeout, "nobody set \"" + key + "\"");
    }
  }

  int64_t add(const std::string& key, int64_t amount) override {
    std::lock_guard lock(mutex_);
    return counters_[key] += amount;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Bytes> values_;
  std::map<std::string, int64_t> counters_;
};

class InProcessHost::RankPeers final : public Peers {
 public:
  RankPeers(InProcessHost& host, int rank) : host_(host) {
    world_.epoch = host.epoch_;
    const HostPlace& place = host.place_;
    world_.rank = place.first_rank + rank;
    world_.size = static_cast<int>(host.block_->world_size);
    world_.local_rank = rank;
    world_.local_size = host.ranks_;
    world_.cross_rank = place.host;
    world_.cross_size = place.hosts;
    world_.host = "localhost";
  }

  const World& world() const override { return world_; }
  ControlBlock& block() override { return *host_.block_; }
  StatusPage& status_page() override { return host_.status_page(world_.local_rank); }
  Store& store() override { return *host_.store_; }
  void request_segment(uint32_t id, uint64_t bytes) override { host_.request_segment(id, bytes); }
  std::optional<std::vector<UniqueFd>> take_segment(uint32_t id) override {
    return host_.take_segment(id, world_.local_rank);
  }
  void check_headroom(uint64_t bytes) override { host_.check_headroom(bytes); }
  bool gives_links() const override { return host_.place_.others != nullptr; }
  void request_links(uint32_t id, std::span<const int> ranks) override {
    host_.place_.others->request_links(id, world_.rank, ranks);
  }
  std::optional<std::vector<UniqueFd>> take_links(uint32_t id) override {
    return host_.place_.others->take_links(id, world_.rank);
  }
  void ring(int local_rank, Sleeper sleeper) override { host_.ring(local_rank, sleeper); }
  int doorbell(Sleeper sleeper) const override {
    return host_.doorbell(world_.local_rank, sleeper);
  }
  int agent_fd() const override { return -1; }
  std::string lost_agent() override { return ""; }
  void report_broken() noexcept override { host_.report_broken(); }

 private:
  InProcessHost& host_;
  World world_;
};

InProcessHost::InProcessHost(int ranks, uint32_t epoch, const HostPlace& place)
    : ranks_(ranks),
      epoch_(epoch),
      place_(place),
      status_pages_(std::make_unique<StatusPage[]>(static_cast<size_t>(ranks))),
      store_(std::make_shared<MemoryStore>()),
      stopped_(static_cast<size_t>(ranks)) {
  const std::vector<int> hosts =
      place.others != nullptr ? place.ranks_per_host : std::vector{ranks};
  const int world_size = std::accumulate(hosts.begin(), hosts.end(), 0);
  const size_t bytes = ControlBlock::bytes(ranks, world_size);
  block_memory_ = std::make_unique<std::byte[]>(bytes + 64);
  void* memory = block_memory_.get();
  size_t space = bytes + 64;
  std::align(64, bytes, memory, space);
  block_ = new (memory) ControlBlock{};
  block_->magic = ControlBlock::kMagic;
  block_->version = ControlBlock::kVersion;
  block_->epoch = epoch;
  block_->local_size = static_cast<uint32_t>(ranks);
  block_->world_size = block_->machine_ranks = static_cast<uint32_t>(world_size);
  int first = 0;
  for (const int count : hosts) {
    for (int k = first; k < first + count; ++k)
      new (&block_->fate(k)) FateWords{.dead = 0,
                                       .host_first = static_cast<uint32_t>(first),
                                       .host_ranks = static_cast<uint32_t>(count)};
    first += count;
  }
  for (int k = 0; k < ranks; ++k) {
    RankWords* words = new (&block_->rank(k)) RankWords{};
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&words->life, &attributes);
    pthread_mutexattr_destroy(&attributes);
    status_page(k).magic = StatusPage::kMagic;
    status_page(k).version = StatusPage::kVersion;
    for (int sleeper = 0; sleeper < kSleepers; ++sleeper)
      doorbells_.emplace_back(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  }
  agent_ = std::jthread([this](std::stop_token stop) { answer_questions(stop); });
}

InProcessHost::~InProcessHost() { stop_agent(); }

void InProcessHost::stop_agent() {
  if (!agent_.joinable()) return;
  agent_.request_stop();
  agent_.join();
}

std::unique_ptr<Peers> InProcessHost::peers(int rank) {
  return std::make_unique<RankPeers>(*this, rank);
}

void InProcessHost::ring(int rank, int sleeper) {
  const uint64_t one = 1;
  // A full counter is readable already.
  [[maybe_unused]] const ssize_t written = write(doorbell(rank, sleeper), &one, sizeof one);
}

void InProcessHost::request_segment(uint32_t id, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (segments_.count(id) != 0) return;
  SegmentRequest& request = segments_[id];
  request.bytes = bytes;
  if (bytes > segment_bytes_max_) {
    request.refusal = segment_refusal_;
    return;
  }
  for (int k = 0; k < ranks_; ++k) request.memories.push_back(make_memory(bytes));
}

std::optional<std::vector<UniqueFd>> InProcessHost::take_segment(uint32_t id, int rank) {
  std::lock_guard lock(mutex_);
  const auto it = segments_.find(id);
  if (it == segments_.end()) return std::nullopt;
  if (it->second.memories.empty()) throw Error(ErrorCode::kUnavailable, it->second.refusal);
  std::vector<UniqueFd> copies;
  for (const UniqueFd& memory : it->second.memories)
    copies.push_back(rank == apart_ ? make_memory(it->second.bytes)
                                    : UniqueFd(fcntl(memory.get(), F_DUPFD_CLOEXEC, 0)));
  return copies;
}

void InProcessHost::keep_apart(int rank) {
  std::lock_guard lock(mutex_);
  apart_ = rank;
}

void InProcessHost::limit_segments(uint64_t bytes, const std::string& reason) {
  std::lock_guard lock(mutex_);
  segment_bytes_max_ = bytes;
  segment_refusal_ = reason;
}

void InProcessHost::limit_memory(const std::string& root) {
  std::lock_guard lock(mutex_);
  proc_ = root + "/proc";
  cgroups_ = root + "/cgroup";
}

void InProcessHost::check_headroom(uint64_t bytes) {
  std::unique_lock lock(mutex_);
  const std::string proc = proc_, cgroups = cgroups_;
  lock.unlock();
  Segment::check_headroom(bytes, proc, cgroups);
}

void InProcessHost::declare_dead(int rank) {
  block_->rank(rank).dead.store(1, std::memory_order_release);
  block_->trouble.fetch_add(1, std::memory_order_seq_cst);
  ring_all();
  if (place_.others != nullptr) place_.others->relay_death(place_.first_rank + rank);
}

void InProcessHost::ring_all() {
  for (int k = 0; k < ranks_; ++k)
    for (int sleeper = 0; sleeper < kSleepers; ++sleeper) ring(k, sleeper);
}

void InProcessHost::hear_of_death(int world_rank) {
  block_->fate(world_rank).dead.store(1, std::memory_order_release);
  hear_of_trouble("rank " + std::to_string(world_rank) + " died");
}

// The text before the word that points to it, and both before any question: from then on this agent
// asks, too.
void InProcessHost::hear_of_trouble(const std::string& text) {
  std::lock_guard lock(mutex_);
  if (!told_elsewhere_) copy_text(block_->elsewhere, sizeof block_->elsewhere, text);
  uint32_t none = 0;
  block_->reason.compare_exchange_strong(none, static_cast<uint32_t>(TroubleReason::kElsewhere));
  told_elsewhere_ = broken_ = true;
  block_->trouble.fetch_add(1, std::memory_order_seq_cst);
  ring_all();
  reported_.notify_all();
}

std::string InProcessHost::reason_text() const {
  const uint32_t word = block_->reason.load(std::memory_order_acquire);
  const char* text = block_->rank(static_cast<int>(word >> 8)).reason;
  if (word != 0 && text[0] != 0) return text;
  for (int k = 0; k < ranks_; ++k)
    if (block_->rank(k).dead.load(std::memory_order_acquire) != 0)
      return "rank " + std::to_string(place_.first_rank + k) + " died";
  return "a rank of another host broke the epoch off";
}

void InProcessHost::stop(int rank) {
  std::lock_guard lock(mutex_);
  stopped_[static_cast<size_t>(rank)] = true;
}

void InProcessHost::report_broken() noexcept {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(broken_, true)) return;
    reported_.notify_all();
  }
  if (place_.others != nullptr) place_.others->relay_trouble(place_.host, reason_text());
}

// Whoever is neither quiet nor dead is asked once per grace, until there is nobody left to ask.
void InProcessHost::answer_questions(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  reported_.wait(lock, stop, [this] { return broken_; });
  while (!stop.stop_requested()) {
    lock.unlock();
    const bool all_gone = ask();
    lock.lock();
    if (all_gone) return;
    reported_.wait_for(lock, stop, kGrace, [] { return false; });
    const uint32_t question = block_->trouble.load(std::memory_order_acquire);
    std::vector<int> given_up;
    for (int k = 0; k < ranks_; ++k) {
      RankWords& words = block_->rank(k);
      const bool silent = words.seen.load(std::memory_order_acquire) < question &&
                          words.quiet.load(std::memory_order_acquire) == 0;
      if (silent && stopped_[static_cast<size_t>(k)] &&
          words.dead.load(std::memory_order_acquire) == 0)
        given_up.push_back(k);
    }
    lock.unlock();
    for (int k : given_up) declare_dead(k);
    lock.lock();
  }
}

bool InProcessHost::ask() {
  bool all_gone = true;
  for (int k = 0; k < ranks_; ++k) {
    const RankWords& words = block_->rank(k);
    all_gone &= words.quiet.load(std::memory_order_acquire) != 0 ||
                words.dead.load(std::memory_order_acquire) != 0;
  }
  if (all_gone) return true;
  block_->trouble.fetch_add(1, std::memory_order_seq_cst);
  ring_all();
  return false;
}

}  // namespace hvd
