// What stands before the bytes of every message on a link.
//
// Both ends are of one version, and so of one layout: agents refuse another one before there is a
// link. What the reader did not ask for is no message: it breaks the epoch, and says why.
#pragma once

#include <bit>
#include <cstdint>
#include <string>

namespace hvd {

static_assert(std::endian::native == std::endian::little, "headers travel as they lie in memory");

enum FrameFlag : uint16_t {
  kDiffers = 1,  // the sender knows of ranks that called something else, or cannot do their part
  kGoodbye = 2,  // the sender enters no operation from this sequence number on
  kFar = 4,      // the sender knows of links that are far
};

// Which message of an operation: one of these, and for swaps and doublings their number added.
enum FramePart : uint16_t {
  kEnterPart = 0x100,    // who is beyond the cube, to its stand-in
  kSwapPart = 0x200,     // between neighbours of the cube
  kResultPart = 0x300,   // the stand-in's answer
  kTellPart = 0x400,     // added to the three above: why it is refused
  kRingPart = 0x1000,    // in whole parts
  kChunksPart = 0x1100,  // in chunks
  kDoublePart = 0x1200,
  kGoodbyePart = 0x2000,
};

struct FrameHeader {
  static constexpr uint32_t kMagic = 0x31647668;  // "hvd1"

  uint32_t magic = kMagic;
  uint32_t epoch = 0;
  uint64_t sequence = 0;
  uint64_t hash = 0;  // of what the sender called
  uint32_t from = 0;  // rank
  uint16_t part = 0;
  uint16_t flags = 0;
  uint64_t bytes = 0;  // that follow
};
static_assert(sizeof(FrameHeader) == 40);

// Why `got` is not the message that is due, or nothing. Hash, flags and bytes are for the reader of
// the operation.
std::string frame_fault(const FrameHeader& got, const FrameHeader& due);
// The same of a message between ranks that have agreed: nothing may differ.
std::string agreed_frame_fault(const FrameHeader& got, const FrameHeader& due);

}  // namespace hvd
