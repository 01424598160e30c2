// ssh's own words and ends, as OpenSSH 9.2 has them, and the sentence for each.
#include "cli/ssh/ssh_words.h"

#include "tests/support/catch.h"

namespace hvd {
namespace {

constexpr int exited(int code) { return code << 8; }

struct Row {
  const char* words;
  const char* printed;
  int code;
  const char* begin;  // of the reason
  const char* end;
  Retry retry;
};

constexpr Row kRows[] = {
    {"ssh: Could not resolve hostname nohost: Name or service not known\r\n", "", 255,
     "its name is not known here",
     "\"ssh: Could not resolve hostname nohost: Name or service not known\"", Retry::kWhenThere},
    {"ssh: connect to host h1 port 2: Connection refused\n", "", 255,
     "nothing listens on its ssh port", "Connection refused\"", Retry::kWhenThere},
    {"ssh: connect to host 192.0.2.1 port 22: Network is unreachable\n", "", 255,
     "there is no way to it", "unreachable\"", Retry::kWhenThere},
    {"ssh: connect to host 10.77.0.77 port 22: No route to host\n", "", 255,
     "there is no way to it", "No route to host\"", Retry::kWhenThere},
    {"ssh: connect to host h1 port 22: Connection timed out\n", "", 255, "it does not answer",
     "timed out\"", Retry::kWhenThere},
    {"Connection timed out during banner exchange\nConnection to 10.77.0.1 port 98 timed out\n", "",
     255, "it does not answer", "the words were \"Connection timed out during banner exchange\"",
     Retry::kWhenThere},
    {"stranger@h1: Permission denied (publickey).\n", "", 255, "it accepts none of your keys",
     "(publickey).\"", Retry::kNever},
    {"Warning: Identity file /nope not accessible: No such file or directory.\n"
     "stranger@h1: Permission denied (publickey).\n",
     "", 255, "ssh cannot read the private key", "No such file or directory.\"", Retry::kNever},
    {"@         WARNING: UNPROTECTED PRIVATE KEY FILE!          @\r\n"
     "Permissions 0644 for '/h/.ssh/id' are too open.\r\nThis private key will be ignored.\r\n"
     "ann@h1: Permission denied (publickey).\r\n",
     "", 255, "ssh refuses a private key that others can read",
     "\"Permissions 0644 for '/h/.ssh/id' are too open.\"", Retry::kNever},
    {"secret@h1: Permission denied (publickey,password).\n", "", 255, "it asks for a password",
     "(publickey,password).\"", Retry::kNever},
    {"ann@h1: Permission denied (publickey,gssapi-with-mic,keyboard-interactive).\n", "", 255,
     "it asks for a password", "keyboard-interactive).\"", Retry::kNever},
    {"password@h1: Permission denied (publickey,gssapi-keyex,gssapi-with-mic).\npassword\n", "",
     255, "it accepts none of your keys", "gssapi-with-mic).\"", Retry::kNever},
    {"@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\n"
     "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
     "IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\n"
     "Host key for h1 has changed and you have requested strict checking.\n"
     "Host key verification failed.\n",
     "", 255, "its host key is not the one that it had before", "HAS CHANGED!     @\"",
     Retry::kNever},
    {"No ED25519 host key is known for h1 and you have requested strict checking.\n"
     "Host key verification failed.\n",
     "", 255, "its host key is not in known_hosts", "requested strict checking.\"", Retry::kNever},
    {"kex_exchange_identification: Connection closed by remote host\n"
     "Connection closed by fd77::2 port 22\n",
     "", 255, "its sshd closed the connection before the login",
     "Connection closed by remote host\"", Retry::kSoon},
    {"/h/.ssh/config line 3: Deprecated option \"useroaming\"\r\n"
     "kex_exchange_identification: Connection closed by remote host\r\n"
     "Connection closed by 10.77.0.1 port 22\r\n",
     "", 255, "its sshd closed the connection before the login",
     "the words were \"kex_exchange_identification: Connection closed by remote host\"",
     Retry::kSoon},
    {"kex_exchange_identification: read: Connection reset by peer\nConnection reset by 10.77.0.1 "
     "port 22\n",
     "", 255, "its sshd closed the connection before the login", "reset by peer\"", Retry::kSoon},
    {"ssh: Could not resolve hostname h1: Temporary failure in name resolution\r\n", "", 255,
     "its name could not be looked up, since no name server answered", "in name resolution\"",
     Retry::kSometimes},
    {"a@h1: Permission denied (publickey).\r\n", "", 255, "it accepts none of your keys: ",
     "start ssh-agent and add it (ssh-add); the words were \"a@h1: Permission denied "
     "(publickey).\"",
     Retry::kNever},
    {"client_loop: send disconnect: Broken pipe\n", "", 255, "the connection broke",
     "Broken pipe\"", Retry::kSometimes},
    {"Connection closed by 10.77.0.1 port 22\n", "", 255, "it closed the connection", "port 22\"",
     Retry::kSometimes},
    {"Connection to h1 closed by remote host.\n", "", 255, "it closed the connection",
     "remote host.\"", Retry::kSometimes},
    {"Connection reset by 10.77.0.1 port 22\n", "", 255, "the connection was reset", "port 22\"",
     Retry::kSoon},
    {"banner exchange: Connection to 10.77.0.1 port 22: invalid format\n", "", 255,
     "its ssh port is served by something that is no sshd", "invalid format\"", Retry::kSometimes},
    // As ssh had it before 8.0.
    {"ssh_exchange_identification: Connection closed by remote host\n", "", 255,
     "its sshd closed the connection before the login", "by remote host\"", Retry::kSoon},
    {"Timeout, server h1 not responding.\n", "", 255, "it stopped answering", "responding.\"",
     Retry::kNever},
    {"command-line: line 0: Bad configuration option: nosuch\n", "", 255,
     "ssh does not understand its configuration", "nosuch\"", Retry::kNever},
    {"Unable to negotiate with fd77::1 port 22: no matching key exchange method found. Their "
     "offer: a\n",
     "", 255, "its sshd and this ssh have no method in common", "Their offer: a\"", Retry::kNever},
    {"ssh: connect to host h1 port 2: Connection refused\nkex_exchange_identification: Connection "
     "closed by remote host\nConnection closed by UNKNOWN port 65535\n",
     "", 255, "nothing listens on its ssh port",
     "\"ssh: connect to host h1 port 2: Connection refused\", of the host or of what leads to it "
     "(its "
     "jump host, a proxy)",
     Retry::kWhenThere},
    {"Warning: Permanently added 'h1' (ED25519) to the list of known hosts.\nno ticket, no tunnel\n"
     "kex_exchange_identification: Connection closed by remote host\n"
     "Connection closed by UNKNOWN port 65535\n",
     "", 255, "what leads to it (ProxyCommand or ProxyJump",
     "\"no ticket, no tunnel\", of the host or of what leads to it (its jump host, a proxy)",
     Retry::kSometimes},
    {"/bin/sh: 1: exec: nosuchproxy: not found\n"
     "kex_exchange_identification: Connection closed by remote host\n"
     "Connection closed by UNKNOWN port 65535\n",
     "", 255, "what leads to it (ProxyCommand or ProxyJump",
     "\"/bin/sh: 1: exec: nosuchproxy: not found\", of the host or of what leads to it (its jump "
     "host, a proxy)",
     Retry::kSometimes},
    {"jumphost loop via h3\r\nkex_exchange_identification: Connection closed by remote host\r\n"
     "Connection closed by UNKNOWN port 65535\r\n",
     "", 255, "what leads to it (ProxyCommand or ProxyJump",
     "\"jumphost loop via h3\", of the host or of what leads to it (its jump host, a proxy)",
     Retry::kSometimes},
    {"kex_exchange_identification: Connection closed by remote host\r\n"
     "Connection closed by UNKNOWN port 65535\r\n",
     "", 255, "what leads to it (ProxyCommand or ProxyJump",
     "\"kex_exchange_identification: Connection closed by remote host\", of the host or of what "
     "leads to it (its jump host, a proxy)",
     Retry::kSometimes},
    {"no way\r\nbanner exchange: Connection to UNKNOWN port 65535: Broken pipe\r\n", "", 255,
     "what leads to it (ProxyCommand or ProxyJump",
     "\"no way\", of the host or of what leads to it (its jump host, a proxy)", Retry::kSometimes},
    // A jump host drops us: its ssh's words come first.
    {"kex_exchange_identification: Connection closed by remote host\r\n"
     "Connection closed by 10.77.0.2 port 22\r\n"
     "banner exchange: Connection to UNKNOWN port 65535: Broken pipe\r\n",
     "", 255, "its sshd closed the connection before the login",
     ", of the host or of what leads to it (its jump host, a proxy)", Retry::kSoon},
    {"kex_exchange_identification: Connection closed by remote host\r\n"
     "Connection closed by 10.77.0.2 port 22\r\n"
     "kex_exchange_identification: Connection closed by remote host\r\n"
     "Connection closed by UNKNOWN port 65535\r\n",
     "", 255, "its sshd closed the connection before the login",
     ", of the host or of what leads to it (its jump host, a proxy)", Retry::kSoon},
    {"Connection reset by 10.77.0.2 port 22\r\n"
     "kex_exchange_identification: Connection closed by remote host\r\n"
     "Connection closed by UNKNOWN port 65535\r\n",
     "", 255, "its sshd closed the connection before the login",
     "\"Connection reset by 10.77.0.2 port 22\", of the host or of what leads to it (its jump "
     "host, "
     "a proxy)",
     Retry::kSoon},
    {"channel 0: open failed: connect failed: Name or service not known\nstdio forwarding failed\n"
     "kex_exchange_identification: Connection closed by remote host\n",
     "", 255, "its jump host cannot connect to it", "Name or service not known\"",
     Retry::kWhenThere},
    {"", "This account is currently not available.\n", 1, "the user there may not run commands",
     "not available.\"", Retry::kNever},
    {"bash: line 1: /bin/sh: No such file or directory\n", "", 127, "it has no /bin/sh",
     "directory\"", Retry::kNever},
    {"/bin/sh: 1: echo: echo: I/O error\n", "", 1, "its shell cannot write to its standard output",
     "I/O error\"", Retry::kNever},
    {"/bin/sh: 1: exec: /tmp/x: Exec format error\n", "", 126,
     "the agent is for another kind of processor", "error\"", Retry::kNever},
    {"", "", 255, "ssh failed; it said nothing: does a start file of the login shell kill it",
     "(LogLevel)?", Retry::kNever},
    {"Warning: Permanently added 'h1' (ED25519) to the list of known hosts.\r\n", "bye\n", 3,
     "its login shell ended with exit code 3; the last words were \"bye\": is it a shell",
     "start files end it?", Retry::kNever},
    {"Killed\n** WARNING: connection is not using a post-quantum key exchange algorithm.\n"
     "** This session may be vulnerable to \"store now, decrypt later\" attacks.\n",
     "", 255, "ssh failed", "\"Killed\"", Retry::kNever},
    {"Warning: Permanently added 'h1' (ED25519) to the list of known hosts.\n", "", 3,
     "its login shell ended with exit code 3; it said nothing: is it a shell", "end it?",
     Retry::kNever},
    // A start file says them, and ends the shell: ssh had reached it.
    {"sync: Connection reset by peer\n", "", 3,
     "its login shell ended with exit code 3; the last words were \"sync: Connection reset by "
     "peer\"",
     "end it?", Retry::kNever},
    {"Error: Permission denied (os error 13)\n", "", 1,
     "its login shell ended with exit code 1; the last words were \"Error: Permission denied (os "
     "error 13)\"",
     "end it?", Retry::kNever},
    {"redis: Connection refused\n", "", 0,
     "its login shell ended without running what it was given; the last words were \"redis: ",
     "end it?", Retry::kNever},
    // What is wrong with a configuration is said before how ssh ends by it.
    {"/h/.ssh/config line 2: no argument after keyword \"port\"\r\n"
     "/h/.ssh/config: terminating, 1 bad configuration options\r\n",
     "", 255, "ssh does not understand its configuration",
     "the words were \"/h/.ssh/config line 2: no argument after keyword \"port\"\"", Retry::kNever},
    {"/h/.ssh/config: line 2: Bad configuration option: nonsense\r\n"
     "/h/.ssh/config: terminating, 1 bad configuration options\r\n",
     "", 255, "ssh does not understand its configuration", "option: nonsense\"", Retry::kNever},
    {"bind 203.0.113.1: Cannot assign requested address\r\n"
     "ssh: connect to host h1 port 22: failure\r\n",
     "", 255, "ssh cannot begin a connection as its configuration wants it",
     "\"bind 203.0.113.1: Cannot assign requested address\"", Retry::kNever},
    {"ssh: connect to host h1 port 22: failure\r\n", "", 255,
     "ssh cannot begin a connection as its configuration wants it", "port 22: failure\"",
     Retry::kNever},
    // Words of a banner that look like ssh's own.
    {"NOTICE: failure to comply is logged\r\nWarning: terminating, all sessions at 8 pm\r\nodd\r\n",
     "", 255, "ssh failed", "odd\"", Retry::kNever},
    {"", "mount: Connection timed out\n", 255, "ssh failed", "timed out\"", Retry::kNever},
    {"client_loop: send disconnect: Broken pipe\n", "mount: No route to host\n", 255,
     "the connection broke", "Broken pipe\"", Retry::kSometimes},
    {"", "hello\n\n", 0,
     "its login shell ended without running what it was given; the last words were \"hello\"",
     "end it?", Retry::kNever},
};

}  // namespace

TEST_CASE("ssh_words: each end has a sentence that says what to do, and whether to try again") {
  for (const Row& row : kRows) {
    const SshFailure failure = explain_ssh(row.words, row.printed, exited(row.code), "ssh", false);
    CAPTURE(row.words, failure.reason);
    REQUIRE(failure.reason.starts_with(row.begin));
    REQUIRE(failure.reason.ends_with(row.end));
    REQUIRE(failure.retry == row.retry);
    REQUIRE(failure.reason.find('\n') == std::string::npos);
  }
  REQUIRE(explain_ssh("", "", 9, "/opt/ssh", false).reason ==
          "/opt/ssh was ended by signal 9; it said nothing");
}

TEST_CASE("ssh_words: what is not known is to be tried by hand, and no question misleads") {
  const auto explained = [](const char* words, int code, const char* program, bool heard) {
    return explain_ssh(words, "", exited(code), program, heard);
  };
  CHECK(explained("", 1, "ssh", false).is_riddle);
  CHECK_FALSE(explained("h1: Permission denied (publickey).\n", 255, "ssh", false).is_riddle);
  CHECK(explained("", 1, "ssh", true).reason ==
        "its login shell ended with exit code 1; it said nothing");
  CHECK(explained("", 1, "false", false).reason == "false ended with exit code 1; it said nothing");
}

TEST_CASE("ssh_words: another program's codes are its own until somebody there has spoken") {
  const auto retry = [](const char* printed, const char* program, bool heard) {
    return explain_ssh("x: Connection refused\n", printed, exited(1), program, heard).retry;
  };
  CHECK(retry("", "wrap", false) == Retry::kWhenThere);
  CHECK(retry("", "/opt/ssh/wrap", false) == Retry::kWhenThere);
  CHECK(retry("", "wrap", true) == Retry::kNever);
  CHECK(retry("hello\n", "wrap", false) == Retry::kNever);
  CHECK(retry("", "ssh", false) == Retry::kNever);
  CHECK(retry("", "/opt/ssh", false) == Retry::kNever);
}

TEST_CASE("ssh_words: a hostile host's words come out printable and short") {
  REQUIRE(last_words("a\n\x1b]0;x\x07\n \r\n\n") == "\"\\x1b]0;x\\x07\"");
  REQUIRE(last_words("\n\n").empty());
  REQUIRE(last_words("").empty());
  REQUIRE(last_words(std::string(100'000, 'x')).size() < 300);
  REQUIRE(reasons_in("mkdir: cannot create directory '/x': Read-only file system\n"
                     "sh: 1: cannot create /y: Permission denied\n"
                     "sh: 1: cannot create /z: Permission denied\n") ==
          "Read-only file system, Permission denied");
  REQUIRE(reasons_in("all well").empty());
}

TEST_CASE("ssh_words: a key that was never seen is told from one that is refused or changed") {
  constexpr const char* kFailed = "Host key verification failed.\r\n";
  const std::string strict =
      "No ED25519 host key is known for h1 and you have requested strict checking.\r\n";
  const std::string changed = "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n";
  const std::string revoked = "@       WARNING: REVOKED HOST KEY DETECTED!               @\r\n";
  for (const std::string& words : {std::string(kFailed), strict + kFailed})
    REQUIRE(is_new_host_key(words));
  for (const std::string& other : {changed, revoked})
    REQUIRE_FALSE(is_new_host_key(other + kFailed));
  REQUIRE_FALSE(is_new_host_key("h1: Permission denied (publickey)."));
  REQUIRE(wants_known_key(strict));
  REQUIRE_FALSE(wants_known_key(kFailed));
  const auto reason = [](const std::string& words, const char* printed, bool heard) {
    return explain_ssh(words, printed, exited(255), "ssh", heard).reason;
  };
  CHECK(reason(changed, "", false).starts_with("its host key is not the one that it had before"));
  CHECK(reason(revoked, "", false).starts_with("its host key is revoked"));
  // A start file's, which ssh had let in.
  for (const std::string& words : {changed, revoked, strict, std::string(kFailed)}) {
    CHECK(reason(words, "hello\n", false).starts_with("ssh failed"));
    CHECK(reason(words + "client_loop: send disconnect: Broken pipe\n", "", true)
              .starts_with("the connection broke"));
  }
}

TEST_CASE("ssh_words: host keys that ssh keeps from now on are told, some of many by name") {
  const std::string words =
      "Warning: Permanently added 'jump' (ED25519) to the list of known hosts.\r\n"
      "a banner\nWarning: Permanently added '[10.0.0.1]:2\x1b[2J' (RSA) to the list of known "
      "hosts.\n";
  CHECK(new_host_keys(words, "h1") ==
        std::vector<std::string>{"'jump' (ED25519)", "'[10.0.0.1]:2?[2J' (RSA)"});
  CHECK(new_host_keys("Warning: Permanently added\nPermission denied", "h1").empty());
  CHECK(new_host_keys("Failed to add the host to the list of known hosts (/proc/none)."
                      "\r\nanything",
                      "h1") ==
        std::vector<std::string>{"h1, or whom it is reached by, whose key cannot be kept "
                                 "(/proc/none), so that any is taken the next time, "
                                 "too"});
  CHECK(
      new_host_keys("Warning: Permanently added the RSA host key for IP address '10.0.0.1' to the "
                    "list of known hosts.\n",
                    "h1")
          .empty());
  CHECK(
      new_keys_line({"'a' (RSA)", "'b' (RSA)"}) ==
      "ssh had no host key to compare with, and took what it was shown, from 'a' (RSA), 'b' (RSA)");
  const std::string many = new_keys_line(std::vector<std::string>(33, "'a' (RSA)"));
  CHECK(many.ends_with("'a' (RSA) and 13 more"));
}

}  // namespace hvd
