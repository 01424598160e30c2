#include "cli/agent/epoch_memory.h"

#include <sys/eventfd.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <string>
#include <system_error>

#include "cli/agent/system_error_text.h"
#include "runtime/base/error.h"
#include "runtime/base/sealed_memory.h"

namespace hvd {
namespace {

void make_life(pthread_mutex_t* life) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(life, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

Descriptors borrow(const std::shared_ptr<std::vector<UniqueFd>>& owner) {
  Descriptors borrowed{{}, owner};
  for (const UniqueFd& fd : *owner) borrowed.fds.push_back(fd.get());
  return borrowed;
}

}  // namespace

SharedMemory make_mapped_memory(const char* name, uint64_t bytes) {
  SharedMemory memory{make_sealed_memory(name, bytes), nullptr};
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd.get(), 0);
  if (at == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  memory.mapping = std::shared_ptr<void>(at, [bytes](void* mapped) { munmap(mapped, bytes); });
  return memory;
}

EpochMemory::EpochMemory(uint32_t epoch, int local_size, int world_size, uint64_t segment_bytes_max)
    : segment_bytes_max_(segment_bytes_max != 0 ? segment_bytes_max : segment_bytes_most()),
      block_(make_mapped_memory("hvd-block", ControlBlock::bytes(local_size, world_size))) {
  ControlBlock& words = *new (block_.mapping.get()) ControlBlock{};
  words.magic = ControlBlock::kMagic;
  words.version = ControlBlock::kVersion;
  words.epoch = epoch;
  words.local_size = static_cast<uint32_t>(local_size);
  words.world_size = static_cast<uint32_t>(world_size);
  for (int rank = 0; rank < local_size; ++rank) make_life(&words.rank(rank).life);
  doorbells_ = std::make_shared<std::vector<UniqueFd>>();
  for (int i = 0; i < local_size * kSleepers; ++i) {
    doorbells_->emplace_back(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!doorbells_->back()) throw std::system_error(errno, std::generic_category(), "eventfd");
  }
}

Descriptors EpochMemory::doorbells() const { return borrow(doorbells_); }

Descriptors EpochMemory::segment(uint32_t id, uint64_t bytes) {
  const std::string what =
      "segment " + std::to_string(id) + " of " + std::to_string(bytes) + " bytes per rank";
  if (id >= kSegmentsMax)
    throw Error(ErrorCode::kInvalidArgument,
                what + " is one too many; an epoch has " + std::to_string(kSegmentsMax));
  if (id >= segments_.size()) {
    segments_.resize(id);  // numbers that were used up by operations that all ranks refused
    segments_.push_back(make_segment(bytes, what));
  }
  const Segment& segment = segments_[id];
  if (segment.bytes != bytes) {
    throw Error(ErrorCode::kInvalidArgument, what + " was asked for, another rank asked for " +
                                                 std::to_string(segment.bytes) + " bytes");
  }
  if (!segment.refusal.empty()) throw Error(ErrorCode::kUnavailable, segment.refusal);
  if (!segment.pieces) throw Error(ErrorCode::kInvalidArgument, what + " was asked for twice");
  return borrow(segment.pieces);
}

EpochMemory::Segment EpochMemory::make_segment(uint64_t bytes, const std::string& what) const {
  Segment made{bytes, nullptr, std::vector<bool>(static_cast<size_t>(local_size())), ""};
  if (bytes == 0 || bytes > segment_bytes_max_) {
    made.refusal = outside_limit(what, segment_bytes_max_);
    return made;
  }
  made.pieces = std::make_shared<std::vector<UniqueFd>>();
  try {
    for (int rank = 0; rank < local_size(); ++rank)
      made.pieces->push_back(make_sealed_memory("hvd-segment", bytes));
  } catch (const std::system_error& error) {
    made.pieces.reset();
    made.refusal = what + " cannot be made: " + text_of(error);
  }
  return made;
}

void EpochMemory::given(uint32_t id, int local_rank) {
  Segment& segment = segments_[id];
  segment.given[static_cast<size_t>(local_rank)] = true;
  if (std::all_of(segment.given.begin(), segment.given.end(), [](bool has) { return has; }))
    segment.pieces.reset();
}

void EpochMemory::ring_all() const {
  const uint64_t one = 1;
  for (const UniqueFd& doorbell : *doorbells_) {
    // A full counter is a doorbell that rings already.
    if (write(doorbell.get(), &one, sizeof one) < 0) continue;
  }
}

}  // namespace hvd
