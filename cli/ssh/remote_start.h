// The start of an agent on another host, from the first byte of a remote shell to the agent's
// first words: what came from there decides what goes there, how far it is, and what went wrong.
//
// Pure. The other side is not trusted: whatever it sends, this ends ready or failed, or waits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cli/frame.h"
#include "runtime/base/deadline.h"

namespace hvd {

enum class StartPhase { kConnecting, kCopying, kStarting, kReady, kFailed };
std::string_view phase_name(StartPhase phase);

class RemoteStart {
 public:
  // The agent is a file of so many bytes, for processors of this kind, as uname -m has it.
  RemoteStart(uint64_t file_bytes, std::string machine, TimePoint now);

  void take_output(std::string_view bytes, TimePoint now);
  void take_words(std::string_view bytes);
  // A line feed for a start file of the login shell that reads its input, once a second until
  // something of ours is heard; all that reads it else passes over it.
  void nudge(TimePoint now);
  std::optional<TimePoint> next_nudge() const;

  bool asks_for_file() const { return asks_; }
  void answer(std::string_view sha256, TimePoint now);  // in hex

  // What has to be written: all of `text` first, then the file from `file_at` on.
  std::string_view text() const { return text_; }
  void text_written(size_t bytes) { text_.erase(0, bytes); }
  bool wants_file() const { return phase_ == StartPhase::kCopying && file_at_ < file_bytes_; }
  uint64_t file_at() const { return file_at_; }
  void file_written(uint64_t bytes) { file_at_ += bytes; }

  StartPhase phase() const { return phase_; }
  TimePoint since() const { return since_; }  // the phase began then
  const std::string& hello() const { return hello_; }
  const std::string& failure() const { return failure_; }  // what the host itself gave as a reason
  // What the other side printed, the last of it: for people to read.
  const std::string& noise() const { return noise_; }
  const std::string& words() const { return words_; }

 private:
  void enter(StartPhase phase, TimePoint now);
  void fail(std::string why, TimePoint now);
  bool take_mark(TimePoint now);
  void obey(std::string_view line, TimePoint now);
  void take_frames(std::string_view bytes, TimePoint now);

  const uint64_t file_bytes_;
  const std::string machine_;
  StartPhase phase_ = StartPhase::kConnecting;
  TimePoint since_, nudged_;
  bool heard_ = false;  // the script runs
  bool asks_ = false;
  int asked_ = 0;        // how often
  std::string unread_;   // of its output: may become a mark or the magic
  bool framed_ = false;  // the magic has come
  FrameReader frames_{false};
  std::string text_;
  uint64_t file_at_ = 0;
  std::string hello_, failure_, noise_, words_;
};

}  // namespace hvd
