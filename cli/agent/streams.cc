#include "cli/agent/streams.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "cli/pipe.h"

namespace hvd {
namespace {

size_t bytes_in(const UniqueFd& pipe) {
  int bytes = 0;
  ioctl(pipe.get(), FIONREAD, &bytes);
  return size_t(bytes);
}

}  // namespace

OutputForwarder::OutputForwarder(Loop& loop, int output, std::string_view first_words)
    : loop_(loop), output_(output), header_(first_words) {
  set_nonblocking(output_);
  fcntl(output_, F_SETPIPE_SZ, 1 << 20);
  loop_.watch(output_, EPOLLOUT | EPOLLONESHOT, [this](uint32_t events) {
    blocked_ = false;
    if (events & EPOLLERR)
      failed();
    else
      pump();
  });
  blocked_ = true;  // the magic goes out with the first EPOLLOUT
}

void OutputForwarder::add(int rank, Stream stream, UniqueFd pipe) {
  auto source = std::make_shared<Source>(Source{std::move(pipe), rank, stream});
  loop_.watch(source->pipe.get(), EPOLLIN | EPOLLONESHOT,
              [this, source](uint32_t events) { readable(source, events); });
  open_.push_back(std::move(source));
}

void OutputForwarder::readable(const Place& source, uint32_t events) {
  if (events & EPOLLHUP) source->hung_up = true;
  if (Clock::now() < source->rest_until && !draining_) {
    const auto later = [&](const Place& one) { return one->rest_until > source->rest_until; };
    resting_.insert(std::find_if(resting_.begin(), resting_.end(), later), source);
    return;
  }
  ready_.push_back(source);
  pump();
}

void OutputForwarder::on_deadline(TimePoint now) {
  bool any = false;
  for (; !resting_.empty() && (draining_ || resting_.front()->rest_until <= now); any = true) {
    ready_.push_back(resting_.front());
    resting_.pop_front();
  }
  if (any) pump();
}

std::optional<TimePoint> OutputForwarder::next_deadline() const {
  if (resting_.empty()) return std::nullopt;
  return resting_.front()->rest_until;
}

void OutputForwarder::pump() {
  while (!gone_ && !blocked_) {
    if (!current_ && header_.empty()) header_.swap(marks_);
    if (!header_.empty() || current_) {
      if (!move_current()) return;
    } else if (!ready_.empty()) {
      Place source = ready_.front();
      ready_.pop_front();
      look(source, Clock::now());
    } else {
      return;
    }
  }
}

bool OutputForwarder::move_current() {
  while (!header_.empty() || current_) {
    const bool of_frame = !header_.empty();
    const ssize_t n = of_frame ? write(output_, header_.data(), header_.size())
                               : splice(current_->pipe.get(), nullptr, output_, nullptr,
                                        current_left_, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
    const int error = n < 0 ? errno : 0;
    if (n > 0 && of_frame) {
      header_.erase(0, size_t(n));
    } else if (n > 0) {
      current_left_ -= size_t(n);
      if (current_left_ == 0) finish_current();
    } else if (!of_frame && (n == 0 || error == EAGAIN) && bytes_in(current_->pipe) == 0) {
      // FIONREAD promised them, but the rank has read its own output since (/proc/self/fd/1). The
      // frame's length is out; blanks stand for what is gone.
      header_.assign(current_left_, ' ');
      finish_current();
    } else if (error == EAGAIN) {
      return wait_for_room();
    } else if (error != EINTR) {
      return failed(), false;
    }
  }
  return true;
}

bool OutputForwarder::wait_for_room() {
  blocked_ = true;
  loop_.rearm(output_, EPOLLOUT | EPOLLONESHOT);
  return false;
}

void OutputForwarder::finish_current() {
  const Place source = std::exchange(current_, nullptr);
  if (source->own_left == 0u) say_over(source, Clock::now());
  if (draining_)
    ready_.push_back(source);  // until what was there is out
  else
    loop_.rearm(source->pipe.get(), EPOLLIN | EPOLLONESHOT);
}

void OutputForwarder::look(const Place& source, TimePoint now) {
  const size_t available = std::min(bytes_in(source->pipe), source->drain_left);
  if (available == 0 && source->own_left) say_over(source, now);
  if (available == 0 && (source->hung_up || draining_)) return close(source);
  if (available == 0) {  // the rank has taken back what woke us
    loop_.rearm(source->pipe.get(), EPOLLIN | EPOLLONESHOT);
    return;
  }
  if (!source->large && available >= kLargeBytes && large_pipes_ < kLargePipesMax) {
    source->large =
        fcntl(source->pipe.get(), F_SETPIPE_SZ, 1 << 20) > 0;  // only those that need it
    ++large_pipes_;
  }
  source->rest_until = now + (available >= kLargeBytes ? kRestAfterLarge : kRest);
  current_ = source;
  current_left_ = std::min({available, kPieceBytesMax, source->own_left.value_or(SIZE_MAX)});
  if (source->own_left) *source->own_left -= current_left_;
  framed_bytes_ += int64_t(current_left_);
  if (draining_) source->drain_left -= current_left_;
  append_header(header_, {uint32_t(current_left_), FrameKind::kOutput, source->stream, source->rank,
                          std::chrono::nanoseconds(now.time_since_epoch()).count()});
}

void OutputForwarder::end_own_words(int rank) {
  for (const Place& source : open_) {
    if (source->rank != rank || source->stream != Stream::kStderr) continue;
    if (std::exchange(source->own_over, true)) continue;
    const size_t of_frame = source == current_ ? current_left_ : 0;
    source->own_left = std::max(bytes_in(source->pipe), of_frame) - of_frame;
    if (source->own_left == 0u && source != current_) say_over(source, Clock::now());
  }
  pump();
}

void OutputForwarder::say_over(const Place& source, TimePoint now) {
  source->own_left.reset();
  append_header(marks_, {0, FrameKind::kOwnWordsOver, source->stream, source->rank,
                         std::chrono::nanoseconds(now.time_since_epoch()).count()});
}

void OutputForwarder::close(const Place& source) {
  loop_.unwatch(source->pipe.get());
  source->pipe.reset();
  std::erase(open_, source);
}

void OutputForwarder::drain() {
  if (draining_) return;
  draining_ = true;
  for (const Place& source : open_) {
    const size_t of_frame = source == current_ ? current_left_ : 0;
    source->drain_left = std::max(bytes_in(source->pipe), of_frame) - of_frame;
  }
  // Who had something first goes on being first (host_frames.h).
  ready_.insert(ready_.end(), resting_.begin(), resting_.end());
  resting_.clear();
  for (const Place& source : open_)
    if (source != current_ && std::find(ready_.begin(), ready_.end(), source) == ready_.end())
      ready_.push_back(source);
  pump();
}

bool OutputForwarder::blocks(int rank) const {
  return blocked_ && std::any_of(open_.begin(), open_.end(), [rank](const Place& source) {
           // Half is full: a write that does not fit into the page before it begins a new one.
           return source->rank == rank &&
                  bytes_in(source->pipe) >= size_t(fcntl(source->pipe.get(), F_GETPIPE_SZ) / 2);
         });
}

bool OutputForwarder::empty() const {
  return gone_ || (open_.empty() && header_.empty() && marks_.empty() && !current_);
}

void OutputForwarder::failed() { discard(); }

void OutputForwarder::discard() {
  gone_ = true;
  loop_.unwatch(output_);
  while (!open_.empty())
    close(Place(open_.back()));  // writers get SIGPIPE, as they would without us
  ready_.clear();
  resting_.clear();
  current_.reset();
}

StdinFeeder::StdinFeeder(Loop& loop, std::function<void(size_t, bool)> taken)
    : loop_(loop), taken_(std::move(taken)) {}

StdinFeeder::~StdinFeeder() {
  for (Reader& reader : readers_) close(reader);
}

void StdinFeeder::attach(UniqueFd pipe) {
  if (expected_.value_or(0) > 0) --*expected_;
  readers_.emplace_back().pipe = std::move(pipe);
  write_all();
}

void StdinFeeder::expect_no_more() {
  expected_ = 0;
  write_all();
}

void StdinFeeder::feed(std::string_view bytes) {
  if (gone_) return;
  pending_.append(bytes);
  write_all();
}

void StdinFeeder::end() {
  ending_ = true;
  write_all();
}

void StdinFeeder::write_all() {
  for (Reader& reader : readers_) write_to(reader);
  give_back();
}

void StdinFeeder::write_to(Reader& reader) {
  while (reader.pipe && reader.done < pending_.size()) {
    const ssize_t n =
        write(reader.pipe.get(), pending_.data() + reader.done, pending_.size() - reader.done);
    if (n > 0)
      reader.done += size_t(n);
    else if (errno == EAGAIN)
      break;
    else if (errno != EINTR)
      close(reader);  // it is gone: swallow, so that the others are not stuck
  }
  if (!reader.pipe) reader.done = pending_.size();
  const bool behind = reader.done < pending_.size();
  if (!behind && ending_) return close(reader);
  if (!reader.pipe || behind == reader.watching) return;
  reader.watching = behind;
  if (!behind) return loop_.unwatch(reader.pipe.get());
  loop_.watch(reader.pipe.get(), EPOLLOUT, [this, &reader](uint32_t) {
    write_to(reader);
    give_back();
  });
}

void StdinFeeder::give_back() {
  if (expected_ != 0u || gone_) return;
  if (!ending_ &&
      std::ranges::none_of(readers_, [](const Reader& one) { return bool(one.pipe); })) {
    gone_ = true;
    pending_.clear();
    return taken_(0, true);
  }
  if (pending_.empty()) return;
  size_t taken = pending_.size();
  for (const Reader& reader : readers_) taken = std::min(taken, reader.done);
  if (taken == 0) return;
  for (Reader& reader : readers_) reader.done -= taken;
  pending_.erase(0, taken);
  taken_(taken, false);
}

void StdinFeeder::close(Reader& reader) {
  if (reader.watching) loop_.unwatch(reader.pipe.get());
  reader.watching = false;
  reader.pipe.reset();
}

}  // namespace hvd
