// What is certain of ranks' output while frames of their host are still to be read.
//
// An agent looks at its streams in the order in which they had something, takes what is there, and
// looks at a stream again only when that frame is out. So of two frames of one stream, the second
// was ready no sooner than when the first was taken, and what was ready before that came before it.
// Pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>

#include "runtime/base/deadline.h"

namespace hvd {

class HostFrames {
 public:
  // A frame, or a part of one, of a stream: bytes that were taken at that time, by the host's
  // clock.
  void note(size_t stream, TimePoint taken) {
    Stream& now = streams_[stream];
    if (last_ == &now && now.taken == taken) return;  // the same frame
    if (last_) last_->out = taken;
    if (now.seen && now.taken > certain_) certain_ = now.taken;
    now = {.seen = true, .taken = taken};
    last_ = &now;
  }

  // Until when the stream wrote nothing more than has come; zero where more of it may be on its way
  // that was there when its last frame had gone out.
  TimePoint heard(size_t stream) const {
    const auto found = streams_.find(stream);
    const bool known = found != streams_.end() && found->second.out != TimePoint{};
    return known && certain_ - found->second.out > kSlack ? certain_ : TimePoint{};
  }

 private:
  // A stream that was just read rests, and what comes in one turn of the agent's loop has no order.
  static constexpr std::chrono::milliseconds kSlack{20};

  struct Stream {
    bool seen = false;
    TimePoint taken{};
    TimePoint out{};  // when the next frame was taken: by then its last one had gone out
  };
  std::map<size_t, Stream> streams_;
  Stream* last_ = nullptr;
  TimePoint certain_{};  // whatever was ready before has come
};

}  // namespace hvd
