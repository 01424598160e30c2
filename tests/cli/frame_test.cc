// Frames, however their bytes are cut.
#include "cli/frame.h"

#include <string>

#include "runtime/base/error.h"
#include "tests/support/catch.h"

namespace hvd {

TEST_CASE("frame: survives any cut, and keeps what came before the magic") {
  std::string wire = "banner\nnoise";
  wire += kFrameMagic;
  std::string wanted;
  for (int i = 0; i < 20; ++i) {
    const std::string body(size_t(i * 7 % 50), char('a' + i));
    append_header(wire, {uint32_t(body.size()), FrameKind::kOutput, Stream::kStderr, i, 0});
    wire += body;
    wanted += body + "|";
  }
  for (size_t cut = 1; cut < 60; ++cut) {
    FrameReader reader(true);
    std::string seen;
    int rank = 0;
    for (size_t at = 0; at < wire.size(); at += cut) {
      std::string_view input = std::string_view(wire).substr(at, cut);
      FrameReader::Piece piece;
      while (reader.next(input, piece)) {
        seen += piece.bytes;
        REQUIRE(piece.header.rank == rank);
        if (!piece.last) continue;
        seen += "|";
        ++rank;
      }
    }
    REQUIRE(seen == wanted);
    REQUIRE(reader.noise() == "banner\nnoise");
    REQUIRE_FALSE(reader.inside_frame());
  }
}

TEST_CASE("frame: an end inside a frame is seen") {
  std::string wire;
  append_header(wire, {10, FrameKind::kOutput, Stream::kStdout, 0, 0});
  wire += "12345";
  FrameReader reader(false);
  std::string_view input = wire;
  FrameReader::Piece piece;
  REQUIRE(reader.next(input, piece));
  REQUIRE(piece.bytes == "12345");
  REQUIRE_FALSE(piece.last);
  REQUIRE(reader.inside_frame());
}

TEST_CASE("frame: a malformed header is an error") {
  const auto read = [](std::string bytes) {
    FrameReader reader(false);
    std::string_view input = bytes;
    FrameReader::Piece piece;
    reader.next(input, piece);
  };
  REQUIRE_THROWS_AS(read(std::string(kHeaderBytes, '\xff')), Error);
  REQUIRE_THROWS_AS(read(std::string(kHeaderBytes, '\0')), Error);
  std::string huge;
  append_header(huge, {uint32_t(kFrameBytesMax + 1), FrameKind::kOutput, Stream::kStdout, 0, 0});
  REQUIRE_THROWS_AS(read(huge), Error);
}

TEST_CASE("frame: noise is bounded") {
  FrameReader reader(true);
  FrameReader::Piece piece;
  for (int i = 0; i < 100; ++i) {
    const std::string noise(4096, 'n');
    std::string_view input = noise;
    REQUIRE_FALSE(reader.next(input, piece));
  }
  REQUIRE(reader.noise().size() <= kNoiseBytesMax);
}

}  // namespace hvd
