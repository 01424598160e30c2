// The bytes that pass through an agent: workers' output to its stdout as frames, and hvdrun's stdin
// frames to rank 0.
//
// Output is moved with splice: the agent never copies it. Everything here is non-blocking and lives
// on the agent's loop.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/frame.h"
#include "cli/loop.h"
#include "runtime/base/unique_fd.h"

namespace hvd {

class OutputForwarder {
 public:
  // To this descriptor, kept by the caller and shared with nobody: it is made non-blocking.
  OutputForwarder(Loop& loop, int output, std::string_view first_words = kFrameMagic);
  void add(int rank, Stream stream, UniqueFd pipe);
  void on_deadline(TimePoint now);  // streams that have rested are looked at again
  std::optional<TimePoint> next_deadline() const;

  // What a rank has left is told to end: a frame is put behind what is in its stderr by now. Once.
  void end_own_words(int rank);
  // The job's processes are gone: take what is there now, do not wait for the end of file. Somebody
  // else who has a stream open may go on writing: that is not waited for.
  void drain();
  // Its writers are as good as blocked: nobody takes anything from us.
  bool blocks(int rank) const;
  bool empty() const;                                     // nothing is left to move
  int64_t framed_bytes() const { return framed_bytes_; }  // of ranks' output, in frames so far
  void discard();                                         // nobody reads any more

 private:
  // A stream that was just read rests this long, so that a busy one is moved in larger pieces. One
  // that gave a large piece rests less: at 1 GB/s a pipe of 1 MiB fills in 1 ms, and the deadline
  // may be late by half of that on a busy machine. A line after a quiet time goes out at once.
  static constexpr std::chrono::microseconds kRest{400}, kRestAfterLarge{100};
  static constexpr size_t kLargeBytes = 32 << 10;
  static constexpr size_t kPieceBytesMax = 256u << 10;
  static constexpr int kLargePipesMax = 16;

  struct Source {
    UniqueFd pipe;
    int rank;
    Stream stream;
    TimePoint rest_until{};
    bool large = false, hung_up = false;  // that nobody has it open for writing was seen
    size_t drain_left = SIZE_MAX;         // while draining: what is still to be taken
    std::optional<size_t> own_left{};  // before the frame that says: the rank's own words are over
    bool own_over = false;             // that was asked for
  };
  using Place = std::shared_ptr<Source>;

  void readable(const Place& source, uint32_t events);
  void pump();
  bool move_current();  // false: stdout would block
  bool wait_for_room();
  void finish_current();
  void look(const Place& source, TimePoint now);
  void say_over(const Place& source, TimePoint now);
  void close(const Place& source);
  void failed();

  Loop& loop_;
  const int output_;
  std::vector<Place> open_;
  std::deque<Place> ready_, resting_;  // to be looked at; in order of rest_until
  Place current_;                      // its frame is being written
  size_t current_left_ = 0;
  std::string header_;  // unwritten part
  std::string marks_;   // behind the frame that is being written
  int64_t framed_bytes_ = 0;
  bool blocked_ = false, draining_ = false, gone_ = false;
  int large_pipes_ = 0;
};

// Feeds stdin to its readers, one or all ranks; reports what every one has taken, which is the
// credit to give back, and once that they are all gone: who went on reading for nobody would do so
// as fast as the other end writes.
//
// Frames may come before the pipes do (in one read with the bootstrap, or long before a host's
// ranks are to start): they wait, bounded by the credit. With several readers the slowest one sets
// the pace.
class StdinFeeder {
 public:
  StdinFeeder(Loop& loop, std::function<void(size_t bytes, bool gone)> taken);
  ~StdinFeeder();
  void expect(size_t readers) { expected_ = readers; }
  void attach(UniqueFd pipe);
  void expect_no_more();  // who is not attached by now never will be
  void feed(std::string_view bytes);
  void end();

 private:
  struct Reader {
    UniqueFd pipe;    // empty: it is gone, and takes everything
    size_t done = 0;  // of pending_
    bool watching = false;
  };
  void write_to(Reader& reader);
  void write_all();
  void give_back();
  void close(Reader& reader);

  Loop& loop_;
  const std::function<void(size_t, bool)> taken_;
  std::deque<Reader> readers_;      // a deque: handlers keep their addresses
  std::optional<size_t> expected_;  // readers that are still to come; nothing: not known yet
  std::string pending_;             // what not all have taken; at most the credit window
  bool ending_ = false, gone_ = false;
};

}  // namespace hvd
