// The memory of one epoch on this host: control block, doorbells and segments, made by the agent so
// that a dead rank owes nobody a descriptor.
//
// Segments are sealed memfds, one per local rank, all made at the first request. Nothing is reused
// in another epoch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/control_block.h"
#include "runtime/base/unique_fd.h"

namespace hvd {

// A sealed memory of that size, mapped. The mapping lives as long as anyone holds the pointer.
struct SharedMemory {
  UniqueFd fd;
  std::shared_ptr<void> mapping;
};
// Throws std::system_error.
SharedMemory make_mapped_memory(const char* name, uint64_t bytes);

// Descriptors, and who keeps them open.
struct Descriptors {
  std::vector<int> fds;
  std::shared_ptr<const void> owner;
};

class EpochMemory {
 public:
  static constexpr uint32_t kSegmentsMax = 65'536;

  // Throws std::system_error when the kernel refuses memory or descriptors.
  EpochMemory(uint32_t epoch, int local_size, int world_size, uint64_t segment_bytes_max);

  uint32_t epoch() const { return block().epoch; }
  int world_size() const { return static_cast<int>(block().world_size); }
  int local_size() const { return static_cast<int>(block().local_size); }
  ControlBlock& block() const { return *static_cast<ControlBlock*>(block_.mapping.get()); }
  int block_fd() const { return block_.fd.get(); }
  const std::shared_ptr<void>& mapping() const { return block_.mapping; }
  Descriptors doorbells() const;  // by local rank and sleeper

  // The descriptors of a segment by local rank; the first request makes them. Throws
  // kInvalidArgument when this request differs from the first one or is beyond kSegmentsMax,
  // kUnavailable when it is too large or the kernel refuses, and then for every rank alike; the
  // text names bytes and limit.
  Descriptors segment(uint32_t id, uint64_t bytes);
  // The local rank has its descriptors. When all have, the agent's own are closed.
  void given(uint32_t id, int local_rank);

  void ring_all() const;

 private:
  struct Segment {
    uint64_t bytes = 0;
    std::shared_ptr<std::vector<UniqueFd>> pieces;  // null: refused, or all ranks have theirs
    std::vector<bool> given;
    std::string refusal;
  };
  Segment make_segment(uint64_t bytes, const std::string& what) const;

  const uint64_t segment_bytes_max_;
  SharedMemory block_;
  std::shared_ptr<std::vector<UniqueFd>> doorbells_;
  std::vector<Segment> segments_;
};

}  // namespace hvd
