// The command line of ssh that reaches a host.
//
// Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/slots.h"

namespace hvd {

struct SshOptions {
  std::string program = "ssh";         // --ssh-command: what takes ssh's options
  int port = 0;                        // -p; 0: what the user's configuration says
  std::string identity_file;           // -i; empty: what the user's configuration says
  std::vector<std::string> arguments;  // --ssh-arg, one word each; they win over ours but kKnown

  friend bool operator==(const SshOptions&, const SshOptions&) = default;
};

// Which host keys ssh takes: those that it knows, whatever it is told elsewhere; those that the
// user's configuration lets it take; new ones, which are kept. None that has changed by the first
// and the last: ssh itself ends then, so that nothing of what a host says can be taken for its
// words.
enum class HostKeys { kKnown, kUsers, kNew };

struct SshAttempt {
  HostKeys keys = HostKeys::kKnown;
  int connect_s = 0;        // to give up then, until the login; 0: when the system does
  bool is_old_ssh = false;  // one before 8.7, which knows no option of a session's
};

// The user's configuration, aliases, agent and jump hosts count; what would ask a question, share a
// connection or forward a port is switched off. `script` is one word for the login shell there.
std::vector<std::string> ssh_command(const SshOptions& options, const Host& host,
                                     const SshAttempt& attempt, std::string_view script);

// What is wrong with --ssh-arg's words, by ssh(1), and what to do: a flag with which ssh does not
// carry what hvdrun and its agent say to each other ("-n": no standard input, "-t": a terminal in
// between), or words that make it take another one for the host; empty: nothing is.
std::string objection_to_words(std::span<const std::string> arguments);

// The user's variables, which his proxies and `Match exec` may read, and that nothing asks him in a
// window: the ssh to a jump host hears nothing of BatchMode. OpenSSH heeds that from 8.4 on. Taking
// DISPLAY away would also keep earlier ones from it, but a key that wants to be touched says so
// there.
std::vector<std::string> ssh_environment(std::span<const std::string> users);

std::string with_user(const Host& host);  // "ann@gpu7", or "gpu7"
// What a user types to see for himself: "ssh -o ControlPath=none -p 2222 ann@gpu7 true".
std::string ssh_by_hand(const SshOptions& options, const Host& host);
// What he types to clean it: "hvdrun clean -H ann@gpu7 -p 2222".
std::string clean_by_hand(const SshOptions& options, const Host& host);

}  // namespace hvd
