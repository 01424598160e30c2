// Starting agents through a stand-in for ssh: places, retries, deadlines, and nobody left behind.
#include <poll.h>
#include <sys/stat.h>

#include "cli/pipe.h"
#include "cli/ssh/remote_script.h"
#include "tests/cli/ssh/ssh_stand_in.h"
#include "tests/support/few_descriptors.h"

namespace hvd {

using namespace std::chrono_literals;

TEST_CASE("ssh_carrier: an agent that speaks is handed over with its pipes") {
  Hosts hosts;
  hosts.set("a", "echo noise; cat hello; exec cat");
  Run run(hosts);
  run.start(7, "a");
  REQUIRE(run.carrier().progress(7)->queued);
  run.until(1);
  REQUIRE(run.failed.empty());
  REQUIRE_FALSE(run.carrier().progress(7));
  const AgentChannels& channels = run.started.at(7);
  REQUIRE(write(channels.lease.get(), "ping\n", 5) == 5);
  std::string answer, wanted = std::string(kFrameMagic) + "ping\n";
  for (const Deadline deadline = Deadline::in(20s); answer.size() < wanted.size();) {
    pollfd readable{channels.output.get(), POLLIN, 0};
    REQUIRE(poll(&readable, 1, deadline.poll_timeout_ms()) == 1);
    char bytes[64];
    const ssize_t n = read(channels.output.get(), bytes, sizeof bytes);
    if (n > 0) answer.append(bytes, size_t(n));
  }
  REQUIRE(answer == wanted);
}

TEST_CASE("ssh_carrier: who ends after its words has failed, unless that is all it is to do") {
  for (const bool may : {false, true}) {
    Hosts hosts;
    hosts.set("a", "cat hello");
    Run run(hosts, 64, "ssh", nullptr, may);
    run.start(7, "a");
    run.carrier().turn(Clock::now());
    siginfo_t ended{};  // its end is seen before its words
    REQUIRE(waitid(P_ALL, 0, &ended, WEXITED | WNOWAIT) == 0);
    run.reap();
    CHECK(run.started.contains(7) == may);
    CHECK(run.failed.contains(7) != may);
    if (!may) CHECK(run.failed.at(7) == "the agent ended right after its first words");
  }
}

TEST_CASE("ssh_carrier: never more at once than there are places, and every host gets its turn") {
  Hosts hosts;
  std::filesystem::create_directory(hosts / "now");
  hosts.set("a",
            "mkdir now/$$; [ $(ls now | wc -l) -le 3 ] || touch too_many\n"
            "head -c 1 /dev/urandom >/dev/null; rmdir now/$$; " +
                std::string(kAgent));
  Run run(hosts, 3);
  for (int host = 0; host < 12; ++host) run.start(host, "a");
  run.until(12);
  REQUIRE(run.started.size() == 12);
  REQUIRE_FALSE(std::filesystem::exists(hosts / "too_many"));
}

TEST_CASE("ssh_carrier: what a busy host drops is tried again, a refusal is not") {
  Hosts hosts;
  hosts.set("busy",
            "echo x >>tries; [ $(wc -l <tries) -gt 2 ] || {\n"
            "echo 'kex_exchange_identification: Connection closed by remote host' >&2\n"
            "exit 255; }\n" +
                std::string(kAgent));
  hosts.set("refused",
            "echo x >>refusals\n"
            "echo 'ssh: connect to host refused port 22: Connection refused' >&2\n"
            "exit 255");
  hosts.set("always", "echo 'Connection reset by 10.0.0.1 port 22' >&2; exit 255");
  hosts.set("closed",
            "echo x >>closes; echo 'Connection closed by 10.0.0.1 port 22' >&2; exit 255");
  Run run(hosts);
  run.start(0, "busy");
  run.start(1, "refused");
  run.start(2, "always", 2s);
  run.start(3, "closed");
  run.until(4);
  REQUIRE(run.started.contains(0));
  CHECK_THAT(run.noted.at(0), Catch::Matchers::Matches("(connecting\nto be tried again: .+\n){2}"
                                                       "connecting\n(starting\n)?ready\n"));
  REQUIRE(std::filesystem::file_size(hosts / "refusals") == 2);
  REQUIRE(run.failed.at(1).starts_with("nothing listens on its ssh port"));
  REQUIRE_THAT(run.failed.at(2),
               Catch::Matchers::Matches("ssh failed [0-9]+ times in [0-9.]+ s: the connection was "
                                        "reset.*"));
  REQUIRE(std::filesystem::file_size(hosts / "closes") == 2 * 3);
}

TEST_CASE(
    "ssh_carrier: what breaks off once something runs there is tried again but for a moment") {
  Hosts hosts;
  // Drops before any login do not count.
  hosts.set("copies",
            "echo x >>copies_tries; [ $(wc -l <copies_tries) -gt 2 ] || {\n"
            "echo 'Connection reset by 10.0.0.1 port 22' >&2; exit 255; }\n"
            "echo '" +
                std::string(kRemoteMark) +
                "need'; read wanted; head -c 4 >/dev/null\n"
                "echo 'Read from remote host copies: Connection reset by peer' >&2\n"
                "exit 255");
  Run run(hosts);
  run.start(0, "copies");
  run.until(1);
  CHECK(std::filesystem::file_size(hosts / "copies_tries") == 2 * (2 + 3));
  CHECK_THAT(run.failed.at(0),
             Catch::Matchers::StartsWith("tried 5 times: the connection was reset"));
}

TEST_CASE("ssh_carrier: host keys that ssh takes because it is told to are named") {
  Hosts hosts;
  // As ssh does that does not know the host, and nobody has told to take its key, twice.
  const auto unknown = [](const std::string& tries) {
    return "echo x >>" + tries + "; [ $(wc -l <" + tries +
           ") -gt 2 ] || { echo 'Host key verification failed.' >&2; exit 255; }\n"
           "echo 'Warning: Permanently added '\\''a'\\'' (RSA) to the list of known hosts.' >&2\n";
  };
  hosts.set("new", unknown("new_tries") + std::string(kAgent));
  hosts.set("refuses", unknown("refuses_tries") +
                           "head -c 300000 /dev/zero | tr '\\0' x >&2\n"
                           "echo 'a: Permission denied (publickey).' >&2; exit 255");
  hosts.set(
      "known",
      "echo 'Warning: Permanently added '\\''a'\\'' (RSA) to the list of known hosts.' >&2\n" +
          std::string(kAgent));
  REQUIRE(mkfifo((hosts / "seen").c_str(), 0600) == 0);
  hosts.set(
      "behind",
      unknown("behind_tries") + "read x <seen\n" +
          "echo 'Warning: Permanently added '\\''b'\\'' (RSA) to the list of known hosts.' >&2\n" +
          std::string(kAgent));
  Run run(hosts);
  run.start(0, "new");
  run.start(1, "refuses");
  run.start(2, "known");
  run.start(3, "behind");
  run.turn_until([&] { return run.new_keys.contains(3); });
  write_file(hosts / "seen", "\n");
  run.until(4);
  CHECK(run.started.size() == 3);
  const std::vector<std::string> key = {"'a' (RSA)"}, both = {"'a' (RSA)", "'b' (RSA)"};
  const std::map<int, std::vector<std::string>> told = {{0, key}, {1, key}, {3, both}};
  CHECK(run.new_keys == told);
}

TEST_CASE(
    "ssh_carrier: a proxy that ends is tried for a moment, and longer where that is asked for") {
  Hosts hosts;
  const std::string closed =
      "echo 'kex_exchange_identification: Connection closed by remote host' >&2\n"
      "echo 'Connection closed by UNKNOWN port 65535' >&2\nexit 255; }\n";
  hosts.set("never", "echo x >>never_tries; { " + closed);
  hosts.set("late",
            "echo x >>tries; [ $(wc -l <tries) -gt 4 ] || { " + closed + std::string(kAgent));
  Run run(hosts);
  run.start(0, "never");
  run.start(1, "late", 20s, 15s);
  run.until(2);
  CHECK(run.started.contains(1));
  CHECK(std::filesystem::file_size(hosts / "never_tries") == 2 * 3);
  CHECK_THAT(run.failed.at(0), Catch::Matchers::Contains(" s, tried 3 times: what leads to it"));
}

TEST_CASE("ssh_carrier: a copy that ends before it speaks is replaced, once") {
  Hosts hosts;
  const std::string found = "echo x >>tries.$1; echo '" + std::string(kRemoteMark) + "found'\n";
  hosts.set("damaged",
            found + "case $2 in *'anew=1;'*) " + kAgent +
                ";; esac\nexit 255");  // what ssh ends with where a signal ended it there
  hosts.set("speaks", found + "head -c 16 hello; exit 1");
  hosts.set("worse", found + "exit 126");
  hosts.set("early", found + "echo 'agent: no threads' >&2; exit 1");
  hosts.set("failed", found + "exit 125");
  hosts.set("cut", found + "echo 'client_loop: send disconnect: Broken pipe' >&2; exit 255");
  Run run(hosts);
  int number = 0;
  for (const char* host : {"damaged", "speaks", "worse", "cut", "early", "failed"})
    run.start(number++, host);
  run.until(number);
  CHECK(run.started.contains(0));
  const std::string by_hand =
      "; it said nothing; try by hand: " + (hosts / "ssh").string() + " -o ControlPath=none ";
  CHECK(run.failed.at(1) == "its login shell ended with exit code 1" + by_hand + "speaks true");
  CHECK(run.failed.at(2) == "its login shell ended with exit code 126" + by_hand + "worse true");
  CHECK_THAT(run.failed.at(3), Catch::Matchers::Contains("tried 3 times: the connection broke"));
  CHECK_THAT(run.failed.at(4), Catch::Matchers::Contains("agent: no threads"));
  CHECK_THAT(run.failed.at(5), Catch::Matchers::Contains("exit code 125"));
  for (const auto& [file, tries] :
       {std::pair("damaged", 2), {"speaks", 1}, {"worse", 2}, {"early", 1}, {"failed", 1}})
    CHECK(std::filesystem::file_size(hosts / ("tries." + std::string(file)).c_str()) ==
          size_t(2 * tries));
}

TEST_CASE("ssh_carrier: of a file that is another by now not a byte is sent") {
  Hosts hosts;
  write_file(hosts / "shipped", "secret");
  std::string wishes(kFrameMagic);
  for (const std::string body : {"list", "0"}) {
    append_header(wishes, {uint32_t(body.size()), FrameKind::kWanted, Stream::kStdout, 0, 0});
    wishes += body;
  }
  write_file(hosts / "wishes", wishes);
  // What reads there outlives its ssh, which is killed at once, to the end of what was sent.
  hosts.set("a",
            "exec 3<&0; setsid sh -c 'true >up; cat >got; mv got all' <&3 &\n"
            "until [ -e up ]; do sleep 0.01; done; cat wishes; wait");
  const ShipOffer offer{"the list", {{hosts / "shipped", 6, 0}}, 100};  // changed in 1970
  Run run(hosts, 64, "ssh", &offer);
  run.start(0, "a");
  run.until(1);
  CHECK_THAT(run.failed.at(0), Catch::Matchers::Contains("has changed since hvdrun read it"));
  for (const Deadline deadline = Deadline::in(20s); !std::filesystem::exists(hosts / "all");) {
    REQUIRE_FALSE(deadline.passed());
    poll(nullptr, 0, 5);
  }
  std::ifstream all(hosts / "all", std::ios::binary);
  const std::string seen{std::istreambuf_iterator<char>(all), {}};
  CHECK_THAT(seen, Catch::Matchers::Contains("the list"));
  CHECK_THAT(seen, !Catch::Matchers::Contains("secret"));
}

TEST_CASE("ssh_carrier: an ssh before 8.7 is asked without options of 8.7, bad ones stay bad") {
  Hosts hosts;
  write_file(hosts / "old_ssh", "#!/bin/sh\ncd " + (hosts / ".").string() +
                                    "\ncase \"$*\" in *SessionType*) new=yes;; *) new=;; esac\n"
                                    "while [ $# -gt 2 ]; do shift; done\n. ./$1\n");
  const std::string bad = "echo 'Bad configuration option: stdinnull' >&2; exit 255";
  hosts.set("old", "[ $new ] && { " + bad + "; }; " + kAgent);
  hosts.set("bad", bad);
  Run run(hosts, 64, "old_ssh");
  for (int host : {0, 1}) run.start(host, host == 0 ? "old" : "bad");
  run.until(2);
  CHECK(run.started.contains(0));
  CHECK_THAT(run.failed.at(1), Catch::Matchers::StartsWith("ssh does not understand"));
}

TEST_CASE("ssh_carrier: a new host key is taken by another attempt, unless that is forbidden") {
  Hosts hosts;
  const std::string failed = "echo 'Host key verification failed.' >&2; exit 255; }\n";
  const std::string changed = "echo '@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @' >&2\n";
  // As ssh does: by its words alone it cannot be told what it was given.
  write_file(hosts / "picky",
             "#!/bin/sh\ncd " + (hosts / ".").string() +
                 "\nnew= known=; case \"$*\" in *StrictHostKeyChecking=accept-new*) new=yes;; "
                 "*StrictHostKeyChecking=yes*) known=yes;; esac\n"
                 "while [ $# -gt 2 ]; do shift; done\n. ./$1\n");
  hosts.set("new", "echo x >>news; [ $new ] || { " + failed + kAgent);
  hosts.set("strict",
            "[ $new ] || { echo 'No ED25519 host key is known for strict and you have requested "
            "strict checking.' >&2; " +
                failed + kAgent);
  hosts.set("gate", "echo x >>gates; { " + failed);
  // One that would go on, one that says nothing, and one where a start file says such things.
  hosts.set("changed", "echo x >>changes; " + changed + "[ ! $known ] || { " + failed + kAgent);
  hosts.set("quiet", "[ ! $known ] || exit 255\n" + std::string(kAgent));
  hosts.set("talks", changed + "echo 'Host key verification failed.' >&2\n" + kAgent);
  Run run(hosts, 64, "picky");
  int number = 0;
  for (const char* host : {"new", "strict", "gate", "changed", "quiet", "talks"})
    run.start(number++, host);
  run.until(number);
  for (const int host : {0, 4, 5}) REQUIRE(run.started.contains(host));
  REQUIRE(std::filesystem::file_size(hosts / "news") == 6);
  REQUIRE_THAT(run.failed.at(1), Catch::Matchers::Contains("told to take no new one"));
  REQUIRE_THAT(run.failed.at(2), Catch::Matchers::Contains("or a jump host's is not"));
  REQUIRE(std::filesystem::file_size(hosts / "gates") == 6);
  REQUIRE(run.failed.at(3).starts_with("its host key is not the one that it had before"));
  REQUIRE(std::filesystem::file_size(hosts / "changes") == 2);
}

TEST_CASE("ssh_carrier: whatever a host sends, it starts or fails with a reason") {
  Hosts hosts;
  const std::string mark(kRemoteMark);
  hosts.set("early", "exit 0");
  hosts.set("killed", "kill -9 $$");
  hosts.set("closes", "exec >&- 2>&-; exec sleep 0.1");
  hosts.set("last", "cat hello; exit 3");
  hosts.set("garbage", "head -c 300000 /dev/urandom; head -c 300000 /dev/urandom >&2; exit 5");
  hosts.set("nonsense", "echo '" + mark + "sing'; exec sleep 1000");
  hosts.set("greedy",
            "while :; do echo '" + mark + "need'; read header; head -c 9 >/dev/null; done");
  hosts.set("nowhere",
            "echo 'cp: No space left on device' >&2; echo '" + mark + "nowhere'; exit 1");
  Run run(hosts);
  const std::map<std::string, std::string> wanted = {
      {"early", "its login shell ended without running"},
      {"killed", " was ended by signal 9"},
      {"closes", "its login shell ended"},
      {"garbage", "its login shell ended with exit code 5"},
      {"nonsense", "it sent \"sing\" when that makes no sense"},
      {"greedy", "it sent \"need\" when that makes no sense"},
      {"nowhere", "(No space left on device)"},
  };
  int host = 0;
  for (const auto& [name, words] : wanted) run.start(host++, name);
  run.start(host, "last");
  run.until(wanted.size() + 1);
  host = 0;
  for (const auto& [name, words] : wanted) {
    CAPTURE(name);
    REQUIRE_THAT(run.failed[host++], Catch::Matchers::Contains(words));
  }
  REQUIRE((run.started.contains(host) || run.failed.at(host).starts_with("the agent ended right")));
}

TEST_CASE(
    "ssh_carrier: a program that is not there, or has no descriptor, is told with what to do") {
  Hosts hosts;
  Run run(hosts, 64, "no-ssh"), there(hosts);
  run.start(0, "a");
  there.start(0, "a");
  run.until(1);
  {
    const FewDescriptors few(6);  // its pipes
    there.carrier().turn(Clock::now());
  }
  REQUIRE_THAT(there.failed.at(0), Catch::Matchers::Contains("cannot run ") &&
                                       Catch::Matchers::EndsWith("(ulimit -n)"));
  REQUIRE_THAT(run.failed.at(0), Catch::Matchers::Contains("no-ssh: No such file or directory; "
                                                           "install it, or name one"));
  write_file(hosts / "script", "exec true\n");
  Run script(hosts, 64, "script");
  script.start(0, "a");
  script.until(1);
  REQUIRE_THAT(script.failed.at(0), Catch::Matchers::Contains("script: Exec format error; ") &&
                                        Catch::Matchers::EndsWith("a line as #!/bin/sh"));
}

// The judge is Hosts: it is not alone as long as a child is left, and sleeps here outlive any test.
TEST_CASE("ssh_carrier: whoever has not started is ended with it") {
  Hosts hosts;
  hosts.set("silent", "exec sleep 1000");
  hosts.set("ok", kAgent);
  Run run(hosts);
  for (int host = 0; host < 5; ++host) run.start(host, "silent");
  run.start(5, "ok");
  run.until(1);
  REQUIRE(run.started.contains(5));
}

TEST_CASE("ssh_carrier: at the end who was handed over goes too, with what it started") {
  Hosts hosts;
  hosts.set("a", std::string("(trap '' HUP; exec sleep 1000) & ") + kAgent);
  Run run(hosts);
  run.start(1, "a");
  run.until(1);
  run.carrier().end();
  // Open for as long as any of them lives.
  const int output = run.started.at(1).output.get();
  pollfd readable{output, POLLIN, 0};
  REQUIRE(poll(&readable, 1, Deadline::in(20s).poll_timeout_ms()) == 1);
  char byte = 0;
  CHECK(read(output, &byte, 1) == 0);
}

}  // namespace hvd
