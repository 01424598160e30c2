#include "cli/host_agent.h"

#include <sys/wait.h>

#include <algorithm>
#include <utility>

#include "cli/agent/keeper_words.h"
#include "cli/line_tagger.h"
#include "cli/signals.h"
#include "cli/ssh/ssh_words.h"

namespace hvd {
namespace {

// After the keeper's death, for what is still in the channels.
constexpr std::chrono::milliseconds kLastWords{1000};
// By then the agent of a host that says nothing has ended what runs there, if it lives
// (agent/uplink).
constexpr std::chrono::seconds kSafe{11};
constexpr int64_t kOutputBytesMax = int64_t{1} << 50;  // that a host can claim

}  // namespace

HostAgent::HostAgent(int number, Host host, Loop& loop, AgentChannels channels,
                     AgentPipes::Callbacks callbacks, std::vector<char>& buffer,
                     AgentWatch::Duration timeout)
    : number_(number),
      host_(std::move(host)),
      pipes_(loop, std::move(channels), std::move(callbacks), buffer),
      watch_(host_.remote ? std::min(timeout, AgentWatch::kHostSilence) : timeout, Clock::now()),
      frames_(!host_.remote) {
  bootstrap_.set_host(number);
}

void HostAgent::send_bootstrap() {
  pipes_.send_frame(FrameKind::kBootstrap, bootstrap_.SerializeAsString());
  bootstrapped_ = true;
  bootstrap_.Clear();
}

void HostAgent::attach(RendezvousServer& server, int session, pid_t process) {
  session_ = session;
  process_ = process;
  for (const proto::ToAgent& early : std::exchange(early_orders_, {})) server.send(session, early);
}

void HostAgent::order(RendezvousServer& server, const proto::ToAgent& order) {
  if (session_)
    server.send(*session_, order);
  else
    early_orders_.push_back(order);
}

void HostAgent::heard(TimePoint now) {
  if (!keeper_gone_at_) heard_ = now;  // by then it was told to end
  watch_.heard(now);
}

void HostAgent::dismiss() {
  if (!remote() || attached() || keeper_gone() || !pipes_.leased()) return;
  dismissed_ = true;
  close_lease();
}

void HostAgent::close_lease() {
  pipes_.close_lease();
  watch_.expect_end(Clock::now());
}

void HostAgent::note_end(int64_t output_bytes) {
  ended_ = true;
  output_bytes_all_ = std::clamp<int64_t>(output_bytes, 0, kOutputBytesMax);
  watch_.expect_end(Clock::now());
  if (missing_output() > 0) be_patient(Clock::now());
}

void HostAgent::note_output(size_t bytes, TimePoint now) {
  const bool missed = missing_output() > 0;
  output_bytes_ += int64_t(bytes);
  output_at_ = now;
  if (missed) be_patient(now);
}

bool HostAgent::sends(TimePoint now) const {
  return pipes_.unread_output() > 0 || frames_.inside_frame() || now - output_at_ < kPartialAfter;
}

int64_t HostAgent::missing_output() const {
  return ended_ ? std::max<int64_t>(output_bytes_all_ - output_bytes_, 0) : 0;
}

// The keeper of an agent here holds none of its output.
void HostAgent::be_patient(TimePoint now) {
  if (!remote()) return;
  watch_.renew(now, missing_output() > 0 ? AgentWatch::kHostSilence : AgentWatch::kPatience);
}

void HostAgent::note_words(std::string_view line) {
  const bool may_be_keepers = attached() || !remote();  // before, anything may come from there
  const std::string_view how = may_be_keepers ? how_agent_ended(line, process_) : "";
  if (how.empty()) {
    words_ = line;
    return;
  }
  how_ended_ = "it " + std::string(how);
  cut_off_ = false;  // the keeper has ended what the agent left
}

// A program around ssh may have codes of its own for a failure, so that once ranks may run there
// none of them tells that they have ended: only words from there do.
void HostAgent::note_keeper_end(int status, TimePoint now) {
  keeper_gone_at_ = now;
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : kExitSshFailed;
  const bool maybe_cut = code == kExitSshFailed || (attached() && code != 0);
  cut_off_ = remote() && !ended_ && how_ended_.empty() && maybe_cut;
  keeper_ended_ = WIFEXITED(status);
  if (!remote() && how_ended_.empty())
    how_ended_ = keeper_ended_ ? "it exited with code " + std::to_string(code)
                               : "its keeper was killed by " + signal_name(WTERMSIG(status));
  watch_.keeper_gone();
  held = asked = false;  // nobody is left whom a debugger could hold, or who could answer
}

std::optional<TimePoint> HostAgent::safe_at() const {
  if (!cut_off_ || ended_ || !attached()) return std::nullopt;
  return heard_ + kSafe;
}

bool HostAgent::silenced(TimePoint now) const {
  if (!keeper_gone_at_) return false;
  if (now < safe_at().value_or(now)) return false;
  return !control_open_ || now >= *keeper_gone_at_ + kLastWords;
}

bool HostAgent::over(TimePoint now) const {
  if (!silenced(now)) return false;
  if (pipes_.drained()) return true;
  // Nobody may hold the channels open for ever; but what is in them comes out first.
  return now >= *keeper_gone_at_ + kLastWords && !pipes_.output_paused() &&
         pipes_.unread_bytes() == 0;
}

std::optional<TimePoint> HostAgent::over_at() const {
  if (!keeper_gone_at_ || pipes_.output_paused()) return std::nullopt;
  const TimePoint at = *keeper_gone_at_ + kLastWords;
  return std::max(at, safe_at().value_or(at));
}

}  // namespace hvd
