// Fuzz target: the frames on an agent's standard input and output, and what is in them. However the
// bytes are cut, the same frames come of them; what is in one is read or refused.
//
// The first byte says whether a magic comes first, and how large the pieces are.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/frame.h"
#include "cli/hello.h"
#include "cli/line_tagger.h"
#include "cli/network_choice.h"
#include "cli/ship/shipped.h"
#include "proto/rendezvous.pb.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"

namespace {

using namespace hvd;
using namespace std::chrono_literals;

constexpr size_t kStreams = 4;

struct Frames {
  struct One {
    FrameKind kind;
    Stream stream;
    int32_t rank;
    std::string bytes;
    friend bool operator==(const One&, const One&) = default;
  };
  std::vector<One> whole;
  std::string noise, open;  // what came before the magic, and of a frame that is not whole
  bool inside = false, malformed = false;
  friend bool operator==(const Frames&, const Frames&) = default;
};

Frames read_frames(std::string_view input, size_t piece_bytes, bool magic_first) {
  Frames frames;
  FrameReader reader(magic_first);
  try {
    for (size_t at = 0; at < input.size(); at += piece_bytes) {
      std::string_view some = input.substr(at, piece_bytes);
      for (FrameReader::Piece piece; reader.next(some, piece);) {
        HVD_CHECK(piece.header.bytes <= kFrameBytesMax, "a frame is larger than any");
        frames.open += piece.bytes;
        HVD_CHECK(piece.last == (frames.open.size() == piece.header.bytes), "which is the last?");
        if (!piece.last) continue;
        frames.whole.push_back({piece.header.kind, piece.header.stream, piece.header.rank,
                                std::exchange(frames.open, {})});
      }
      HVD_CHECK(some.empty(), "a reader that leaves something");
    }
  } catch (const Error&) {
    frames.malformed = true;
  }
  frames.noise = reader.noise();
  frames.inside = !frames.malformed && reader.inside_frame();
  HVD_CHECK(frames.noise.size() <= kNoiseBytesMax, "too much noise is kept");
  return frames;
}

size_t without_ends(std::string_view text) {
  return text.size() - size_t(std::count(text.begin(), text.end(), '\n'));
}

// Nothing is lost, and nothing but the ends of lines is added where no tag is asked for.
void tag_lines(const std::vector<Frames::One>& frames) {
  LineTagger tagger{std::vector<LineTagger::Tag>(kStreams)};
  TimePoint now{};
  std::string out;
  size_t fed = 0;
  for (const Frames::One& one : frames) {
    if (one.kind != FrameKind::kOutput) continue;
    now += 50ms;
    const auto heard = [&](size_t stream) {
      return stream % 2 == 0 ? std::nullopt : std::optional(now);
    };
    if (const auto due = tagger.next_deadline(); due && *due <= now) tagger.tick(now, out, heard);
    tagger.feed(uint32_t(one.rank) % kStreams, one.bytes, now, out, now);
    fed += without_ends(one.bytes);
  }
  tagger.finish(out);
  HVD_CHECK(without_ends(out) == fed, "output is lost or made up");
}

void read_hello_of(const std::string& bytes) {
  try {
    const Hello hello = read_hello(bytes, {.version = "1", .build = "b", .request = ""});
    HVD_CHECK(hello.version == "1" && hello.build == "b", "another hvdrun's");
    HVD_CHECK(offers_of(hello.interfaces, {}, hello.own_address).size() <= kOffersMax,
              "more addresses than are tried");
  } catch (const Error& error) {
    HVD_CHECK(is_shown(error.what()), "an error is not printable");
  }
}

void read_list(const std::string& bytes) {
  proto::Shipment list;
  if (!list.ParseFromString(bytes)) return;
  try {
    check_shipment(list);
  } catch (const Error&) {
    return;
  }
  for (const proto::ShippedPath& one : list.paths())
    HVD_CHECK(one.path().starts_with('/') && (one.path() + "/").find("/../") == std::string::npos,
              "a path that leads out of its folder");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  if (count == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(bytes) + 1, count - 1);
  const bool magic_first = bytes[0] % 2 == 1;
  const size_t piece = 1 + bytes[0] / 2;
  const Frames frames = read_frames(rest, rest.size() + 1, magic_first);
  HVD_CHECK(frames == read_frames(rest, piece, magic_first), "a cut changes what comes");
  tag_lines(frames.whole);
  for (const Frames::One& one : frames.whole) {
    if (one.kind == FrameKind::kHello) read_hello_of(one.bytes);
    if (one.kind == FrameKind::kShipment) read_list(one.bytes);
  }
  return 0;
}
