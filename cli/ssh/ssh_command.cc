#include "cli/ssh/ssh_command.h"

#include <utility>

#include "cli/agent/worker_environment.h"
#include "cli/quoted.h"

namespace hvd {
namespace {

constexpr size_t kByHandBytesMax = 400;
constexpr size_t kCleanBytesMax = 4000;  // one that is cut off would not do what it says

void add_way(std::vector<std::string>& words, const SshOptions& options) {
  if (options.port != 0) words.insert(words.end(), {"-p", std::to_string(options.port)});
  if (!options.identity_file.empty()) words.insert(words.end(), {"-i", options.identity_file});
}

std::string with_user(const Host& host, const std::string& name) {
  return (host.user.empty() ? "" : host.user + "@") + name;
}

}  // namespace

std::string with_user(const Host& host) { return with_user(host, host.name); }

std::vector<std::string> ssh_command(const SshOptions& options, const Host& host,
                                     const SshAttempt& attempt, std::string_view script) {
  // No terminal, X11 or agent there: whoever owns that host could use them.
  std::vector<std::string> words{options.program, "-T", "-x", "-a"};
  if (attempt.keys == HostKeys::kKnown)
    words.insert(words.end(), {"-o", "StrictHostKeyChecking=yes"});
  // ssh goes by the first value it meets, so the user's come before ours.
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  for (const char* option : {
           "BatchMode=yes",            // there is nobody to answer
           "LogLevel=INFO",            // its words are all that tells why it failed
           "ClearAllForwardings=yes",  // a port that is taken would end it
           "ControlMaster=no",         // a shared connection would outlive us,
           "ControlPath=none",         // or end with somebody else's session
           "PermitLocalCommand=no",    //
           "RemoteCommand=none",       // ours is the one
           "ServerAliveInterval=15",   // a cut host is noticed even while nobody speaks
           "ServerAliveCountMax=4",
       }) {
    words.push_back("-o");
    words.push_back(option);
  }
  // A configuration made for tunnels may want no input, the background, no session.
  if (!attempt.is_old_ssh)
    for (const char* option : {"StdinNull=no", "ForkAfterAuthentication=no", "SessionType=default"})
      words.insert(words.end(), {"-o", option});
  if (attempt.keys == HostKeys::kNew)
    words.insert(words.end(), {"-o", "StrictHostKeyChecking=accept-new"});
  if (attempt.connect_s > 0)
    words.insert(words.end(), {"-o", "ConnectTimeout=" + std::to_string(attempt.connect_s)});
  add_way(words, options);
  if (!host.user.empty()) words.insert(words.end(), {"-l", host.user});
  words.push_back("--");
  words.push_back(host.name);
  words.emplace_back(script);
  return words;
}

std::vector<std::string> ssh_environment(std::span<const std::string> users) {
  return with_entries(users, {{"SSH_ASKPASS_REQUIRE=never"}});
}

std::string objection_to_words(std::span<const std::string> arguments) {
  constexpr std::string_view kWithValue = "BbcDEeFIiJLlmoPpRSw", kSilencing = "fGNnOQstVW";
  const auto object = [](std::string_view word, const char* why) {
    return "--ssh-arg=" + shell_word(word) + ": " + why;
  };
  bool is_value = false;
  for (const std::string& word : arguments) {
    if (std::exchange(is_value, false)) continue;
    if (word == "--")
      return object(word, "behind it ssh takes the next word for the host; leave it out");
    if (word.size() < 2 || word[0] != '-')
      return object(word,
                    "ssh takes a word that is no option, nor an option's value, for the host; "
                    "leave it out, or put it behind its option, as in --ssh-arg=-p --ssh-arg=22");
    for (size_t at = 1; at < word.size(); ++at) {
      if (kSilencing.find(word[at]) != kSilencing.npos)
        return object(std::string("-") + word[at],
                      "with it ssh does not carry what hvdrun and its agent say to each other; "
                      "leave it out");
      if (kWithValue.find(word[at]) == kWithValue.npos) continue;
      is_value = at + 1 == word.size();  // else it is the rest of this word
      break;
    }
  }
  return is_value ? object(arguments.back(),
                           "ssh takes the next word for its value; give that one by one more "
                           "--ssh-arg, as in --ssh-arg=-p --ssh-arg=22")
                  : "";
}

std::string ssh_by_hand(const SshOptions& options, const Host& host) {
  std::vector<std::string> words{options.program};
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  words.insert(words.end(), {"-o", "ControlPath=none"});  // an open connection may need no login
  add_way(words, options);
  words.push_back(with_user(host));
  words.emplace_back("true");
  return shell_words(words, kByHandBytesMax);
}

std::string clean_by_hand(const SshOptions& options, const Host& host) {
  const bool is_address = host.name.find(':') != host.name.npos;
  std::vector<std::string> words{"hvdrun", "clean", "-H",
                                 with_user(host, is_address ? "[" + host.name + "]" : host.name)};
  add_way(words, options);
  if (options.program != SshOptions{}.program)
    words.insert(words.end(), {"--ssh-command", options.program});
  for (const std::string& word : options.arguments) words.push_back("--ssh-arg=" + word);
  return shell_words(words, kCleanBytesMax);
}

}  // namespace hvd
