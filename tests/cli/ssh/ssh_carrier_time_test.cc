// For how long hosts are tried, through a stand-in for ssh, and what is said of those that take
// longer.
#include <algorithm>

#include "cli/ssh/remote_script.h"
#include "tests/cli/ssh/ssh_stand_in.h"

namespace hvd {

using namespace std::chrono_literals;

TEST_CASE("ssh_carrier: a host does not pay for the time in which hvdrun was stopped") {
  Hosts hosts;
  hosts.set("a", std::string("while [ ! -e go ]; do sleep 0.02; done; ") + kAgent);
  Run run(hosts);
  run.start(1, "a", 10s);
  run.carrier().turn(Clock::now());
  run.carrier().excuse(60s);
  run.carrier().turn(Clock::now() + 60s);  // as it is afterwards
  CHECK(run.failed.empty());
  write_file(hosts / "go", "");
  run.until(1);
  CHECK(run.started.contains(1));
}

TEST_CASE("ssh_carrier: a host's time is over where it stands, and says where that was") {
  Hosts hosts;
  const std::string mark(kRemoteMark);
  hosts.set("silent", "exec sleep 1000");
  hosts.set("copying", "echo '" + mark + "need'; exec sleep 1000");
  hosts.set("starting", "echo hm >&2; echo '" + mark + "found'; exec cat >/dev/null");
  hosts.set("half", "head -c 30 hello; exec sleep 1000");
  hosts.set("asked", "echo 'Host key verification failed.' >&2; exit 255");
  Run run(hosts), other(hosts);
  int number = 0;
  for (const char* host : {"silent", "copying", "starting", "half"}) run.start(number++, host);
  run.until_at({{1, StartPhase::kCopying}, {2, StartPhase::kStarting}, {3, StartPhase::kStarting}});
  // Until it has become `sleep` it is an ssh that is looking up its host's name.
  run.turn_until([&] { return run.carrier().progress(0)->phase == StartPhase::kConnecting; });
  run.carrier().turn(Clock::now() + 600s);
  REQUIRE(run.failed.size() == 4);
  REQUIRE(run.failed.at(0).starts_with("there was no answer for 6"));
  const std::string by_hand =
      "; try by hand: " + (hosts / "ssh").string() + " -o ControlPath=none ";
  REQUIRE(run.failed.at(0).ends_with(by_hand + "silent true"));
  REQUIRE(run.failed.at(1).starts_with("all of the agent was sent to it, and it has not taken"));
  REQUIRE(run.failed.at(2).starts_with("the agent has not spoken for 6"));
  REQUIRE(run.failed.at(2).ends_with("ssh's last words were \"hm\"" + by_hand + "starting true"));
  REQUIRE(run.failed.at(3).starts_with("the agent has not spoken for 6"));
  other.start(0, "asked");
  other.carrier().turn(Clock::now());
  other.until_queued(0);
  other.carrier().turn(Clock::now() + 600s);
  REQUIRE(other.failed.at(0).starts_with("ssh, asked anew after its first words, was not through"));
}

TEST_CASE("ssh_carrier: who waits for a place has all its time from its turn on") {
  Hosts hosts;
  hosts.set("silent", "exec sleep 1000");
  Run run(hosts, 1, "other");
  run.start(0, "silent", 600ms);
  run.start(1, "silent", 300ms);
  run.until(2);
  CHECK(run.failed.at(1).starts_with("there was no answer for 0.3 s"));
}

TEST_CASE("ssh_carrier: a host that is waited for is tried again until it is there, or no longer") {
  Hosts hosts;
  const std::string refused = "echo 'ssh: connect to host x port 22: Connection refused' >&2\n";
  hosts.set("late", "echo x >>tries; [ $(wc -l <tries) -gt 2 ] || { " + refused + "exit 255; }\n" +
                        std::string(kAgent));
  hosts.set("never", "echo x >>never_tries; " + refused + "exit 255");
  hosts.set("denied", "echo 'a@b: Permission denied (publickey).' >&2; exit 255");
  Run run(hosts);
  run.start(0, "late", 20s, 15s);
  run.start(1, "never", 20s, 2s);  // time for a second attempt, however slow the machine
  run.start(2, "denied", 20s, 15s);
  run.until(3);
  REQUIRE(run.started.contains(0));
  const std::string tries =
      std::to_string(std::filesystem::file_size(hosts / "never_tries") / 2) + " times";
  REQUIRE_THAT(
      run.failed.at(1),
      Catch::Matchers::Contains("it was not there in ") &&
          Catch::Matchers::Contains(", tried " + tries + ": nothing listens on its ssh port") &&
          Catch::Matchers::Contains("; try by hand: "));
  REQUIRE(run.failed.at(2).starts_with("it accepts none of your keys"));
}

TEST_CASE("ssh_carrier: hosts that are not there keep no place from others") {
  Hosts hosts;
  hosts.set("away", "echo 'ssh: connect to host x port 22: No route to host' >&2; exit 255");
  hosts.set("ok", kAgent);
  Run run(hosts, 1);
  for (int host = 0; host < 4; ++host) run.start(host, "away", 20s, 15s);
  run.start(4, "ok", 20s, 15s);
  run.until(1);
  REQUIRE(run.started.contains(4));
  REQUIRE(run.carrier().progress(0)->reason.starts_with("there is no way to it"));
}

// Of a copy that is there, and of one that is to be sent.
TEST_CASE("ssh_carrier: a host that hangs after any byte of its first words is given up") {
  Hosts hosts;
  const std::string mark(kRemoteMark);
  const std::string first = GENERATE("found\n", "need\n");
  hosts.set("words", "printf '" + mark + first + "'; cat hello");
  const size_t whole = mark.size() + first.size() + std::filesystem::file_size(hosts / "hello");
  Run run(hosts, 1000);
  for (size_t bytes = 0; bytes < whole; ++bytes) {
    const std::string name = std::to_string(bytes);
    hosts.set(name, ". ./words | head -c " + name + "; echo x >>come; exec sleep 1000");
    run.start(int(bytes), name, 600s);
  }
  const auto all_there = [&] {
    std::error_code none_yet;
    return std::filesystem::file_size(hosts / "come", none_yet) == 2 * whole && !none_yet;
  };
  run.turn_until(all_there);
  run.carrier().turn(Clock::now() + 2000s);
  for (size_t bytes = 0; bytes < whole; ++bytes) {
    CAPTURE(bytes);
    REQUIRE(run.failed.contains(int(bytes)));
    REQUIRE_THAT(run.failed.at(int(bytes)), Catch::Matchers::Contains("; try by hand: "));
  }
}

TEST_CASE("ssh_carrier: who is asked anew has been asked since the first time") {
  Hosts hosts;
  hosts.set("slow",
            "[ ! -e asked ] || exec sleep 1000; touch asked\n"
            "echo 'Host key verification failed.' >&2; exit 255");
  Run run(hosts, 64, "other");
  run.start(0, "slow");
  const TimePoint begin = Clock::now();
  run.carrier().turn(begin);
  run.until_queued(0);
  run.carrier().turn(begin + 10s);  // asked anew
  REQUIRE_FALSE(run.carrier().progress(0)->queued);
  run.carrier().turn(begin + 600s);
  REQUIRE_THAT(run.failed.at(0), Catch::Matchers::StartsWith("there was no answer for 600.0 s"));
}

}  // namespace hvd
