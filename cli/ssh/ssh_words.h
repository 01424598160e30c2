// What ssh said and how it ended, in one sentence that says what to do.
//
// Pure. The words are those of OpenSSH's programs and of the shells there, which speak English
// whatever the locale; what is not known is passed on as it came.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hvd {

inline constexpr int kExitSshFailed =
    255;  // its exit code when it is not that of what it ran there

enum class Retry {
  kNever,
  kWhenThere,  // the host may be up later, for those who wait for it
  kSometimes,  // may be a busy host, but more likely never works: for a moment, and as above
  kSoon,       // a busy host: the same may well work in a moment
};

struct SshFailure {
  std::string reason;  // no host in it: the caller says which
  Retry retry = Retry::kNever;
  bool of_ssh = false;  // it says so itself; else what was started there ended, as far as is known
  bool is_riddle = false;  // nothing that is known: to be tried by hand

  friend bool operator==(const SshFailure&, const SshFailure&) = default;
};

// `words` is its standard error, `printed` what came on its standard output, `wait_status` as
// waitpid() has it; `program` is what was run, and `heard` whether what it was to start there
// spoke.
SshFailure explain_ssh(std::string_view words, std::string_view printed, int wait_status,
                       std::string_view program, bool heard);

// Whether ssh, which may not ask, ended for a key that it has never seen.
bool is_new_host_key(std::string_view words);
// Whether it did since it is told to take no new one.
bool wants_known_key(std::string_view words);
// Whether ssh ended for an option of ours that it came to know with 8.7: SshAttempt::is_old_ssh.
bool is_old_ssh(std::string_view words);
// The host keys that ssh knew nothing to compare with, and took, as it says it: "'h1' (ED25519)".
// Of one that it could not keep it does not say whose it is; `host` is whom it was to reach.
std::vector<std::string> new_host_keys(std::string_view words, const std::string& host);
// What the user is told of them: some by name.
std::string new_keys_line(const std::vector<std::string>& keys);
// Why files could not be written there, each once: "No space left on device, Permission denied".
std::string reasons_in(std::string_view words);

// The last line with anything in it but a notice that ssh gives on a good day too, shortened and
// printable, in quotes; "" where there is none.
std::string last_words(std::string_view words);

}  // namespace hvd
