#include "cli/ssh/remote_start.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <set>

#include "cli/quoted.h"
#include "cli/ssh/remote_script.h"
#include "cli/ssh/ssh_words.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

constexpr auto kNudge = 1s;
constexpr size_t kNudgesMax = 64;      // unread ones
constexpr int kAskedMax = 8;           // the script tries fewer folders
constexpr size_t kLineBytesMax = 256;  // of the script's
constexpr size_t kKeptBytesMax = 64u << 10;
constexpr size_t kFirstWordsMax = 65'536;  // ssh -vv says 20,000 bytes before it logs in
constexpr size_t kHelloBytesMax = 64u << 10;
constexpr size_t kWishBytesMax = 1u << 20;  // numbers of all files that an offer can have
constexpr int kWishesMax = 256;             // libraries that need others, in each of four folders
constexpr size_t kReasonBytesMax = 1000;

void keep_last(std::string& kept, std::string_view bytes) {
  kept.append(bytes);
  if (kept.size() > kKeptBytesMax) kept.erase(0, kept.size() - kKeptBytesMax);
}

// Numbers with blanks between them, each once and below `count`; nothing for anything else.
std::optional<std::vector<int>> read_numbers(std::string_view text, size_t count) {
  std::vector<int> numbers;
  std::set<int> seen;
  while (!text.empty()) {
    int number = -1;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || number < 0 || size_t(number) >= count ||
        !seen.insert(number).second)
      return {};
    numbers.push_back(number);
    text.remove_prefix(size_t(stop - text.data()));
    if (text.empty()) break;
    if (text.front() != ' ') return {};
    text.remove_prefix(1);
  }
  return numbers;
}

// How many bytes at the end of `text` may be the beginning of `word`.
size_t begun(std::string_view text, std::string_view word) {
  size_t length = std::min(text.size(), word.size() - 1);
  while (length > 0 && !text.ends_with(word.substr(0, length))) --length;
  return length;
}

}  // namespace

std::string seconds_text(Clock::duration time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(time).count());
  return text;
}

std::string_view phase_name(StartPhase phase) {
  switch (phase) {
    case StartPhase::kResolving:
      return "resolving";
    case StartPhase::kConnecting:
      return "connecting";
    case StartPhase::kCopying:
      return "copying";
    case StartPhase::kStarting:
      return "starting";
    case StartPhase::kShipping:
      return "shipping";
    case StartPhase::kReady:
      return "ready";
    case StartPhase::kFailed:
      return "failed";
  }
  return "";
}

RemoteStart::RemoteStart(uint64_t file_bytes, std::string machine, TimePoint now,
                         const ShipOffer* offer)
    : file_bytes_(file_bytes),
      machine_(std::move(machine)),
      offer_(offer),
      since_(now),
      nudged_(now) {}

void RemoteStart::enter(StartPhase phase, TimePoint now) {
  phase_ = phase;
  since_ = now;
}

void RemoteStart::fail(std::string why, TimePoint now) {
  if (phase_ == StartPhase::kFailed) return;
  failure_ = std::move(why);
  text_written(text().size());
  asks_ = false;
  wanted_.clear();
  wanted_done_ = 0;
  enter(StartPhase::kFailed, now);
}

// A start file may have made standard error of standard output, the script's and the agent's too.
void RemoteStart::take_words(std::string_view bytes, TimePoint now) {
  first_words_ += bytes.substr(0, kFirstWordsMax - std::min(kFirstWordsMax, first_words_.size()));
  keep_last(words_, bytes);
  if (phase_ != StartPhase::kConnecting || heard_) return;
  const std::string line = "\n" + std::string(kRemoteMark);
  const bool is_ours = words_.starts_with(kRemoteMark) || words_.find(line) != words_.npos ||
                       words_.find(kFrameMagic) != words_.npos;
  if (is_ours)
    fail(
        "what is printed there comes as standard error: a start file of the login shell redirects "
        "its standard output (by exec 1>&2, say); take that out",
        now);
}

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
  if (line == "found" && phase_ == StartPhase::kConnecting && !asks_) {
    enter(StartPhase::kStarting, now);
  } else if (line == "need" && !asks_ && !wants_file() && ++asked_ <= kAskedMax) {
    asks_ = true;
  } else if (line == "copied" && phase_ == StartPhase::kCopying && !asks_ && !wants_file()) {
    enter(StartPhase::kStarting, now);
  } else if (line == "damaged") {
    fail("the agent arrived damaged, or cannot be run there", now);
  } else if (line == "nowhere") {
    fail("no folder there takes the agent, " + std::to_string((file_bytes_ >> 20) + 1) +
             " MiB, and lets it run: ~/.cache, $TMPDIR, /tmp, /var/tmp and /dev/shm were tried; "
             "make room, or let programs be run in one of them (nobody else may write to it or to "
             "a folder that it is in, unless that is sticky, as /tmp is)",
         now);
  } else if (line.starts_with("machine ")) {
    fail("its processor is " + in_quotes(line.substr(8)) + " and this hvdrun is for " + machine_ +
             ": use hosts of one kind, or an hvdrun built for that one",
         now);
  } else {
    fail("it sent " + in_quotes(line) + " when that makes no sense", now);
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
    while (in_dialogue() && frames_.next(bytes, piece)) {
      const FrameKind kind = piece.header.kind;
      const bool is_of_shipping = kind == FrameKind::kWanted || kind == FrameKind::kNotShipped;
      const bool known = kind == FrameKind::kHello || (is_of_shipping && offer_ != nullptr);
      frame_.append(piece.bytes);
      if (!known || frame_.size() > (is_of_shipping ? kWishBytesMax : kHelloBytesMax))
        return fail("its agent's first words are none of an hvdrun's", now);
      if (piece.last) take_frame(kind, now);
    }
  } catch (const Error& error) {
    return fail(error.what(), now);
  }
  if (!bytes.empty() && phase_ == StartPhase::kReady)
    fail("its agent said more than its first words before it was answered", now);
}

void RemoteStart::take_frame(FrameKind kind, TimePoint now) {
  if (kind == FrameKind::kWanted) {
    take_wish(now);
  } else if (kind == FrameKind::kNotShipped) {
    fail("what is shipped cannot be put there: " + printable(head_of(frame_, kReasonBytesMax)),
         now);
  } else if (wants_shipped() || (offer_ != nullptr && wishes_ == 0)) {
    fail("its agent began without what is shipped", now);
  } else {
    hello_ = std::move(frame_);
    enter(StartPhase::kReady, now);
  }
  frame_.clear();
}

// The first is for the list, the others are for files of it.
void RemoteStart::take_wish(TimePoint now) {
  if (wishes_++ == 0 && frame_ == "list") {
    text_.append(kFrameMagic);
    append_header(text_,
                  {uint32_t(offer_->list.size()), FrameKind::kShipment, Stream::kStdout, 0, 0});
    text_.append(offer_->list);
    return enter(StartPhase::kShipping, now);
  }
  const auto numbers = read_numbers(frame_, offer_->files.size());
  if (phase_ != StartPhase::kShipping || wants_shipped() || !numbers || wishes_ > kWishesMax)
    return fail("it asked for what is shipped in a way that makes no sense", now);
  wanted_ = *numbers;
  wanted_done_ = 0;
  wanted_at_ = 0;
  // What is asked for again, for another folder, is none the more.
  std::vector<OfferedFile> files;
  ever_wanted_.insert(wanted_.begin(), wanted_.end());
  for (const int one : ever_wanted_) files.push_back(offer_->files[size_t(one)]);
  if (const std::string why = limit_objection(files, offer_->bytes_max); !why.empty())
    return fail(why, now);
  for (const int one : wanted_) to_ship_ += offer_->files[size_t(one)].bytes;
  shipped_written(0);
}

void RemoteStart::text_written(size_t bytes) {
  text_at_ += bytes;
  if (text_at_ < text_.size()) return;
  text_.clear();
  text_at_ = 0;
}

std::optional<RemoteStart::Piece> RemoteStart::wants_shipped() const {
  if (wanted_done_ == wanted_.size()) return {};
  const int file = wanted_[wanted_done_];
  return Piece{file, wanted_at_, offer_->files[size_t(file)].bytes - wanted_at_};
}

// And goes on to the next file that has any bytes.
void RemoteStart::shipped_written(uint64_t bytes) {
  wanted_at_ += bytes;
  shipped_ += bytes;
  while (wanted_done_ < wanted_.size() &&
         wanted_at_ == offer_->files[size_t(wanted_[wanted_done_])].bytes) {
    ++wanted_done_;
    wanted_at_ = 0;
  }
}

std::optional<TimePoint> RemoteStart::next_nudge() const {
  if (heard_ || phase_ != StartPhase::kConnecting || text().size() >= kNudgesMax) return {};
  return nudged_ + kNudge;
}

void RemoteStart::nudge(TimePoint now) {
  if (const auto due = next_nudge(); !due || now < *due) return;
  nudged_ = now;
  text_ += '\n';
}

std::string RemoteStart::last_said() const {
  const std::string said = last_words(words_);
  return said.empty() ? "" : "; ssh's last words were " + said;
}

std::string RemoteStart::unfinished(TimePoint now) const {
  const std::string age = seconds_text(now - since_);
  constexpr std::string_view kStuck = ": is its network cut, or its disk stuck?";
  if (phase_ == StartPhase::kCopying && !wants_file())
    return "all of the agent was sent to it, and it has not taken it in after " + age +
           std::string(kStuck) + last_said();
  if (phase_ == StartPhase::kCopying)
    return "the agent was being copied to it, " + size_text(file_at_) + " of " +
           size_text(file_bytes_) + " in " + age + ", and it took no more" + std::string(kStuck) +
           last_said();
  if (phase_ == StartPhase::kShipping) {
    if (shipped_ == to_ship_)
      return "it was still looking at what was shipped after " + age + last_said();
    return size_text(shipped_) + " of " + size_text(to_ship_) + " had been shipped to it in " +
           age + ", and it took no more" + std::string(kStuck) +
           " Files that are whole there are not sent again" + last_said();
  }
  if (phase_ == StartPhase::kStarting)
    return "the agent has not spoken for " + age + " since it was started there" + last_said();
  const std::string printed = last_words(noise_);
  if (!printed.empty())
    return "its login shell printed " + printed + " but ran nothing of ours for " + age +
           ": does one of its start files read input, wait, or start another shell?";
  return "there was no answer for " + age +
         ": is it busy, does a firewall drop what goes to its ssh port, or does a start file of "
         "the login shell wait?" +
         last_said();
}

}  // namespace hvd
