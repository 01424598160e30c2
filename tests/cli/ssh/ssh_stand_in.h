// Hosts behind a stand-in for ssh, and a carrier that starts agents there.
#pragma once

#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>

#include "cli/agent/descendants.h"
#include "cli/signals.h"
#include "cli/ssh/ssh_carrier.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace hvd {

inline void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
}

// A folder with an `ssh` that runs what the file named after the host says, in that folder. An ssh
// of that name is looking up the host's name as long as it has no connection: `other` never is.
class Hosts {
 public:
  Hosts() {
    signal(SIGPIPE, SIG_IGN);
    write_file(folder_.path() / "ssh", "#!/bin/sh\ncd " + folder_.path().string() +
                                           "\nwhile [ $# -gt 2 ]; do shift; done\n. ./$1\n");
    std::filesystem::create_symlink("ssh", folder_.path() / "other");
    std::string hello(kFrameMagic);
    append_header(hello, {2, FrameKind::kHello, Stream::kStdout, 0, 0});
    write_file(folder_.path() / "hello", hello + "hi");
    write_file(folder_.path() / "agent", "the agent");
  }
  ~Hosts() { CHECK(reap_all({})); }  // no child is left, ended or not

  void set(const std::string& host, const std::string& script) {
    write_file(folder_.path() / host, script);
  }
  std::filesystem::path operator/(const char* name) const { return folder_.path() / name; }

 private:
  TemporaryDirectory folder_;
};

class Run {
 public:
  explicit Run(const Hosts& hosts, int at_once = 64, const char* program = "ssh",
               const ShipOffer* offer = nullptr, bool ends_after_hello = false)
      : file_(hosts / "agent"),
        children_({SIGCHLD}, 0),
        carrier_(
            loop_, file_,
            {.ssh = {.program = hosts / program, .identity_file = {}, .arguments = {}},
             .environment = {"PATH=/usr/local/bin:/usr/bin:/bin"},
             .path = "",
             .at_once = at_once,
             .offer = offer,
             .ends_after_hello = ends_after_hello},
            {.started =
                 [this](int host, AgentChannels channels, const std::string& hello) {
                   REQUIRE(hello == "hi");
                   started.emplace(host, std::move(channels));
                 },
             .failed = [this](int host, const std::string& reason) { failed[host] = reason; },
             .noted = [this](int host, const std::string& what) { noted[host] += what + "\n"; },
             .new_keys =
                 [this](int host, const std::vector<std::string>& keys) {
                   REQUIRE_FALSE(started.contains(host));
                   new_keys[host].insert(new_keys[host].end(), keys.begin(), keys.end());
                 }}) {
    loop_.watch(children_.fd(), EPOLLIN, [this](uint32_t) {
      children_.take();
      reap();
    });
  }
  ~Run() {
    for (auto& [host, channels] : started) {
      channels.lease.reset();
      if (channels.pid > 0) waitpid(channels.pid, nullptr, 0);
    }
  }

  void start(int host, const std::string& name,
             std::chrono::milliseconds limit = std::chrono::seconds(20),
             std::chrono::milliseconds there = {}) {
    carrier_.start(host, {name, "", 1}, limit, Deadline::in(there));
  }
  void until(size_t done) {
    turn_until([&] { return started.size() + failed.size() >= done; });
  }
  void turn_until(const std::function<bool()>& come) {
    const Deadline deadline = Deadline::in(std::chrono::seconds(60));
    for (carrier_.turn(Clock::now()); !come(); carrier_.turn(Clock::now())) {
      REQUIRE_FALSE(deadline.passed());
      const TimePoint soon = Clock::now() + std::chrono::milliseconds(10);  // files make no event
      loop_.turn(std::min(carrier_.next_deadline().value_or(soon), soon));
    }
  }
  // Until these starts have come that far.
  void until_at(const std::map<int, StartPhase>& phases) {
    const Deadline deadline = Deadline::in(std::chrono::seconds(30));
    carrier_.turn(Clock::now());
    for (const auto& [host, phase] : phases)
      while (carrier_.progress(host)->phase != phase) {
        REQUIRE_FALSE(deadline.passed());
        loop_.turn(deadline.when());
      }
  }
  void until_queued(int host) {
    const Deadline deadline = Deadline::in(std::chrono::seconds(30));
    while (!carrier_.progress(host)->queued) {
      REQUIRE_FALSE(deadline.passed());
      loop_.turn(deadline.when());
    }
  }
  void reap() {
    reap_all([this](pid_t pid, int status) { carrier_.child_ended(pid, status); });
  }
  SshCarrier& carrier() { return carrier_; }

  std::map<int, AgentChannels> started;
  std::map<int, std::string> failed, noted;
  std::map<int, std::vector<std::string>> new_keys;

 private:
  Loop loop_;
  AgentFile file_;
  SignalReader children_;
  SshCarrier carrier_;
};

inline constexpr const char* kAgent = "cat hello; exec cat >/dev/null";

}  // namespace hvd
