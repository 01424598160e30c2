// The memory that all local ranks map: a list of segments, each one piece per rank.
//
// Segments are never resized, moved, or reused in another epoch. Adding one is a collective in
// program order (OperationKind::kSegment). The own piece stays mapped as long as anyone holds the
// segment: a gradient may outlive the epoch. The holder of the progress token only, unless said.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/process_mark.h"
#include "runtime/base/unique_fd.h"

namespace hvd {

class Mapping;

// One segment, as one rank maps it.
class Segment {
 public:
  // Maps every rank's piece, keeps them out of forked children, and faults in the first
  // `populate_bytes` of the own one. kUnavailable with bytes and limit when memory runs out.
  Segment(uint32_t id, std::vector<UniqueFd> pieces, size_t bytes, int local_rank,
          size_t populate_bytes);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  uint32_t id() const { return id_; }
  size_t bytes() const { return bytes_; }
  // Any thread.
  std::byte* own() const { return addresses_[static_cast<size_t>(local_rank_)]; }
  std::byte* at(int local_rank) const { return addresses_[static_cast<size_t>(local_rank)]; }

  // Throws kUnavailable when a memory limit of this process, or the machine, leaves no room for
  // `bytes` more. The folders are others in tests.
  static void check_headroom(size_t bytes, const std::string& proc = "/proc",
                             const std::string& cgroups = "/sys/fs/cgroup");
  // Faults in [offset, offset + bytes) of one rank's piece, in huge pages where whole ones fit and
  // are to be had. The owner goes first: pages are charged to who touches them first. One thread at
  // a time, which need not hold the token.
  void populate(int local_rank, size_t offset, size_t bytes);
  // Nobody uses the own piece from `offset` on any more: its pages go back to the machine, from all
  // ranks that map them. A store that comes all the same takes a page and harms nobody, for the
  // memory is used for nothing else. Nothing in a forked child, where other things may lie here.
  // Any thread.
  void give_back(size_t offset) noexcept;
  // Nobody uses peers' pieces any more: they are unmapped, the own one stays.
  void release_peers();

 private:
  bool take_huge_page(size_t offset);

  const uint32_t id_;
  const size_t bytes_;
  const int local_rank_;
  const ProcessMark process_;
  bool tries_huge_pages_ = true;  // until one is not to be had, or takes too long
  int huge_pages_ = 0;            // that it has taken, and in what time of the CPU
  std::chrono::nanoseconds huge_pages_took_{};
  std::vector<std::shared_ptr<Mapping>> mappings_;
  std::vector<std::byte*> addresses_;
};

// A place in a segment, the same for every rank that maps it.
struct ArenaAddress {
  uint32_t segment = 0;
  uint64_t offset = 0;

  friend bool operator==(const ArenaAddress&, const ArenaAddress&) = default;
};

class Arena {
 public:
  Arena() = default;
  // What outlives it, a gradient or a buffer, keeps this rank's own piece only.
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void add(std::shared_ptr<Segment> segment);
  void remove(uint32_t id);
  const std::shared_ptr<Segment>& segment(uint32_t id) const { return segments_[id]; }
  bool has(uint32_t id) const { return id < segments_.size() && segments_[id] != nullptr; }
  // Where [data, data + bytes) lies in this rank's own pieces, or nothing.
  std::optional<ArenaAddress> find(const void* data, size_t bytes) const;
  std::byte* at(int local_rank, ArenaAddress address) const {
    return segments_[address.segment]->at(local_rank) + address.offset;
  }

 private:
  std::vector<std::shared_ptr<Segment>> segments_;
  std::map<uintptr_t, const Segment*> by_address_;  // of the own pieces
};

}  // namespace hvd
