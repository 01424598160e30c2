#include "cli/ssh/ssh_carrier.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <utility>

#include "cli/exit_code.h"
#include "cli/pipe.h"
#include "cli/ssh/remote_script.h"
#include "cli/ssh/ssh_carrier_impl.h"
#include "cli/ssh/ssh_state.h"
#include "cli/ssh/ssh_words.h"
#include "cli/subprocess.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kRetryFirst{250}, kRetryMost{4000};
constexpr std::chrono::milliseconds kNotThereMost{1000};
constexpr std::chrono::seconds kConnectMost{10};  // of a host that is waited for
constexpr int kSomeAttempts = 3;                  // of what more likely never works
constexpr std::chrono::seconds kReapMost{1};      // of what was killed

std::string unique_word() {
  unsigned long long number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number)
    throw Error(ErrorCode::kUnavailable, "the system gives no random bytes");
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", number);
  return text;
}

// What says why it ends, or ends as only an agent does, is whole.
bool may_be_damaged(const RemoteStart& remote, int wait_status) {
  if (!remote.waits_for_kept_copy() || !WIFEXITED(wait_status)) return false;
  const std::string lines = "\n" + remote.words();
  return WEXITSTATUS(wait_status) != kExitOwnFailure && lines.find("\nagent: ") == lines.npos &&
         lines.find("\nkeeper: ") == lines.npos;
}

}  // namespace

StartPhase SshCarrier::phase_of(const Ssh& ssh) {
  const StartPhase phase = ssh.remote.phase();
  const bool silent = phase == StartPhase::kConnecting && ssh.remote.before_login();
  return silent && is_resolving(ssh.pid) ? StartPhase::kResolving : phase;
}

SshCarrier::SshCarrier(Loop& loop, AgentFile& file, Options options, Callbacks callbacks)
    : loop_(loop),
      file_(file),
      options_(std::move(options)),
      callbacks_(std::move(callbacks)),
      random_(std::random_device{}()) {}

SshCarrier::~SshCarrier() {
  stop();
  // What no signal ends, as one that waits for a file system, outlives this.
  const Deadline deadline = Deadline::in(kReapMost);
  for (const pid_t pid : kept_) {
    const UniqueFd fd(int(syscall(SYS_pidfd_open, pid, 0)));
    pollfd ended{fd.get(), POLLIN, 0};
    if (waitpid(pid, nullptr, WNOHANG) == 0 && poll(&ended, 1, deadline.poll_timeout_ms()) >= 0)
      waitpid(pid, nullptr, WNOHANG);
  }
}

void SshCarrier::give_up(int host) {
  const auto found = starts_.find(host);
  if (found == starts_.end()) return;
  drop(*found->second);
  starts_.erase(found);
}

void SshCarrier::stop() {
  for (auto& [host, start] : starts_) drop(*start);
  starts_.clear();
}

void SshCarrier::start(int host, const Host& target, Clock::duration patience, Deadline there) {
  const TimePoint now = Clock::now();
  auto& start = starts_[host];
  HVD_CHECK(!start, "a host is started twice");
  start = std::make_unique<Start>(Start{host, target, StartTime(patience, there), now, now});
}

void SshCarrier::begin(Start& start, TimePoint now) {
  ++start.attempts;
  if (!start.time.begun()) start.time.begin(start.since = now);
  Pipe in = make_pipe(), out = make_pipe(), words = make_pipe();
  const std::string script =
      remote_script({file_.name(), file_.bytes(), file_.machine(), options_.role, start.copy_anew},
                    unique_word());
  SpawnOptions spawned;
  SshAttempt attempt{.keys = start.keys, .is_old_ssh = start.is_old_ssh};
  std::optional<std::chrono::seconds> limit;
  if (start.time.may_wait(now))
    limit = std::clamp<std::chrono::seconds>(
        std::chrono::ceil<std::chrono::seconds>(start.time.waits_until() - now), 1s, kConnectMost);
  attempt.connect_s = int(limit.value_or(0s).count());
  start.time.connect_within(limit, now);
  spawned.argv = ssh_command(options_.ssh, start.target, attempt, script);
  spawned.path = options_.path;
  const std::vector<std::string> variables = ssh_environment(options_.environment);
  std::vector<const char*> environment;
  for (const std::string& entry : variables) environment.push_back(entry.c_str());
  environment.push_back(nullptr);
  spawned.environment = environment.data();
  spawned.stdin_fd = in.read.get();
  spawned.stdout_fd = out.write.get();
  spawned.stderr_fd = words.write.get();
  // Signals to every process, and those of a terminal, mean the job: hvdrun decides.
  spawned.new_session = true;
  spawned.parent_death_signal = true;
  for (const int one : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2})
    spawned.ignored_signals |= 1ull << (one - 1);
  const SpawnResult result = spawn(spawned);
  if (result.pid == 0) {
    const char* advice = "";
    if (result.error == ENOENT || result.error == EACCES)
      advice = "; install it, or name one by --ssh-command";
    if (result.error == ENOEXEC)
      advice = "; it is no program for this machine, and a script begins with a line as #!/bin/sh";
    throw Error(ErrorCode::kUnavailable,
                "cannot run " + options_.ssh.program + ": " + error_text(result.error) + advice);
  }
  kept_.insert(result.pid);
  const TimePoint since = start.attempts == 1 ? start.since : now;  // also of one asked anew
  for (const int fd : {in.write.get(), out.read.get(), words.read.get()}) set_nonblocking(fd);
  start.ssh.reset(new Ssh{result.pid, std::move(in.write), std::move(out.read),
                          std::move(words.read),
                          RemoteStart(file_.bytes(), file_.machine(), since, options_.offer)});
  ++running_;
  note_phase(start);
  loop_.watch(start.ssh->out.get(), EPOLLIN, [this, &start](uint32_t) {
    read_output(start);
    look(start, Clock::now());
  });
  loop_.watch(start.ssh->words.get(), EPOLLIN, [this, &start](uint32_t) {
    read_words(start);
    look(start, Clock::now());
  });
}

// Who has configured ssh to take new keys knows of it.
void SshCarrier::tell_new_keys(Start& start) {
  if (start.keys != HostKeys::kNew || !callbacks_.new_keys) return;
  std::vector<std::string> keys = new_host_keys(start.ssh->remote.first_words(), start.target.name);
  std::erase_if(keys, [&](const auto& key) { return !start.told_keys.insert(key).second; });
  if (!keys.empty()) callbacks_.new_keys(start.host, keys);
}

void SshCarrier::hand_over(Start& start) {
  Ssh& ssh = *start.ssh;
  for (const UniqueFd* fd : {&ssh.out, &ssh.words})
    if (*fd) loop_.unwatch(fd->get());
  if (ssh.in_watched) loop_.unwatch(ssh.in.get());
  // So few bytes go into a pipe whole; where they do not, ssh is ending, and its owner will see it.
  [[maybe_unused]] const ssize_t written =
      write(ssh.in.get(), kFrameMagic.data(), kFrameMagic.size());
  AgentChannels channels{ssh.pid, std::move(ssh.in), std::move(ssh.out), std::move(ssh.words), {}};
  std::string hello = ssh.remote.hello();
  const int host = start.host;
  if (kept_.erase(ssh.pid) > 0) handed_over_.insert(ssh.pid);
  --running_;
  starts_.erase(host);
  callbacks_.started(host, std::move(channels), std::move(hello));
}

// Its ssh, if it has one, has nothing more to say: killed, not waited for.
void SshCarrier::drop(Start& start) {
  if (!start.ssh) return;
  Ssh& ssh = *start.ssh;
  if (ssh.in_watched) loop_.unwatch(ssh.in.get());
  close_watched(ssh.out);
  close_watched(ssh.words);
  kill_ssh(ssh.pid);
  start.ssh.reset();
  --running_;
}

void SshCarrier::fail(int host, const std::string& reason, bool of_ours) {
  give_up(host);
  (of_ours && callbacks_.not_shipped ? callbacks_.not_shipped : callbacks_.failed)(host, reason);
}

void SshCarrier::kill_ssh(pid_t pid) const {
  if (is_ssh(pid)) kill(-pid, SIGKILL);
}

bool SshCarrier::child_ended(pid_t pid, int wait_status) {
  handed_over_.erase(pid);
  if (kept_.erase(pid) == 0) return false;
  const auto found = std::ranges::find_if(
      starts_, [&](const auto& one) { return one.second->ssh && one.second->ssh->pid == pid; });
  if (found == starts_.end()) return true;  // it was killed
  Start& start = *found->second;
  start.ssh->pid = 0;
  judge(start, wait_status, Clock::now());
  return true;
}

// Whether the next attempt may do, having other options, where ssh ended before any login. Who lets
// it say nothing has to know himself whether a new key is to be taken.
bool SshCarrier::ask_differently(Start& start, int wait_status) {
  const std::string& words = start.ssh->remote.words();
  if (!start.is_old_ssh && is_old_ssh(words)) return start.is_old_ssh = true;
  const bool silent =
      words.empty() && WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == kExitSshFailed;
  if (start.keys == HostKeys::kKnown && (silent || is_new_host_key(words)))
    return start.keys = HostKeys::kUsers, true;
  if (start.keys == HostKeys::kUsers && is_new_host_key(words) && !wants_known_key(words))
    return start.keys = HostKeys::kNew, true;
  return false;
}

// What an ssh that has ended means for its host, after all that it left in its pipes. What it
// started for a jump host may still hold these open.
void SshCarrier::judge(Start& start, int wait_status, TimePoint now) {
  Ssh& ssh = *start.ssh;
  read_rest(start, ssh.out, &SshCarrier::read_output);
  read_rest(start, ssh.words, &SshCarrier::read_words);
  tell_new_keys(start);
  const RemoteStart& remote = ssh.remote;
  if (!remote.failure().empty()) {
    const std::string reasons = reasons_in(remote.words());
    return fail(start.host, remote.failure() + (reasons.empty() ? "" : " (" + reasons + ")"));
  }
  if (remote.phase() == StartPhase::kReady && options_.ends_after_hello) return hand_over(start);
  if (remote.phase() == StartPhase::kReady)
    return fail(start.host, "the agent ended right after its first words" + remote.last_said());
  if (remote.before_login() && ask_differently(start, wait_status)) {
    --start.attempts;
    start.due = now;
    return drop(start);
  }
  SshFailure failure = explain_ssh(remote.words(), remote.noise(), wait_status,
                                   options_.ssh.program, remote.heard());
  if (!failure.of_ssh && !start.copy_anew && may_be_damaged(remote, wait_status)) {
    start.copy_anew = true;
    start.reason = std::move(failure.reason);
    start.due = now;
    return drop(start);
  }
  // What breaks a connection on which something runs already, as the copy, may do it each time.
  const bool broken = remote.heard() && failure.retry == Retry::kSoon;
  if (broken) ++start.broken;
  if ((failure.retry == Retry::kSoon && start.broken < kSomeAttempts) ||
      (failure.retry == Retry::kSometimes && start.attempts < kSomeAttempts))
    return try_again(start, std::move(failure.reason), kRetryMost, now);
  if (failure.retry != Retry::kNever && start.time.may_wait(now)) {
    try_again(start, std::move(failure.reason), kNotThereMost, now);
    start.due = std::min(start.due, start.time.waits_until());
    return;
  }
  if (broken)
    failure.reason =
        "tried " + std::to_string(start.attempts) + " times: " + failure.reason + by_hand(start);
  else if (failure.retry != Retry::kNever && start.attempts > 1)
    failure.reason = "it was not there in " + seconds_text(now - start.since) + ", tried " +
                     std::to_string(start.attempts) + " times: " + failure.reason + by_hand(start);
  else if (failure.is_riddle)
    failure.reason += by_hand(start);
  fail(start.host, failure.reason);
}

void SshCarrier::try_again(Start& start, std::string reason, Clock::duration most, TimePoint now) {
  start.reason = std::move(reason);
  if (callbacks_.noted) callbacks_.noted(start.host, "to be tried again: " + start.reason);
  start.noted.reset();
  drop(start);
  most = std::min<Clock::duration>(kRetryFirst * (1 << std::min(start.attempts - 1, 8)), most);
  start.due =
      now + most / 2 +
      Clock::duration(std::uniform_int_distribution<Clock::rep>(0, (most / 2).count())(random_));
}

void SshCarrier::excuse(Clock::duration time) {
  for (const auto& [host, start] : starts_) start->time.excuse(time);
}

void SshCarrier::turn(TimePoint now) {
  // Callbacks change the table. Who was tried least comes first: hosts that are not there must not
  // keep the places from others, who have all the time until their turn.
  std::vector<std::pair<int, int>> hosts;
  for (const auto& [host, start] : starts_) hosts.emplace_back(start->attempts, host);
  std::ranges::sort(hosts);
  for (const auto& [attempts, host] : hosts) {
    if (const auto found = starts_.find(host); found != starts_.end()) turn(*found->second, now);
  }
}

void SshCarrier::turn(Start& start, TimePoint now) {
  if (start.ssh && start.ssh->judged_at && now >= *start.ssh->judged_at)
    return judge(start, 0, now);
  if (start.time.passed(now) || hangs(start, now))
    return fail(start.host, time_is_over(start, now));
  if (start.ssh) {
    start.ssh->remote.nudge(now);
    return feed(start);
  }
  if (now < start.due || running_ >= options_.at_once) return;
  try {
    begin(start, now);
  } catch (const Error& error) {
    fail(start.host, error.what());
  }
}

// An ssh that is at its host's name has not begun to connect.
bool SshCarrier::hangs(Start& start, TimePoint now) {
  if (!start.ssh || !start.time.is_silent(now)) return false;
  const bool resolves = phase_of(*start.ssh) == StartPhase::kResolving;
  if (resolves) start.time.connect_within(kConnectMost, now);
  return !resolves;
}

std::string SshCarrier::time_is_over(const Start& start, TimePoint now) const {
  const std::string age = seconds_text(now - start.since);
  const StartPhase phase = start.ssh ? phase_of(*start.ssh) : StartPhase::kConnecting;
  std::string where = "ssh, asked anew after its first words, was not through within " + age;
  if (phase <= StartPhase::kConnecting && !start.reason.empty())
    where =
        "ssh failed " + std::to_string(start.attempts) + " times in " + age + ": " + start.reason;
  else if (phase == StartPhase::kResolving)
    where = "its name was still being looked up after " + age + ": does the name server answer?";
  else if (start.ssh)
    where = start.ssh->remote.unfinished(now);
  return where + by_hand(start);
}

std::string SshCarrier::by_hand(const Start& start) const {
  return "; try by hand: " + ssh_by_hand(options_.ssh, start.target);
}

std::optional<TimePoint> SshCarrier::next_deadline() const {
  std::optional<TimePoint> next;
  const auto sooner = [&](std::optional<TimePoint> one) {
    if (one && (!next || *one < *next)) next = one;
  };
  for (const auto& [host, start] : starts_) {
    if (start->time.begun()) sooner(start->time.next());
    if (start->ssh) {
      sooner(start->ssh->judged_at);
      sooner(start->ssh->remote.next_nudge());
    } else if (running_ < options_.at_once) {
      sooner(start->due);
    }
  }
  return next;
}

std::optional<SshCarrier::Progress> SshCarrier::progress(int host) const {
  const auto found = starts_.find(host);
  if (found == starts_.end()) return {};
  const Start& start = *found->second;
  Progress progress{.since = start.since,
                    .queued = !start.ssh,
                    .judged = !start.reason.empty() && !(start.ssh && start.ssh->remote.heard()),
                    .attempts = start.attempts,
                    .reason = start.reason};
  if (start.ssh) {
    const RemoteStart& remote = start.ssh->remote;
    progress.phase = phase_of(*start.ssh);
    progress.since = remote.since();
    progress.copied = remote.file_at();
    progress.bytes = file_.bytes();
    progress.shipped = remote.shipped();
    progress.to_ship = remote.to_ship();
  }
  return progress;
}

}  // namespace hvd
