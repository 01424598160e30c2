// Turns the pieces of many streams into whole tagged lines for one sink.
//
// Pure: time comes in, bytes go out through `out`. A line ends at \n, \r\n or a lone \r (progress
// bars), kept as written, and is whole up to kLineBytesMax. A longer one, or a rest without an end
// after kPartialAfter (a prompt), goes out as it is and *holds* the sink: the other streams' lines
// wait until the line ends, for at most kHoldFor or kHeldBytesMax; then comes a newline, they go
// on, and the rest of the held line later starts with the continuation tag. Such splits are
// counted; they are not torn lines, and are between characters where their text is UTF-8.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/deadline.h"

namespace hvd {

inline constexpr size_t kLineBytesMax = 64u << 10;
inline constexpr size_t kHeldBytesMax = 64u << 10;
inline constexpr std::chrono::milliseconds kPartialAfter{200};
inline constexpr std::chrono::milliseconds kHoldFor{1000};

// The bytes of the first line in `bytes` with its end; all of them when no line ends in it.
size_t first_line_bytes(std::string_view bytes);

class LineTagger {
 public:
  // One entry per stream; an empty tag passes bytes through with no tag. `continued` starts the
  // rest of a split line.
  struct Tag {
    std::string first, continued;
    bool stamped = true;  // goes behind the stamp, if there is one
  };
  explicit LineTagger(std::vector<Tag> tags) { add(std::move(tags)); }
  void add(std::vector<Tag> tags);  // of further streams, behind those that there are

  // Written in front of every tag from now on; where that is empty, with a blank behind it.
  void set_stamp(const std::string& stamp) { stamp_ = stamp; }

  // `sent`: by its sender's clock, which only `heard` below is compared with.
  void feed(size_t stream, std::string_view bytes, TimePoint now, std::string& out,
            TimePoint sent = {});
  // Of a stream's sender that we are behind: until when all of the stream has been fed for certain.
  // Nothing: we have fed all that there is. A stream is silent only as far as somebody listened:
  // the rest of a begun line may wait in a pipe that nobody reads.
  using Heard = std::function<std::optional<TimePoint>(size_t stream)>;
  // Call at next_deadline().
  void tick(TimePoint now, std::string& out, const Heard& heard = nullptr);
  void finish(std::string& out);  // all streams have ended: what is left goes out as it is
  std::optional<TimePoint> next_deadline() const;
  int64_t splits() const { return splits_; }

 private:
  enum class Prefix { kTag, kNone, kContinuation };  // what the next byte of a stream comes behind
  struct State {
    Tag tag;
    std::string
        rest;  // arrived and not yet written: no line end in it, except a \r as its last byte
    TimePoint rest_since{}, rest_sent{};  // its first byte
    TimePoint sent{};                     // the newest
    Prefix next = Prefix::kTag;
  };

  void write_prefix(const State& state, std::string& out) const;
  void write_lines(State& state, std::string_view whole, std::string& out);
  void write_partial(size_t stream, TimePoint now, std::string& out);
  void end_rest(size_t stream, std::string& out);
  void end_open_line(std::string& out);
  void end_hold(std::string& out);
  void split_hold(std::string& out);
  bool others_wait() const;
  bool may_go_out(size_t stream) const;

  std::vector<State> streams_;
  std::string stamp_;
  std::optional<size_t> holder_;
  TimePoint held_since_{}, held_sent_{};
  std::string waiting_;     // whole tagged lines of the others while the sink is held
  bool line_open_ = false;  // finish() left a line without an end
  int64_t splits_ = 0;
  size_t resting_ = 0;  // streams with a rest, so that a tick without any is free
};

}  // namespace hvd
