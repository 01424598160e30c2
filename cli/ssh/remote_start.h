// The start of an agent on another host, from the first byte of a remote shell to the agent's
// first words: what came from there decides what goes there, how far it is, and what went wrong.
//
// Pure. The other side is not trusted: whatever it sends, this ends ready or failed, or waits.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cli/frame.h"
#include "cli/ship/ship_offer.h"
#include "runtime/base/deadline.h"

namespace hvd {

// A RemoteStart itself begins with kConnecting: it hears nothing of what is before.
enum class StartPhase { kResolving, kConnecting, kCopying, kStarting, kShipping, kReady, kFailed };
std::string_view phase_name(StartPhase phase);
std::string seconds_text(Clock::duration time);  // "1.5 s"

class RemoteStart {
 public:
  // The agent is a file of so many bytes, for processors of this kind, as uname -m has it. What
  // there is to ship, if anything, is kept by the caller.
  RemoteStart(uint64_t file_bytes, std::string machine, TimePoint now,
              const ShipOffer* offer = nullptr);

  void take_output(std::string_view bytes, TimePoint now);
  void take_words(std::string_view bytes, TimePoint now);
  // A line feed for a start file of the login shell that reads its input, once a second until
  // something of ours is heard; all that reads it else passes over it.
  void nudge(TimePoint now);
  std::optional<TimePoint> next_nudge() const;

  // The agent was there, was started, and has not said a byte.
  bool waits_for_kept_copy() const {
    return phase_ == StartPhase::kStarting && asked_ == 0 && !framed_;
  }

  // The script or its agent runs there.
  bool heard() const { return heard_; }
  // As far as is known: all words are ssh's own.
  bool before_login() const { return !heard_ && noise_.empty() && unread_.empty(); }

  bool asks_for_file() const { return asks_; }
  void answer(std::string_view sha256, TimePoint now);  // in hex

  // What has to be written: all of `text` first, then the file from `file_at` on, or what is to be
  // shipped.
  std::string_view text() const { return std::string_view(text_).substr(text_at_); }
  void text_written(size_t bytes);
  // Of the text the list of what is shipped, which is as long as a file.
  bool sends_list() const { return phase_ == StartPhase::kShipping && !text().empty(); }
  bool wants_file() const { return phase_ == StartPhase::kCopying && file_at_ < file_bytes_; }
  uint64_t file_at() const { return file_at_; }
  void file_written(uint64_t bytes) { file_at_ += bytes; }
  struct Piece {
    int file;  // of the offer
    uint64_t at, bytes;
  };
  std::optional<Piece> wants_shipped() const;
  void shipped_written(uint64_t bytes);
  // Of what it has asked for so far.
  uint64_t shipped() const { return shipped_; }
  uint64_t to_ship() const { return to_ship_; }

  StartPhase phase() const { return phase_; }
  TimePoint since() const { return since_; }  // the phase began then
  const std::string& hello() const { return hello_; }
  const std::string& failure() const { return failure_; }  // what the host itself gave as a reason
  // What the other side printed, the last of it: for people to read.
  const std::string& noise() const { return noise_; }
  const std::string& words() const { return words_; }
  const std::string& first_words() const { return first_words_; }  // ssh's own, before any there
  std::string last_said() const;                // "; ssh's last words were …", or ""
  std::string unfinished(TimePoint now) const;  // what it was at when its time was over

 private:
  void enter(StartPhase phase, TimePoint now);
  void fail(std::string why, TimePoint now);
  bool take_mark(TimePoint now);
  void obey(std::string_view line, TimePoint now);
  void take_frames(std::string_view bytes, TimePoint now);
  void take_frame(FrameKind kind, TimePoint now);
  void take_wish(TimePoint now);
  bool in_dialogue() const {
    return phase_ == StartPhase::kStarting || phase_ == StartPhase::kShipping;
  }

  const uint64_t file_bytes_;
  const std::string machine_;
  const ShipOffer* const offer_;
  StartPhase phase_ = StartPhase::kConnecting;
  TimePoint since_, nudged_;
  bool heard_ = false;
  bool asks_ = false;
  int asked_ = 0;        // how often
  std::string unread_;   // of its output: may become a mark or the magic
  bool framed_ = false;  // the magic has come
  FrameReader frames_{false};
  std::string text_;
  size_t text_at_ = 0;  // of it, written
  uint64_t file_at_ = 0;
  std::string frame_;        // what has come of one
  int wishes_ = 0;           // of the shipment: how often
  std::vector<int> wanted_;  // files of the offer, those first that were asked for first
  std::set<int> ever_wanted_;
  size_t wanted_done_ = 0;  // of them
  uint64_t wanted_at_ = 0;  // of the next one
  uint64_t shipped_ = 0, to_ship_ = 0;
  std::string hello_, failure_, noise_, words_, first_words_;
};

}  // namespace hvd
