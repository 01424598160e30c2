#include "cli/line_tagger.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/utf8.h"

namespace hvd {
namespace {

// How many bytes of `bytes` are lines that have ended. A \r as the last byte may be half of \r\n:
// it has to wait.
size_t whole_lines_bytes(std::string_view bytes) {
  auto after_last = [&](char end, size_t most) -> size_t {
    const void* last = memrchr(bytes.data(), end, most);
    return last ? size_t(static_cast<const char*>(last) - bytes.data()) + 1 : 0;
  };
  const size_t after_cr = bytes.empty() ? 0 : after_last('\r', bytes.size() - 1);
  return std::max(after_cr, after_last('\n', bytes.size()));
}

// Without the beginning of a character that has not come whole.
size_t whole_characters_bytes(std::string_view bytes) {
  for (size_t left = 1; left <= 3 && left <= bytes.size(); ++left) {
    const std::string_view last = bytes.substr(bytes.size() - left);
    if (continues_character(last.front())) continue;
    return is_begun_character(last) ? bytes.size() - left : bytes.size();
  }
  return bytes.size();
}

}  // namespace

size_t first_line_bytes(std::string_view bytes) {
  const size_t end = bytes.find_first_of("\r\n");
  if (end == bytes.npos) return bytes.size();
  return bytes.substr(end).starts_with("\r\n") ? end + 2 : end + 1;
}

void LineTagger::add(std::vector<Tag> tags) {
  for (Tag& tag : tags) streams_.emplace_back().tag = std::move(tag);
}

void LineTagger::write_prefix(const State& state, std::string& out) const {
  if (state.next == Prefix::kNone) return;
  const std::string& tag = state.next == Prefix::kTag ? state.tag.first : state.tag.continued;
  if (state.tag.stamped) out.append(stamp_);
  if (state.tag.stamped && !stamp_.empty() && tag.empty()) out.push_back(' ');
  out.append(tag);
}

// `whole` ends in a line end; its first line may continue one that has begun.
void LineTagger::write_lines(State& state, std::string_view whole, std::string& out) {
  if (state.tag.first.empty() && (stamp_.empty() || !state.tag.stamped)) {
    out.append(whole);
    whole = {};
  }
  const bool has_cr = whole.find('\r') != whole.npos;
  while (!whole.empty()) {
    // find() is much faster than the search for either, and \r is rare
    const size_t length = has_cr ? first_line_bytes(whole) : whole.find('\n') + 1;
    write_prefix(state, out);
    out.append(whole.data(), length);
    whole.remove_prefix(length);
    state.next = Prefix::kTag;
  }
  state.next = Prefix::kTag;
}

void LineTagger::feed(size_t stream, std::string_view bytes, TimePoint now, std::string& out,
                      TimePoint sent) {
  if (bytes.empty()) return;
  end_open_line(out);
  State& state = streams_[stream];
  state.sent = sent;
  std::string& target = holder_ && *holder_ != stream ? waiting_ : out;
  if (!state.rest.empty() && state.rest.back() == '\r' && bytes.front() != '\n')
    end_rest(stream, target);
  const size_t whole_bytes = whole_lines_bytes(bytes);
  if (whole_bytes > 0) {
    if (!state.rest.empty()) {
      write_prefix(state, target);
      target.append(state.rest);
      state.next = Prefix::kNone;
      state.rest.clear();
      --resting_;
    }
    write_lines(state, bytes.substr(0, whole_bytes), target);
    bytes.remove_prefix(whole_bytes);
    if (holder_ == stream) end_hold(out);
  }
  if (!bytes.empty()) {
    if (state.rest.empty()) {
      state.rest_since = now;
      state.rest_sent = sent;
      ++resting_;
    }
    state.rest.append(bytes);
    if (state.rest.size() > kLineBytesMax) {
      if (holder_ && *holder_ != stream) split_hold(out);
      write_partial(stream, now, out);
    }
  }
  if (waiting_.size() > kHeldBytesMax) split_hold(out);
}

// The rest turned out to be a line of its own.
void LineTagger::end_rest(size_t stream, std::string& out) {
  State& state = streams_[stream];
  write_prefix(state, out);
  out.append(state.rest);
  state.rest.clear();
  state.next = Prefix::kTag;
  --resting_;
  if (holder_ == stream) end_hold(out);
}

void LineTagger::end_hold(std::string& out) {
  holder_.reset();
  out.append(waiting_);
  waiting_.clear();
}

// Ends a hold before its line has ended.
void LineTagger::split_hold(std::string& out) {
  out.push_back('\n');
  ++splits_;
  streams_[*holder_].next = Prefix::kContinuation;
  end_hold(out);
}

// The sink is free or this stream's.
void LineTagger::write_partial(size_t stream, TimePoint now, std::string& out) {
  State& state = streams_[stream];
  const size_t bytes = whole_characters_bytes(state.rest);
  write_prefix(state, out);
  out.append(state.rest, 0, bytes);
  state.next = Prefix::kNone;
  state.rest.erase(0, bytes);
  state.rest_since = now;
  state.rest_sent = state.sent;
  if (state.rest.empty()) --resting_;
  if (!holder_) {
    held_since_ = now;
    held_sent_ = state.sent;
  }
  holder_ = stream;
}

void LineTagger::tick(TimePoint now, std::string& out, const Heard& heard) {
  // What began `since`, by our clock and its sender's; where we are behind it begins anew for us.
  const auto is_over = [&](size_t stream, TimePoint& since, TimePoint sent, auto limit) {
    const std::optional<TimePoint> until = heard ? heard(stream) : std::nullopt;
    const bool over = until ? *until - sent >= limit : now - since >= limit;
    if (until && !over) since = now;
    return over;
  };
  if (holder_ && others_wait() && is_over(*holder_, held_since_, held_sent_, kHoldFor))
    split_hold(out);
  if (resting_ == 0) return;
  for (size_t stream = 0; stream < streams_.size(); ++stream) {
    State& state = streams_[stream];
    if (!may_go_out(stream) || !is_over(stream, state.rest_since, state.rest_sent, kPartialAfter))
      continue;
    if (state.rest.back() == '\r')
      end_rest(stream, out);
    else
      write_partial(stream, now, out);
  }
}

// A rest that is more than the beginning of a character, while the sink is free or its own.
bool LineTagger::may_go_out(size_t stream) const {
  const std::string& rest = streams_[stream].rest;
  return whole_characters_bytes(rest) > 0 && (!holder_ || holder_ == stream);
}

// A last line without an end gets none, unless another one follows it.
void LineTagger::finish(std::string& out) {
  if (holder_) {
    State& state = streams_[*holder_];
    out.append(state.rest);
    line_open_ = state.rest.empty() || state.rest.back() != '\r';
    state.rest.clear();
    if (!waiting_.empty()) end_open_line(out);
    end_hold(out);
  }
  for (State& state : streams_) {
    if (!state.rest.empty()) {
      end_open_line(out);
      write_prefix(state, out);
      out.append(state.rest);
      line_open_ = state.rest.back() != '\r';
      state.rest.clear();
    }
    state.next = Prefix::kTag;
  }
  resting_ = 0;
}

void LineTagger::end_open_line(std::string& out) {
  if (line_open_) out.push_back('\n');
  line_open_ = false;
}

bool LineTagger::others_wait() const {
  if (!waiting_.empty()) return true;
  return resting_ > (streams_[*holder_].rest.empty() ? 0u : 1u);
}

std::optional<TimePoint> LineTagger::next_deadline() const {
  std::optional<TimePoint> soonest;
  auto consider = [&](TimePoint at) { soonest = soonest ? std::min(*soonest, at) : at; };
  if (holder_ && others_wait()) consider(held_since_ + kHoldFor);
  if (resting_ == 0) return soonest;
  for (size_t stream = 0; stream < streams_.size(); ++stream)
    if (may_go_out(stream)) consider(streams_[stream].rest_since + kPartialAfter);
  return soonest;
}

}  // namespace hvd
