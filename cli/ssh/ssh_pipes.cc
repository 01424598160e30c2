// The pipes of an ssh: what it says, and what it is sent.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "cli/pipe.h"
#include "cli/quoted.h"
#include "cli/ssh/ssh_carrier_impl.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

constexpr size_t kReadBytes = 64u << 10;
constexpr int kReadsMost = 16;            // of what is left in a pipe: more than one holds
constexpr size_t kShipAtOnce = 1u << 20;  // other hosts have their turn in between
constexpr size_t kPathShown = 300;
constexpr auto kLastWords = 500ms;  // for ssh to end by itself after the script gave up

}  // namespace

void SshCarrier::close_watched(UniqueFd& fd) {
  if (fd) loop_.unwatch(fd.get());
  fd.reset();
}

void SshCarrier::read_output(Start& start) {
  char bytes[kReadBytes];
  const ssize_t n = read(start.ssh->out.get(), bytes, sizeof bytes);
  if (n > 0) start.ssh->remote.take_output({bytes, size_t(n)}, Clock::now());
  if (n == 0) close_watched(start.ssh->out);
}

void SshCarrier::read_words(Start& start) {
  char bytes[kReadBytes];
  const ssize_t n = read(start.ssh->words.get(), bytes, sizeof bytes);
  if (n > 0) start.ssh->remote.take_words({bytes, size_t(n)}, Clock::now());
  if (n == 0) close_watched(start.ssh->words);
}

// All that is in the pipe, or so much that whoever fills it again does not hold us up.
void SshCarrier::read_rest(Start& start, const UniqueFd& fd, void (SshCarrier::*read)(Start&)) {
  int bytes = 0;
  for (int i = 0; i < kReadsMost && fd; ++i) {
    if (ioctl(fd.get(), FIONREAD, &bytes) != 0 || bytes == 0) return;
    (this->*read)(start);
  }
}

// What it failed of is told elsewhere.
void SshCarrier::note_phase(Start& start) {
  const StartPhase phase = start.ssh->remote.phase();
  if (!callbacks_.noted || start.noted == phase || phase == StartPhase::kFailed) return;
  start.noted = phase;
  callbacks_.noted(start.host, std::string(phase_name(phase)));
}

// Does what follows from what was read. `start` may be gone afterwards.
void SshCarrier::look(Start& start, TimePoint now) {
  Ssh& ssh = *start.ssh;
  read_rest(start, ssh.words, &SshCarrier::read_words);  // of the start: none of the agent's
  tell_new_keys(start);
  note_phase(start);
  if (ssh.remote.phase() == StartPhase::kReady) return hand_over(start);
  if (ssh.remote.heard()) start.time.reached(now);
  if (ssh.remote.phase() == StartPhase::kFailed) {
    if (!ssh.judged_at) ssh.judged_at = now + kLastWords;
    return;
  }
  try {
    if (ssh.remote.asks_for_file()) {
      ssh.remote.answer(file_.sha256(), now);
      note_phase(start);
    }
  } catch (const Error& error) {
    return fail(start.host, error.what());
  }
  feed(start);
}

void SshCarrier::feed(Start& start) {
  Ssh& ssh = *start.ssh;
  ssize_t n = 0;
  size_t shipped = 0;
  while (ssh.in) {
    if (!ssh.remote.text().empty()) {
      const bool is_list = ssh.remote.sends_list();
      n = write(ssh.in.get(), ssh.remote.text().data(), ssh.remote.text().size());
      if (n > 0) ssh.remote.text_written(size_t(n));
      if (n > 0 && is_list) note_taken(start, Clock::now());
    } else if (ssh.remote.wants_file()) {
      auto at = off_t(ssh.remote.file_at());
      n = sendfile(ssh.in.get(), file_.fd(), &at, file_.bytes() - ssh.remote.file_at());
      if (n > 0) ssh.remote.file_written(uint64_t(n)), note_taken(start, Clock::now());
    } else if (const auto piece = ssh.remote.wants_shipped()) {
      if (shipped >= kShipAtOnce) break;
      const auto sent = feed_shipped(start, *piece);
      if (!sent) return;
      n = *sent;
      if (n > 0) {
        ssh.remote.shipped_written(uint64_t(n));
        shipped += size_t(n);
        note_taken(start, Clock::now());
      }
    } else {
      break;
    }
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
      if (!ssh.in_watched)
        ssh.in.reset();  // ssh is ending, and will say why
      else
        close_watched(ssh.in);
      return;
    }
    if (n < 0 && errno == EAGAIN) break;
  }
  const bool watch = ssh.in && (!ssh.remote.text().empty() || ssh.remote.wants_file() ||
                                ssh.remote.wants_shipped());
  if (watch == ssh.in_watched) return;
  ssh.in_watched = watch;
  if (watch)
    loop_.watch(ssh.in.get(), EPOLLOUT, [this, &start](uint32_t) { feed(start); });
  else if (ssh.in)
    loop_.unwatch(ssh.in.get());
}

void SshCarrier::note_taken(Start& start, TimePoint now) {
  const RemoteStart& remote = start.ssh->remote;
  const bool is_last = remote.text().empty() && !remote.wants_file() && !remote.wants_shipped();
  start.time.taken(is_last, now - remote.since(), now);
}

std::optional<ssize_t> SshCarrier::feed_shipped(Start& start, const RemoteStart::Piece& piece) {
  Ssh& ssh = *start.ssh;
  const OfferedFile& file = options_.offer->files[size_t(piece.file)];
  const auto give_up = [&](const std::string& why) {
    fail(start.host, "--ship: " + in_quotes(file.path, kPathShown) + " " + why, true);
    return std::nullopt;
  };
  const auto is_as_read = [&] {
    struct stat facts{};
    return fstat(ssh.shipped.get(), &facts) == 0 && uint64_t(facts.st_size) == file.bytes &&
           changed_ns(facts) == file.changed_ns;
  };
  const auto changed = [&] {
    return give_up("has changed since hvdrun read it; start again when it is whole");
  };
  if (ssh.file != piece.file) {
    ssh.shipped.reset(open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    ssh.file = piece.file;
    if (!ssh.shipped) return give_up("cannot be read any more: " + error_text(errno));
  }
  if (piece.at == 0 && !is_as_read()) return changed();  // may be none that is to go out
  auto at = off_t(piece.at);
  const ssize_t n =
      sendfile(ssh.in.get(), ssh.shipped.get(), &at, std::min<uint64_t>(piece.bytes, kShipAtOnce));
  if (n < 0 && (errno == EIO || errno == EINVAL))
    return give_up("cannot be read: " + error_text(errno));
  const bool is_end = n == 0 || (n > 0 && uint64_t(n) == piece.bytes);
  if (is_end && !is_as_read()) return changed();
  return n;
}

}  // namespace hvd
