#include "cli/ssh/remote_start.h"

#include <algorithm>

#include "cli/quoted.h"
#include "cli/ssh/remote_script.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

constexpr auto kNudge = 1s;
constexpr size_t kNudgesMax = 64;      // unread ones
constexpr int kAskedMax = 8;           // the script tries fewer folders
constexpr size_t kLineBytesMax = 256;  // of the script's
constexpr size_t kKeptBytesMax = 64u << 10;
constexpr size_t kHelloBytesMax = 64u << 10;

void keep_last(std::string& kept, std::string_view bytes) {
  kept.append(bytes);
  if (kept.size() > kKeptBytesMax) kept.erase(0, kept.size() - kKeptBytesMax);
}

// How many bytes at the end of `text` may be the beginning of `word`.
size_t begun(std::string_view text, std::string_view word) {
  size_t length = std::min(text.size(), word.size() - 1);
  while (length > 0 && !text.ends_with(word.substr(0, length))) --length;
  return length;
}

}  // namespace

std::string_view phase_name(StartPhase phase) {
  switch (phase) {
    case StartPhase::kConnecting:
      return "connecting";
    case StartPhase::kCopying:
      return "copying";
    case StartPhase::kStarting:
      return "starting";
    case StartPhase::kReady:
      return "ready";
    case StartPhase::kFailed:
      return "failed";
  }
  return "";
}

RemoteStart::RemoteStart(uint64_t file_bytes, std::string machine, TimePoint now)
    : file_bytes_(file_bytes), machine_(std::move(machine)), since_(now), nudged_(now) {}

void RemoteStart::enter(StartPhase phase, TimePoint now) {
  phase_ = phase;
  since_ = now;
}

void RemoteStart::fail(std::string why, TimePoint now) {
  if (phase_ == StartPhase::kFailed) return;
  failure_ = std::move(why);
  text_.clear();
  asks_ = false;
  enter(StartPhase::kFailed, now);
}

void RemoteStart::take_words(std::string_view bytes) { keep_last(words_, bytes); }

void RemoteStart::take_output(std::string_view bytes, TimePoint now) {
  if (phase_ == StartPhase::kFailed) return;
  if (!framed_) {
    unread_.append(bytes);
    while (phase_ != StartPhase::kFailed && !framed_ && take_mark(now)) {
    }
    if (!framed_) return;
    bytes = unread_;
  }
  if (phase_ != StartPhase::kFailed) take_frames(bytes, now);
}

// Takes what is before the next line of the script's or the magic, and that; false: more has to
// come. Any length of noise is passed on at once but for an end that may be the beginning of
// either.
bool RemoteStart::take_mark(TimePoint now) {
  const size_t magic = unread_.find(kFrameMagic), mark = unread_.find(kRemoteMark);
  if (magic < mark) {
    keep_last(noise_, std::string_view(unread_).substr(0, magic));
    unread_.erase(0, magic + kFrameMagic.size());
    framed_ = heard_ = true;
    if (phase_ != StartPhase::kStarting) enter(StartPhase::kStarting, now);
    return true;
  }
  const size_t held = std::max(begun(unread_, kFrameMagic), begun(unread_, kRemoteMark));
  const size_t passed = std::min(mark, unread_.size() - held);
  keep_last(noise_, std::string_view(unread_).substr(0, passed));
  unread_.erase(0, passed);
  if (mark == std::string::npos) return false;
  const size_t end = unread_.find('\n');
  if (end == std::string::npos) {
    if (unread_.size() > kLineBytesMax) fail("it sent a line without an end", now);
    return false;
  }
  const std::string line = unread_.substr(kRemoteMark.size(), end - kRemoteMark.size());
  unread_.erase(0, end + 1);
  heard_ = true;
  obey(line, now);
  return true;
}

void RemoteStart::obey(std::string_view line, TimePoint now) {
  if (line == "found") {
    enter(StartPhase::kStarting, now);
  } else if (line == "need" && !asks_ && !wants_file() && ++asked_ <= kAskedMax) {
    asks_ = true;
  } else if (line == "copied" && !wants_file()) {
    enter(StartPhase::kStarting, now);
  } else if (line == "damaged") {
    fail("the agent arrived damaged, or cannot be run there", now);
  } else if (line == "nowhere") {
    fail("no folder there takes the agent, " + std::to_string((file_bytes_ >> 20) + 1) +
             " MiB, and lets it run: ~/.cache, $TMPDIR, /tmp, /var/tmp and /dev/shm were tried; "
             "make room, or let programs be run in one of them",
         now);
  } else if (line.starts_with("machine ")) {
    fail("its processor is " + quoted(line.substr(8)) + " and this hvdrun is for " + machine_ +
             ": use hosts of one kind, or an hvdrun built for that one",
         now);
  } else {
    fail("it sent " + quoted(line) + " when that makes no sense", now);
  }
}

void RemoteStart::answer(std::string_view sha256, TimePoint now) {
  asks_ = false;
  text_.append(std::to_string(file_bytes_)).append(" ").append(sha256).append("\n");
  file_at_ = 0;
  enter(StartPhase::kCopying, now);
}

void RemoteStart::take_frames(std::string_view bytes, TimePoint now) {
  try {
    FrameReader::Piece piece;
    while (phase_ == StartPhase::kStarting && frames_.next(bytes, piece)) {
      hello_.append(piece.bytes);
      if (piece.header.kind != FrameKind::kHello || hello_.size() > kHelloBytesMax)
        return fail("its agent's first words are none of an hvdrun's", now);
      if (piece.last) enter(StartPhase::kReady, now);
    }
  } catch (const Error& error) {
    return fail(error.what(), now);
  }
  if (!bytes.empty()) fail("its agent said more than its first words before it was answered", now);
}

std::optional<TimePoint> RemoteStart::next_nudge() const {
  if (heard_ || phase_ != StartPhase::kConnecting || text_.size() >= kNudgesMax) return {};
  return nudged_ + kNudge;
}

void RemoteStart::nudge(TimePoint now) {
  if (const auto due = next_nudge(); !due || now < *due) return;
  nudged_ = now;
  text_ += '\n';
}

}  // namespace hvd
