// What frames of several streams tell of each.
#include "cli/host_frames.h"

#include "tests/support/catch.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

constexpr TimePoint kBegin{1h};

}  // namespace

TEST_CASE("host frames: nothing is certain of a stream before others have come round again") {
  HostFrames frames;
  CHECK(frames.heard(0) == TimePoint{});
  frames.note(0, kBegin);
  CHECK(frames.heard(0) == TimePoint{});
  frames.note(1, kBegin + 1ms);  // by then the first one's had gone out
  CHECK(frames.heard(0) == TimePoint{});
  frames.note(1, kBegin + 300ms);  // what was ready when its last one was taken came before it
  CHECK(frames.heard(0) == TimePoint{});
  frames.note(1, kBegin + 400ms);
  CHECK(frames.heard(0) == kBegin + 300ms);
  frames.note(0, kBegin + 401ms);
  CHECK(frames.heard(0) == TimePoint{});
}

TEST_CASE("host frames: where each waits long for its reader, queueing is no silence") {
  HostFrames frames;
  // Three streams in turn, a second for each frame: whatever a stream had comes two seconds later.
  for (int round = 0; round < 10; ++round)
    for (size_t stream = 0; stream < 3; ++stream) {
      frames.note(stream, kBegin + (3 * round + int(stream)) * 1s);
      for (size_t one = 0; one < 3; ++one) CHECK(frames.heard(one) == TimePoint{});
    }
  // The first one is silent from now on.
  frames.note(1, kBegin + 31s);
  frames.note(2, kBegin + 32s);
  CHECK(frames.heard(0) == kBegin + 29s);
}

TEST_CASE("host frames: parts of a frame are one") {
  HostFrames frames;
  frames.note(0, kBegin);
  for (const auto at : {1ms, 1ms, 1ms, 300ms, 300ms}) frames.note(1, kBegin + at);
  CHECK(frames.heard(0) == TimePoint{});
  frames.note(1, kBegin + 600ms);
  CHECK(frames.heard(0) == kBegin + 300ms);
}

TEST_CASE("host frames: any time that a frame may have is one") {
  HostFrames frames;
  frames.note(0, kBegin);
  for (const TimePoint at : {TimePoint::max(), TimePoint{}, TimePoint::max(), TimePoint::max()})
    frames.note(1, at);
  CHECK(frames.heard(0) == TimePoint{});
}
