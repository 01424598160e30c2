#include "cli/ssh/ssh_words.h"

#include <sys/wait.h>

#include <algorithm>

#include "cli/quoted.h"

namespace hvd {
namespace {

struct Known {
  std::string_view words;
  std::string_view reason;
  Retry retry = Retry::kNever;
  bool bad_key = false;
  bool of_host = false;         // what runs there says it: the connection is well
  std::string_view offer = {};  // a way to log in that is named in the brackets behind `words`
};

constexpr std::string_view kWantsPassword =
    "it asks for a password, and hvdrun never does: put your key into ~/.ssh/authorized_keys "
    "there (ssh-copy-id HOST), or start ssh-agent if your key has a passphrase";
// What ssh calls the other end where it talks to a jump host's ssh or another proxy.
constexpr std::string_view kProxied = "UNKNOWN port 65535";
constexpr std::string_view kStrict = "you have requested strict checking";
constexpr std::string_view kUnverified = "Host key verification failed";
// What led to these has been said before: to the first by the jump host, to the last by a proxy,
// if there is one.
constexpr std::string_view kNotForwarded = "stdio forwarding failed";
constexpr std::string_view kBadConfiguration = " bad configuration options",
                           kNoSocket = ": failure\r";
constexpr std::string_view kClosedEarly = "kex_exchange_identification";
// The same, seen by who writes first.
constexpr std::string_view kClosedAtOnce =
    "banner exchange: Connection to UNKNOWN port 65535: Broken pipe";
constexpr std::string_view kNoOutput =  // as dash says it, and bash
    "its shell cannot write to its standard output: does a start file of the login shell leave it "
    "too few open files (ulimit -n)?";
constexpr std::string_view kProxyEnded =
    "what leads to it (ProxyCommand or ProxyJump in ~/.ssh/config, or --ssh-arg) ended before the "
    "login: correct it";

// The first that is found counts: what is nearer to the cause comes first. A refusal stays one.
constexpr Known kKnown[] = {
    {"Temporary failure in name resolution",
     "its name could not be looked up, since no name server answered: is this machine's network "
     "up, and the server in /etc/resolv.conf right? Or give the host an address in /etc/hosts or "
     "~/.ssh/config",
     Retry::kSometimes},
    {"Could not resolve hostname",
     "its name is not known here: correct it, or give it an address in /etc/hosts or "
     "~/.ssh/config",
     Retry::kWhenThere},
    {"REMOTE HOST IDENTIFICATION HAS CHANGED",
     "its host key is not the one that it had before: if that is right, as after it was set up "
     "anew, remove the old one by ssh-keygen -R HOST",
     Retry::kNever, true},
    {"DNS SPOOFING",
     "its host key is not the one that it had before: if that is right, remove the old one by "
     "ssh-keygen -R HOST",
     Retry::kNever, true},
    {"REVOKED HOST KEY", "its host key is revoked", Retry::kNever, true},
    {kStrict,
     "its host key is not in known_hosts, and your ssh is told to take no new one "
     "(StrictHostKeyChecking): add it there once you trust it, by ssh-keyscan say"},
    {kUnverified,
     "its host key is not in known_hosts, or a jump host's is not: log in once by hand"},
    {kNotForwarded,
     "its jump host cannot connect to it: is the name right, and known on the jump host?",
     Retry::kWhenThere},
    {"not accessible: No such file",
     "ssh cannot read the private key that it was told to use: correct -i"},
    {" are too open", "ssh refuses a private key that others can read: chmod 600 that file"},
    {"Permission denied (", kWantsPassword, Retry::kNever, false, false, "password"},
    {"Permission denied (", kWantsPassword, Retry::kNever, false, false, "keyboard-interactive"},
    {"Permission denied (",
     "it accepts none of your keys: put one into ~/.ssh/authorized_keys there "
     "(ssh-copy-id HOST), or name the right one by -i, or the right user by -H user@host; if yours "
     "has a passphrase, start ssh-agent and add it (ssh-add)"},
    {"Too many authentication failures",
     "it gave up before the right key was tried: name it by -i, with "
     "--ssh-arg=-oIdentitiesOnly=yes"},
    {"Connection refused",
     "nothing listens on its ssh port: start sshd there, or give the right port by -p",
     Retry::kWhenThere},
    {"No route to host",
     "there is no way to it: is it switched on, and on a network that this machine reaches?",
     Retry::kWhenThere},
    {"Network is unreachable",
     "there is no way to it: is it on a network that this machine reaches?", Retry::kWhenThere},
    {"Connection timed out",
     "it does not answer: is it switched on, and does a firewall drop what goes to its ssh port?",
     Retry::kWhenThere},
    {"Operation timed out",
     "it does not answer: is it switched on, and does a firewall drop what goes to its ssh port?",
     Retry::kWhenThere},
    {"Exceeded MaxStartups", "its sshd has too many logins at once (MaxStartups)", Retry::kSoon},
    {"Not allowed at this time", "its sshd has too many logins at once (MaxStartups)",
     Retry::kSoon},
    {kClosedEarly, "its sshd closed the connection before the login (MaxStartups?)", Retry::kSoon},
    {"ssh_exchange_identification",  // before 8.0
     "its sshd closed the connection before the login (MaxStartups?)", Retry::kSoon},
    {kClosedAtOnce, "its sshd closed the connection before the login (MaxStartups?)", Retry::kSoon},
    {"banner exchange", "its ssh port is served by something that is no sshd, or gave up",
     Retry::kSometimes},
    {"Unable to negotiate", "its sshd and this ssh have no method in common: update the older one"},
    {"Bad configuration option", "ssh does not understand its configuration: correct the file"},
    {kBadConfiguration, "ssh does not understand its configuration: correct the file"},
    {"Bad owner or permissions", "ssh does not trust its configuration: chmod 600 that file"},
    {"This account is currently not available",
     "the user there may not run commands: give another by -H user@host", Retry::kNever, false,
     true},
    {"/bin/sh: No such file", "it has no /bin/sh, without which nothing can be started there",
     Retry::kNever, false, true},
    {"Exec format error", "the agent is for another kind of processor", Retry::kNever, false, true},
    {"cannot execute binary file", "the agent is for another kind of processor", Retry::kNever,
     false, true},
    {"echo: I/O error", kNoOutput, Retry::kNever, false, true},
    {"echo: write error: Bad file descriptor", kNoOutput, Retry::kNever, false, true},
    {"Timeout, server", "it stopped answering"},
    {"Connection reset", "the connection was reset", Retry::kSoon},
    {"Connection closed by", "it closed the connection", Retry::kSometimes},  // an account, say
    {"closed by remote host", "it closed the connection", Retry::kSometimes},
    {"Broken pipe", "the connection broke", Retry::kSometimes},
    {kNoSocket,
     "ssh cannot begin a connection as its configuration wants it: correct that (BindAddress and "
     "BindInterface in ~/.ssh/config, -b and -B of --ssh-arg)"},
};

// What ssh says of itself on a good day too: that it learnt a host's key, what it thinks of the key
// exchange (OpenSSH 10.1 on). Never the words that tell why it failed.
constexpr std::string_view kNewKey = "Warning: Permanently added ";
constexpr std::string_view kNotKept = "Failed to add the host to the list of known hosts";
constexpr std::string_view kNotices[] = {kNewKey, kNotKept, "** "};

constexpr size_t kLineBytes = 200;
constexpr size_t kKeysShown = 20;

// Where it begins in the words; npos: nowhere.
size_t place_of(const Known& one, std::string_view words) {
  const size_t at = words.find(one.words);
  if (at == words.npos || one.offer.empty()) return at;
  const std::string_view brackets = words.substr(at, words.find(')', at) - at);
  return brackets.find(one.offer) == brackets.npos ? words.npos : at;
}

// Of a host's key: ssh says it before it logs in, or never.
bool is_of_key(const Known& one) {
  return one.bad_key || one.words == kStrict || one.words == kUnverified;
}

bool is_closed_early(const Known& one) {
  return one.words == kClosedEarly || one.words == kClosedAtOnce;
}

bool is_space(char letter) { return letter == ' ' || letter == '\t' || letter == '\r'; }

bool is_notice(std::string_view line) {
  return std::ranges::any_of(kNotices, [&](std::string_view one) { return line.starts_with(one); });
}

std::string_view file_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);  // npos + 1: all of it
}

// `who` may be its login shell; `said` is what it said last, if anything.
std::string ending(int wait_status, const std::string& who, std::string_view program,
                   const std::string& said, bool asks) {
  const std::string words = said.empty() ? "; it said nothing" : "; the last words were " + said;
  if (WIFSIGNALED(wait_status))
    return std::string(program) + " was ended by signal " + std::to_string(WTERMSIG(wait_status)) +
           words;
  const int code = WEXITSTATUS(wait_status);
  if (code == kExitSshFailed)
    return std::string(program) + " failed" + words +
           (asks && said.empty() ? ": does a start file of the login shell kill it, or is ssh told "
                                   "to be silent (LogLevel)?"
                                 : "");
  const std::string how = code == 0 ? " ended without running what it was given"
                                    : " ended with exit code " + std::to_string(code);
  return who + how + words +
         (asks ? ": is it a shell that runs commands, and does none of its start files end it?"
               : "");
}

}  // namespace

std::string last_words(std::string_view words) {
  while (!words.empty()) {
    const size_t end = words.find_last_not_of("\r\n");
    if (end == std::string_view::npos) return "";
    words = words.substr(0, end + 1);
    const size_t line = words.rfind('\n');
    std::string_view last = words.substr(line + 1);  // npos + 1: all of it
    while (!last.empty() && is_space(last.front())) last.remove_prefix(1);
    while (!last.empty() && is_space(last.back())) last.remove_suffix(1);
    if (!last.empty() && !is_notice(last)) return in_quotes(last, kLineBytes);
    words = words.substr(0, line + 1);
  }
  return "";
}

std::string reasons_in(std::string_view words) {
  std::string found;
  for (const std::string_view reason :
       {"No space left on device", "Disk quota exceeded", "Read-only file system",
        "Permission denied", "Input/output error", "not found"})
    if (words.find(reason) != std::string_view::npos)
      found.append(found.empty() ? "" : ", ").append(reason);
  return found;
}

bool is_new_host_key(std::string_view words) {
  return words.find(kUnverified) != words.npos &&
         std::ranges::none_of(kKnown, [&](const Known& one) {
           return one.bad_key && words.find(one.words) != words.npos;
         });
}

std::vector<std::string> new_host_keys(std::string_view words, const std::string& host) {
  std::vector<std::string> keys;
  while (!words.empty()) {
    const std::string_view line = words.substr(0, words.find('\n'));
    words.remove_prefix(std::min(words.size(), line.size() + 1));
    if (line.starts_with(kNotKept) && line.find(')') != line.npos) {  // "… (FILE)."
      const std::string_view where = line.substr(kNotKept.size(), kLineBytes);
      keys.push_back(host + ", or whom it is reached by, whose key cannot be kept" +
                     printable(where.substr(0, where.find_last_of(')') + 1)) +
                     ", so that any is taken the next time, too");
    }
    if (!line.starts_with(kNewKey)) continue;
    // Else it is the address of a host whose key was known: "the ED25519 host key for IP address".
    const std::string_view key = line.substr(kNewKey.size());
    const size_t end = key.find(" to the list of known hosts");
    if (key.starts_with('\'') && end != key.npos)
      keys.push_back(printable(key.substr(0, std::min(end, kLineBytes))));
  }
  return keys;
}

std::string new_keys_line(const std::vector<std::string>& keys) {
  const size_t shown = std::min(keys.size(), kKeysShown);
  std::string line = "ssh had no host key to compare with, and took what it was shown, from ";
  for (size_t i = 0; i < shown; ++i) line += (i > 0 ? ", " : "") + keys[i];
  return shown == keys.size() ? line
                              : line + " and " + std::to_string(keys.size() - shown) + " more";
}

bool wants_known_key(std::string_view words) { return words.find(kStrict) != words.npos; }

// IgnoreUnknown would say it in advance, but take the user's own out of force.
bool is_old_ssh(std::string_view words) {
  constexpr std::string_view kUnknown[] = {"Bad configuration option: stdinnull",
                                           "Bad configuration option: forkafterauthentication",
                                           "Bad configuration option: sessiontype"};
  return std::ranges::any_of(kUnknown,
                             [&](std::string_view one) { return words.find(one) != words.npos; });
}

namespace {

// The line that tells it, in quotes, and whom it may be about.
std::string telling(const Known& one, std::string_view words) {
  const size_t at = place_of(one, words);
  const bool proxied = words.find(kProxied) != words.npos;
  std::string line;
  if (one.words == kNotForwarded || one.words == kBadConfiguration || one.words == kNoSocket ||
      (is_closed_early(one) && proxied))
    line = last_words(words.substr(0, words.rfind('\n', at) + 1));  // npos + 1: nothing
  if (line.empty()) line = last_words(words.substr(0, words.find('\n', at)));
  return line + (proxied ? ", of the host or of what leads to it (its jump host, a proxy)" : "");
}

// Whether a proxy ended before the login. But one that is ssh itself may have been dropped by a
// busy jump host, and then has said so before; a host that drops what came through says nothing.
bool proxy_ended(std::string_view words) {
  size_t at = 0;
  for (const std::string_view closed : {kClosedEarly, kClosedAtOnce})
    if (const size_t last = words.rfind(closed); last != words.npos) at = std::max(at, last);
  const std::string_view before = words.substr(0, at);
  return words.find(kProxied, at) != words.npos &&
         std::ranges::none_of(kKnown, [&](const Known& one) {
           return one.retry == Retry::kSoon && place_of(one, before) != before.npos;
         });
}

}  // namespace

SshFailure explain_ssh(std::string_view words, std::string_view printed, int wait_status,
                       std::string_view program, bool heard) {
  // What a login shell ended with, ssh passes on: it had no trouble itself, and words like its own
  // are a start file's. On its standard output it says nothing at all. Another program may have
  // codes of its own for that, until somebody there has spoken.
  const bool reached = heard || !printed.empty() || file_name(program) == "ssh";
  const bool ended_there =
      reached && WIFEXITED(wait_status) && WEXITSTATUS(wait_status) != kExitSshFailed;
  const bool logged_in = heard || !printed.empty();
  for (const Known& one : kKnown) {
    if (logged_in && is_of_key(one)) continue;
    const bool is_printed = one.of_host && place_of(one, printed) != printed.npos;
    if (!is_printed && ((ended_there && !one.of_host) || place_of(one, words) == words.npos))
      continue;
    const std::string said = "; the words were " + telling(one, is_printed ? printed : words);
    if (is_closed_early(one) && proxy_ended(words))
      return {std::string(kProxyEnded) + said, Retry::kSometimes, true};
    return {std::string(one.reason) + said, one.retry, !one.of_host};
  }
  std::string last = last_words(words);
  if (last.empty()) last = last_words(printed);
  const std::string who = reached ? "its login shell" : std::string(program);
  return {ending(wait_status, who, program, last, reached && !heard), Retry::kNever, false, true};
}

}  // namespace hvd
