// Frames on an agent's stdin and stdout: a 24-byte header and that many bytes.
//
// Pure. An agent's stdout starts with kFrameMagic; what comes before it is noise of a remote shell
// and is kept for error messages. Payloads are handed on piece by piece, so a frame may be larger
// than any buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace hvd {

inline constexpr std::string_view kFrameMagic{"\x7fhvdrun-frames\x01\n", 16};
inline constexpr size_t kHeaderBytes = 24;
inline constexpr size_t kFrameBytesMax = 16u << 20;
inline constexpr size_t kNoiseBytesMax = 64u << 10;

enum class FrameKind : uint8_t {
  kBootstrap = 1,
  kStdinData = 2,
  kStdinEof = 3,
  kOutput = 4,
  kHello = 5,         // the first words of an agent on another host
  kWanted = 6,        // before them, of what --ship offers (ship/take_shipment.h)
  kShipment = 7,      // to it: what that is
  kNotShipped = 8,    // from it: why it cannot be there
  kOwnWordsOver = 9,  // of a rank's stderr: what comes now is of processes that were told to end
};
enum class Stream : uint8_t { kStdout = 0, kStderr = 1 };

struct FrameHeader {
  uint32_t bytes = 0;
  FrameKind kind = FrameKind::kOutput;
  Stream stream = Stream::kStdout;
  int32_t rank = 0;
  int64_t time_ns = 0;  // the sender's monotonic clock, when it took the bytes
};

void append_header(std::string& out, const FrameHeader& header);

// Takes bytes as they arrive and yields pieces of frames.
class FrameReader {
 public:
  explicit FrameReader(bool magic_first) : seeking_(magic_first) {}

  struct Piece {
    FrameHeader header;
    std::string_view bytes;  // inside the input
    bool last = false;       // the frame is complete with this piece
  };

  // Consumes from the front of `input`. False when it needs more. Throws kInternal on a malformed
  // header.
  bool next(std::string_view& input, Piece& piece);

  const std::string& noise() const { return noise_; }
  bool inside_frame() const { return left_ > 0 || !partial_.empty(); }

 private:
  bool skip_noise(std::string_view& input);

  bool seeking_;
  std::string noise_;
  std::string partial_;  // of a header
  FrameHeader header_;
  size_t left_ = 0;  // of the payload
};

}  // namespace hvd
