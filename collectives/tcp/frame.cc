#include "collectives/tcp/frame.h"

namespace hvd {

std::string frame_fault(const FrameHeader& got, const FrameHeader& due) {
  const auto other = [](const char* what, uint64_t is, uint64_t was_due) {
    return std::string("a message of ") + what + " " + std::to_string(is) + " where " +
           std::to_string(was_due) + " was due";
  };
  if (got.magic != FrameHeader::kMagic) return "bytes that are no message";
  if (got.epoch != due.epoch) return other("epoch", got.epoch, due.epoch);
  if (got.from != due.from) return other("rank", got.from, due.from);
  if ((got.flags & kGoodbye) != 0) return "";
  if (got.sequence != due.sequence) return other("operation", got.sequence, due.sequence);
  if (got.part != due.part) return other("part", got.part, due.part);
  return "";
}

std::string agreed_frame_fault(const FrameHeader& got, const FrameHeader& due) {
  const std::string fault = frame_fault(got, due);
  if (!fault.empty()) return fault;
  return got.hash == due.hash && got.flags == due.flags && got.bytes == due.bytes
             ? ""
             : "a message that does not fit";
}

}  // namespace hvd
