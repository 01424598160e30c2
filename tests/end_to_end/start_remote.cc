// Starts agents by ssh, as hvdrun will: e2e_start_remote HVDRUN LIMIT_MS [--ssh WORD]... HOST...
//
// Prints a line for each thing that happens (`phase`, `started`, `failed`, in the end `all`), keeps
// the agents until its own standard input ends, then gives their leases back and says how each ssh
// ended. --ssh-command WORD replaces ssh. With --clock S each agent gets a bootstrap by which
// hvdrun's clock is S seconds ahead of ours, and nothing else to go by, and what it says to that is
// printed (`words`).
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "cli/agent/descendants.h"
#include "cli/features.h"
#include "cli/frame.h"
#include "cli/hello.h"
#include "cli/hosts.h"
#include "cli/pipe.h"
#include "cli/signals.h"
#include "cli/ssh/ssh_carrier.h"
#include "cli/start_state.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/credentials.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

class Starter {
 public:
  Starter(const std::string& agent, SshOptions ssh, std::vector<GivenHost> hosts,
          std::optional<std::chrono::seconds> clock_ahead)
      : file_(agent),
        hosts_(std::move(hosts)),
        clock_ahead_(clock_ahead),
        children_({SIGCHLD}, 0),
        carrier_(
            loop_, file_,
            {.ssh = std::move(ssh),
             .environment = take_start_state().environment,
             .path = env::get("PATH").value_or("/usr/bin:/bin")},
            {.started = [this](int host, AgentChannels channels,
                               std::string hello) { on_started(host, std::move(channels), hello); },
             .failed =
                 [this](int host, const std::string& reason) {
                   say("failed", host, reason);
                   ++done_;
                 }}) {
    loop_.watch(children_.fd(), EPOLLIN, [this](uint32_t) {
      children_.take();
      reap_all([this](pid_t pid, int status) {
        if (!carrier_.child_ended(pid, status)) ended_[pid] = status;
      });
    });
  }

  void run(std::chrono::milliseconds limit) {
    begin_ = Clock::now();
    for (size_t host = 0; host < hosts_.size(); ++host)
      carrier_.start(int(host), {hosts_[host].name, hosts_[host].user, 1}, limit);
    while (done_ < hosts_.size()) {
      carrier_.turn(Clock::now());
      say_phases();
      if (done_ < hosts_.size()) loop_.turn(carrier_.next_deadline());
    }
    std::cout << "all" << std::endl;
    if (clock_ahead_)
      for (const auto& [host, channels] : agents_) try_clock(host, channels);
    for (char byte; read(STDIN_FILENO, &byte, 1) > 0;) {
    }
    for (auto& [host, channels] : agents_) channels.lease.reset();
    const Deadline deadline = Deadline::in(10s);
    for (const auto& [host, channels] : agents_) {
      while (!ended_.contains(channels.pid) && !deadline.passed()) loop_.turn(deadline.when());
      const auto end = ended_.find(channels.pid);
      say("ended", host, end == ended_.end() ? "never" : std::to_string(WEXITSTATUS(end->second)));
    }
  }

 private:
  void on_started(int host, AgentChannels channels, const std::string& hello) {
    const Hello seen = read_hello(hello, {version(), file_.name(), ""});
    ++done_;
    const auto took = std::chrono::duration<double>(Clock::now() - begin_).count();
    say("started", host,
        std::to_string(took) + (seen.request.empty() ? " no request" : " request"));
    agents_.emplace(host, std::move(channels));
  }

  void try_clock(int host, const AgentChannels& channels) {
    proto::Bootstrap bootstrap;
    bootstrap.set_host(host);
    bootstrap.set_clock_s(WallClock::to_time_t(WallClock::now() + *clock_ahead_));
    const std::string bytes = bootstrap.SerializeAsString();
    std::string frame;
    append_header(frame, {uint32_t(bytes.size()), FrameKind::kBootstrap, Stream::kStdout, 0, 0});
    frame += bytes;
    if (write(channels.lease.get(), frame.data(), frame.size()) != ssize_t(frame.size()))
      throw Error(ErrorCode::kUnavailable, "the agent takes no bootstrap");
    std::string words;
    const Deadline deadline = Deadline::in(10s);
    for (bool open = true; open && !deadline.passed();) {
      pollfd words_there{channels.words.get(), POLLIN, 0};
      if (poll(&words_there, 1, deadline.poll_timeout_ms()) <= 0) continue;
      char some[4096];
      const ssize_t n = read(channels.words.get(), some, sizeof some);
      open = n > 0 || (n < 0 && errno == EAGAIN);
      if (n > 0) words.append(some, size_t(n));
    }
    std::istringstream lines(words);
    for (std::string line; std::getline(lines, line);)
      if (!line.empty()) say("words", host, line);
  }

  void say_phases() {
    for (size_t host = 0; host < hosts_.size(); ++host) {
      const auto progress = carrier_.progress(int(host));
      if (!progress) continue;
      const std::string now =
          progress->queued ? "queued" : std::string(phase_name(progress->phase));
      std::string& before = phases_[int(host)];
      if (now == before) continue;
      say("phase", int(host), now + " " + std::to_string(progress->attempts));
      before = now;
    }
  }

  void say(const char* what, int host, const std::string& words) {
    const GivenHost& given = hosts_[size_t(host)];
    std::cout << what << " " << (given.user.empty() ? "" : given.user + "@") << given.name << " "
              << words << std::endl;
  }

  Loop loop_;
  AgentFile file_;
  const std::vector<GivenHost> hosts_;
  const std::optional<std::chrono::seconds> clock_ahead_;
  SignalReader children_;
  std::map<int, AgentChannels> agents_;
  std::map<int, std::string> phases_;
  std::map<pid_t, int> ended_;
  size_t done_ = 0;
  TimePoint begin_;
  SshCarrier carrier_;
};

int run(const std::vector<std::string>& words) {
  SshOptions ssh;
  std::string list;
  std::optional<std::chrono::seconds> clock_ahead;
  for (size_t i = 2; i < words.size(); ++i) {
    if (words[i] == "--ssh")
      ssh.arguments.push_back(words.at(++i));
    else if (words[i] == "--ssh-command")
      ssh.program = words.at(++i);
    else if (words[i] == "--clock")
      clock_ahead.emplace(std::stoll(words.at(++i)));
    else
      list += (list.empty() ? "" : ",") + words[i];
  }
  signal(SIGPIPE, SIG_IGN);
  Starter(words.at(0), std::move(ssh), parse_host_list(list), clock_ahead)
      .run(std::chrono::milliseconds(std::stoi(words.at(1))));
  return 0;
}

}  // namespace
}  // namespace hvd

int main(int argc, char** argv) {
  try {
    return hvd::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "start_remote: " << error.what() << std::endl;
    return 1;
  }
}
