#include "cli/frame.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/error.h"

namespace hvd {
namespace {

// Little-endian on the wire, as x86-64 and arm64 are.
struct Wire {
  uint32_t bytes;
  uint8_t kind, stream;
  uint16_t zero;
  int32_t rank;
  uint32_t zero2;
  int64_t time_ns;
};
static_assert(sizeof(Wire) == kHeaderBytes);

FrameHeader decode(const char* data) {
  Wire wire;
  std::memcpy(&wire, data, sizeof wire);
  if (wire.kind < 1 || wire.kind > uint8_t(FrameKind::kOwnWordsOver) || wire.stream > 1 ||
      wire.zero != 0 || wire.bytes > kFrameBytesMax || wire.time_ns < 0)
    throw Error(ErrorCode::kInternal, "an agent's stream holds a malformed frame header");
  return {wire.bytes, FrameKind(wire.kind), Stream(wire.stream), wire.rank, wire.time_ns};
}

}  // namespace

void append_header(std::string& out, const FrameHeader& header) {
  Wire wire{header.bytes,  uint8_t(header.kind), uint8_t(header.stream), 0, header.rank, 0,
            header.time_ns};
  out.append(reinterpret_cast<const char*>(&wire), sizeof wire);
}

bool FrameReader::skip_noise(std::string_view& input) {
  noise_.append(input);
  size_t at = noise_.find(kFrameMagic);
  if (at == std::string::npos) {
    input = {};
    if (noise_.size() > kNoiseBytesMax) noise_.erase(0, noise_.size() - kNoiseBytesMax);
    return false;
  }
  input.remove_prefix(input.size() - (noise_.size() - at - kFrameMagic.size()));
  noise_.resize(at);
  seeking_ = false;
  return true;
}

bool FrameReader::next(std::string_view& input, Piece& piece) {
  if (seeking_ && !skip_noise(input)) return false;
  if (left_ == 0) {
    size_t take = std::min(kHeaderBytes - partial_.size(), input.size());
    partial_.append(input.substr(0, take));
    input.remove_prefix(take);
    if (partial_.size() < kHeaderBytes) return false;
    header_ = decode(partial_.data());
    partial_.clear();
    left_ = header_.bytes;
    if (left_ == 0) {
      piece = {header_, {}, true};
      return true;
    }
  }
  if (input.empty()) return false;
  size_t take = std::min(left_, input.size());
  left_ -= take;
  piece = {header_, input.substr(0, take), left_ == 0};
  input.remove_prefix(take);
  return true;
}

}  // namespace hvd
