// The command line of ssh, word by word.
#include "cli/ssh/ssh_command.h"

#include <algorithm>

#include "tests/support/catch.h"

namespace hvd {
namespace {

bool has(const std::vector<std::string>& words, std::initializer_list<std::string> wanted) {
  return std::ranges::search(words, wanted).begin() != words.end();
}

}  // namespace

TEST_CASE("ssh_command: a host's name and the script come last, behind the end of all options") {
  const auto words = ssh_command({}, {"gpu7", "", 4}, {}, "exec /bin/sh -c 'x'");
  REQUIRE(words.front() == "ssh");
  REQUIRE(words.size() > 3);
  REQUIRE(std::vector<std::string>(words.end() - 3, words.end()) ==
          std::vector<std::string>{"--", "gpu7", "exec /bin/sh -c 'x'"});
  for (const char* option : {"BatchMode=yes", "ClearAllForwardings=yes", "ControlMaster=no",
                             "ControlPath=none", "PermitLocalCommand=no", "RemoteCommand=none"})
    REQUIRE(has(words, {"-o", option}));
  REQUIRE(has(words, {"-T"}));
  REQUIRE_FALSE(has(words, {"-l"}));
  REQUIRE_FALSE(has(words, {"-p"}));
  REQUIRE_FALSE(has(words, {"-i"}));
}

TEST_CASE("ssh_command: what the configuration says of sessions is set right, where ssh knows it") {
  for (const char* option : {"StdinNull=no", "ForkAfterAuthentication=no", "SessionType=default"}) {
    REQUIRE(has(ssh_command({}, {"gpu7", "", 4}, {}, "x"), {"-o", option}));
    REQUIRE_FALSE(has(ssh_command({}, {"gpu7", "", 4}, {.is_old_ssh = true}, "x"), {option}));
  }
}

TEST_CASE("ssh_command: what the user chose is there, and his own words win over ours") {
  SshOptions options;
  options.program = "/opt/ssh";
  options.port = 2222;
  options.identity_file = "a key";
  options.arguments = {"-oServerAliveInterval=3", "-J", "gate"};
  const auto words = ssh_command(options, {"fd77::1", "ann", 1}, {}, "x");
  REQUIRE(words.front() == "/opt/ssh");
  REQUIRE(has(words, {"-p", "2222"}));
  REQUIRE(has(words, {"-i", "a key"}));
  REQUIRE(has(words, {"-l", "ann"}));
  REQUIRE(has(words, {"-oServerAliveInterval=3", "-J", "gate"}));
  const auto at = [&](const std::string& word) { return std::ranges::find(words, word); };
  REQUIRE(at("StrictHostKeyChecking=yes") < at("-oServerAliveInterval=3"));
  REQUIRE(at("-oServerAliveInterval=3") < at("ServerAliveInterval=15"));
  REQUIRE(*(words.end() - 2) == "fd77::1");
}

TEST_CASE("ssh_command: a new key is taken, and a time to connect set, by attempts that say so") {
  const auto all = [](const SshAttempt& attempt) {
    std::string text;
    for (const std::string& word : ssh_command({}, {"gpu7", "", 4}, attempt, "x"))
      text += word + " ";
    return text;
  };
  REQUIRE(all({}).find("ConnectTimeout") == std::string::npos);
  REQUIRE(all({.keys = HostKeys::kUsers}).find("StrictHostKeyChecking") == std::string::npos);
  REQUIRE(all({.keys = HostKeys::kNew}).find(" -o StrictHostKeyChecking=accept-new ") !=
          std::string::npos);
  REQUIRE(all({.connect_s = 7}).find(" -o ConnectTimeout=7 ") != std::string::npos);
}

TEST_CASE("ssh_command: words that keep hvdrun from its agent or name another host are found") {
  const auto found = [](const std::vector<std::string>& words) {
    const std::string objection = objection_to_words(words);
    return objection.substr(0, objection.find(": "));
  };
  CHECK(found({"-n"}) == "--ssh-arg=-n");
  CHECK(found({"-4vN"}) == "--ssh-arg=-N");
  CHECK(found({"-t"}) == "--ssh-arg=-t");
  CHECK(found({"-v", "-o", "-nonsense", "-p", "22", "-W", "a:1"}) == "--ssh-arg=-W");
  CHECK(found({"-oUser=n", "-lnN", "-Jt", "-C", "-4", "-F", "-N", "-p", "22", "-o", "--"}).empty());
  CHECK(found({"-v", "foo", "-4"}) == "--ssh-arg=foo");
  CHECK(found({"-p22", "23"}) == "--ssh-arg=23");
  CHECK(found({"-C", "-"}) == "--ssh-arg=-");
  CHECK(found({"--"}) == "--ssh-arg=--");
  CHECK(found({"-p", "--", "--"}) == "--ssh-arg=--");
  CHECK(found({"-4p"}) == "--ssh-arg=-4p");
  CHECK(found({"a b"}) == "--ssh-arg='a b'");
}

TEST_CASE("ssh_command: the user's variables are ssh's, and no window asks him") {
  const std::vector<std::string> users{"https_proxy=http://p:1", "DISPLAY=:0",
                                       "SSH_ASKPASS_REQUIRE=force"};
  REQUIRE(ssh_environment(users) == std::vector<std::string>{"https_proxy=http://p:1", "DISPLAY=:0",
                                                             "SSH_ASKPASS_REQUIRE=never"});
}

TEST_CASE("ssh_command: what a user types to see for himself") {
  REQUIRE(ssh_by_hand({}, {"gpu7", "", 1}) == "ssh -o ControlPath=none gpu7 true");
  SshOptions options;
  options.port = 2222;
  options.identity_file = "a key";
  options.arguments = {"-oUser=x"};
  REQUIRE(ssh_by_hand(options, {"gpu7", "ann", 1}) ==
          "ssh -oUser=x -o ControlPath=none -p 2222 -i 'a key' ann@gpu7 true");
}

TEST_CASE("ssh_command: what a user types to clean a host goes the same way") {
  REQUIRE(clean_by_hand({}, {"gpu7", "", 1}) == "hvdrun clean -H gpu7");
  REQUIRE(clean_by_hand({}, {"fd77::2", "ann", 1}) == "hvdrun clean -H 'ann@[fd77::2]'");
  SshOptions options;
  options.program = "/opt/my ssh";
  options.port = 2222;
  options.identity_file = "a key";
  options.arguments = {"-oUser=x", "-J", "door"};
  REQUIRE(clean_by_hand(options, {"gpu7", "ann", 1}) ==
          "hvdrun clean -H ann@gpu7 -p 2222 -i 'a key' --ssh-command '/opt/my ssh' "
          "--ssh-arg=-oUser=x --ssh-arg=-J --ssh-arg=door");
}

}  // namespace hvd
