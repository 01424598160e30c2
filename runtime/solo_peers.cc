#include "runtime/solo_peers.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <new>
#include <system_error>

#include "runtime/base/error.h"
#include "runtime/base/open_files.h"
#include "runtime/base/sealed_memory.h"

namespace hvd {

SoloPeers::SoloPeers(uint32_t epoch) : memory_(std::make_unique<BlockMemory>()) {
  HVD_CHECK(ControlBlock::bytes(1, 1) <= sizeof(BlockMemory), "a block of one fits");
  world_.epoch = epoch;
  world_.host = "localhost";
  block_ = new (memory_->bytes.data()) ControlBlock{};
  block_->magic = ControlBlock::kMagic;
  block_->version = ControlBlock::kVersion;
  block_->epoch = epoch;
  block_->local_size = block_->world_size = block_->machine_ranks = 1;
  new (&block_->rank(0)) RankWords{};
  new (&block_->fate(0)) FateWords{.dead = 0, .host_first = 0, .host_ranks = 1};
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&block_->rank(0).life, &attributes);
  pthread_mutexattr_destroy(&attributes);
  status_page_.magic = StatusPage::kMagic;
  status_page_.version = StatusPage::kVersion;
  for (PrivateFd& doorbell : doorbells_) {
    doorbell = PrivateFd(UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
    if (!doorbell)
      throw Error(ErrorCode::kUnavailable,
                  std::string("no descriptor is left; ") + kRaiseOpenFiles);
  }
}

void SoloPeers::request_segment(uint32_t id, uint64_t bytes) {
  MutexLock lock(mutex_);
  Request& request = requests_[id];
  const std::string what =
      "segment " + std::to_string(id) + " of " + std::to_string(bytes) + " bytes";
  if (bytes > segment_bytes_most()) {
    request.refusal = outside_limit(what, segment_bytes_most());
    return;
  }
  try {
    request.memory = make_sealed_memory("hvd-segment", bytes);
  } catch (const std::system_error& error) {
    request.refusal = what + " cannot be made: " + error.what();
  }
}

std::optional<std::vector<UniqueFd>> SoloPeers::take_segment(uint32_t id) {
  MutexLock lock(mutex_);
  const auto found = requests_.find(id);
  if (found == requests_.end()) return std::nullopt;
  if (!found->second.refusal.empty()) throw Error(ErrorCode::kUnavailable, found->second.refusal);
  std::vector<UniqueFd> pieces;
  pieces.push_back(std::move(found->second.memory));
  requests_.erase(found);
  return pieces;
}

void SoloPeers::ring(int, Sleeper sleeper) {
  const uint64_t one = 1;
  // A full counter is a doorbell that rings already.
  [[maybe_unused]] const ssize_t rung = write(doorbells_[sleeper].get(), &one, sizeof one);
}

}  // namespace hvd
