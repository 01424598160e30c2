#include "cli/agent_pipes.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace hvd {
namespace {

constexpr size_t kReadBytes = 256u << 10;
constexpr size_t kPipeBytes = 64u << 10;
constexpr size_t kWordsMax = 4096;  // of a line; a longer one goes out in pieces

}  // namespace

AgentPipes::AgentPipes(Loop& loop, AgentChannels channels, Callbacks callbacks,
                       std::vector<char>& buffer)
    : loop_(loop),
      channels_(std::move(channels)),
      callbacks_(std::move(callbacks)),
      buffer_(buffer) {
  buffer_.resize(kReadBytes);
  output_open_ = bool(channels_.output), words_open_ = bool(channels_.words);
  if (output_open_)
    loop_.watch(channels_.output.get(), EPOLLIN | EPOLLONESHOT, [this](uint32_t) { on_output(); });
  if (words_open_)
    loop_.watch(channels_.words.get(), EPOLLIN | EPOLLONESHOT, [this](uint32_t) { on_words(); });
}

void AgentPipes::send_frame(FrameKind kind, std::string_view bytes) {
  if (!channels_.lease) return;
  append_header(lease_pending_, {uint32_t(bytes.size()), kind, Stream::kStdout, 0, 0});
  lease_pending_.append(bytes);
  flush_lease();
}

void AgentPipes::flush_lease() {
  size_t done = 0;
  while (done < lease_pending_.size()) {
    const ssize_t n =
        write(channels_.lease.get(), lease_pending_.data() + done, lease_pending_.size() - done);
    if (n > 0)
      done += size_t(n);
    else if (errno == EAGAIN)
      break;
    else if (errno != EINTR)
      done = lease_pending_.size();  // the agent is gone: SIGCHLD tells
  }
  lease_pending_.erase(0, done);
  const bool watch = !lease_pending_.empty();
  if (watch == lease_watched_) return;
  lease_watched_ = watch;
  if (watch)
    loop_.watch(channels_.lease.get(), EPOLLOUT, [this](uint32_t) { flush_lease(); });
  else
    loop_.unwatch(channels_.lease.get());
}

void AgentPipes::close_lease() {
  if (lease_watched_) loop_.unwatch(channels_.lease.get());
  lease_watched_ = false;
  lease_pending_.clear();
  channels_.lease.reset();
}

void AgentPipes::on_output() {
  const ssize_t n = read(channels_.output.get(), buffer_.data(), buffer_.size());
  if (n == 0) {
    output_open_ = false;
    loop_.unwatch(channels_.output.get());
    return;
  }
  if (n > 0) callbacks_.output({buffer_.data(), size_t(n)});
  if (!output_paused_) loop_.rearm(channels_.output.get(), EPOLLIN | EPOLLONESHOT);
}

void AgentPipes::on_words() {
  char words[kWordsMax];
  const ssize_t n = read(channels_.words.get(), words, sizeof words);
  if (n > 0) words_.append(words, size_t(n));
  say_words(n == 0);
  if (n == 0) {
    words_open_ = false;
    loop_.unwatch(channels_.words.get());
  } else if (!output_paused_) {
    loop_.rearm(channels_.words.get(), EPOLLIN | EPOLLONESHOT);
  }
}

void AgentPipes::read_words_there() {
  int bytes = 0;
  for (size_t read = 0; read < kPipeBytes && words_open_; read += kWordsMax) {
    if (ioctl(channels_.words.get(), FIONREAD, &bytes) != 0 || bytes == 0) return;
    on_words();
  }
}

void AgentPipes::say_words(bool all) {
  std::string_view left = words_;
  while (!left.empty()) {
    const size_t end = left.find('\n');
    if (end == left.npos && !all && left.size() < kWordsMax) break;
    std::string_view line = left.substr(0, end);
    left.remove_prefix(std::min(left.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) callbacks_.words(line);
  }
  words_.erase(0, words_.size() - left.size());
}

void AgentPipes::pause_output() { output_paused_ = true; }

void AgentPipes::resume_output() {
  if (!std::exchange(output_paused_, false)) return;
  if (output_open_) loop_.rearm(channels_.output.get(), EPOLLIN | EPOLLONESHOT);
  if (words_open_) loop_.rearm(channels_.words.get(), EPOLLIN | EPOLLONESHOT);
}

int AgentPipes::unread_output() const {
  int bytes = 0;
  ioctl(channels_.output.get(), FIONREAD, &bytes);
  return bytes;
}

int AgentPipes::unread_bytes() const {
  int of_words = 0;
  if (words_open_) ioctl(channels_.words.get(), FIONREAD, &of_words);
  return unread_output() + of_words;
}

}  // namespace hvd
