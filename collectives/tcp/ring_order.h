// In which order the bytes of a ring go, the same on both sides of every link. Pure.
//
// In step s a place sends part (place - s). Long parts go in chunks: in round r chunk r goes its
// first step, chunk r - 1 its second, and so on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace hvd {

// Bytes [begin, end) of some memory.
struct ByteRange {
  size_t begin = 0, end = 0;
  size_t bytes() const { return end - begin; }

  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

class RingOrder {
 public:
  struct Cursor {
    size_t round = 0;
    int step = 0;
    size_t at = 0;  // bytes of the chunk

    size_t chunk() const { return round - static_cast<size_t>(step); }
    bool is_before(const Cursor& other) const {
      return round != other.round ? round < other.round : step < other.step;
    }
  };

  RingOrder() = default;
  // Chunks of so many bytes, not 0, of all parts of the ring.
  RingOrder(std::span<const ByteRange> parts, int steps, size_t chunk_bytes)
      : steps_(steps), chunk_bytes_(chunk_bytes) {
    for (const ByteRange& part : parts) chunks_ = std::max(chunks_, chunks_in(part));
    rounds_ = steps == 0 ? 0 : chunks_ + static_cast<size_t>(steps) - 1;
  }

  bool whole() const { return chunks_ <= 1; }  // parts are one chunk each
  bool done(const Cursor& cursor) const { return cursor.round == rounds_; }

  // On to the next chunk.
  void pass(Cursor& cursor) const {
    cursor.at = 0;
    ++cursor.step;
    if (cursor.step < steps_ && static_cast<size_t>(cursor.step) <= cursor.round) return;
    ++cursor.round;
    cursor.step = cursor.round < chunks_ ? 0 : static_cast<int>(cursor.round - chunks_ + 1);
  }

  // Empty where the part has no more.
  ByteRange chunk_of(const ByteRange& part, size_t chunk) const {
    const size_t chunks = chunks_in(part);
    if (chunk >= chunks) return {part.end, part.end};
    const size_t begin = part.begin + chunk * chunk_bytes_;
    return {begin, chunk + 1 == chunks ? part.end : begin + chunk_bytes_};
  }

 private:
  // A short rest goes with the last whole one.
  size_t chunks_in(const ByteRange& part) const {
    const size_t whole = part.bytes() / chunk_bytes_, rest = part.bytes() % chunk_bytes_;
    return whole == 0 || rest > chunk_bytes_ / 16 ? whole + 1 : whole;
  }

  int steps_ = 0;
  size_t chunk_bytes_ = 1, chunks_ = 1, rounds_ = 0;
};

}  // namespace hvd
