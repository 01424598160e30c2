#include "cli/settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "cli/after_cd.h"
#include "cli/environment_settings.h"
#include "cli/interfaces.h"
#include "cli/quoted.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

constexpr int kRanksMax = 1'000'000;
constexpr int kJobSecondsMax = 100'000'000;  // three years
constexpr int kSecondsMax = 1'000'000;       // of anything shorter; its milliseconds fit an int
constexpr int kStallSecondsMax = 365 * 24 * 3600;  // libhvd takes no more

[[noreturn]] void refuse(std::string_view source, const std::string& takes,
                         std::string_view value) {
  throw Error(ErrorCode::kInvalidArgument,
              std::string(source) + " takes " + takes + ", not " + in_quotes(value));
}

std::optional<long long> whole_number(std::string_view text) {
  long long number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

int read_integer(std::string_view source, std::string_view value, int least, int most) {
  const std::optional<long long> number = whole_number(value);
  if (!number || *number < least || *number > most) {
    refuse(source, "a whole number from " + std::to_string(least) + " to " + std::to_string(most),
           value);
  }
  return static_cast<int>(*number);
}

// Elsewhere - stands for a stream, and whoever writes it means that.
std::string read_file_name(std::string_view source, std::string_view value, const char* stream) {
  if (value == "-")
    refuse(source, std::string("a file (") + stream + " is one, and ./- one of that name)", value);
  return std::string(value);
}

enum class Zero { kAllowed, kRefused };

std::chrono::milliseconds read_seconds(std::string_view source, std::string_view value, Zero zero,
                                       int most = kSecondsMax) {
  double seconds = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, seconds);
  const bool in_range = seconds >= 0 && seconds <= most;  // false for NaN
  const std::chrono::milliseconds time(in_range ? std::llround(seconds * 1000) : 0);
  const bool positive = time.count() > 0 || (zero == Zero::kAllowed && seconds == 0);
  if (error != std::errc() || stop != end || !in_range || !positive) {
    const std::string takes = "a number of seconds";
    const std::string zero_too = zero == Zero::kAllowed ? ", 0 or" : "";
    refuse(source, takes + zero_too + " from 0.001 to " + std::to_string(most), value);
  }
  return time;
}

std::chrono::seconds read_whole_seconds(std::string_view source, std::string_view value,
                                        int least) {
  return std::chrono::seconds(read_integer(source, value, least, kStallSecondsMax));
}

template <typename Value>
struct Choice {
  std::string_view word;
  Value value;
};

template <typename Value, size_t kCount>
Value read_choice(std::string_view source, std::string_view value,
                  const Choice<Value> (&choices)[kCount]) {
  std::string lower(value.substr(0, 16));
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  std::string words;
  for (size_t i = 0; i < kCount; ++i) {
    if (choices[i].word == lower) return choices[i].value;
    words += (i == 0 ? "" : i + 1 == kCount ? " or " : ", ") + std::string(choices[i].word);
  }
  refuse(source, words, value);
}

constexpr Choice<StdinMode> kStdinModes[] = {
    {"0", StdinMode::kRank0}, {"none", StdinMode::kNone}, {"all", StdinMode::kAll}};
constexpr Choice<ColorMode> kColorModes[] = {
    {"auto", ColorMode::kAuto}, {"always", ColorMode::kAlways}, {"never", ColorMode::kNever}};
constexpr Choice<LogLevel> kLogLevels[] = {
    {"trace", LogLevel::kTrace},     {"debug", LogLevel::kDebug}, {"info", LogLevel::kInfo},
    {"warning", LogLevel::kWarning}, {"error", LogLevel::kError}, {"fatal", LogLevel::kFatal}};

// "0,2-5": sorted, each rank once.
std::vector<int> read_ranks(std::string_view source, std::string_view value) {
  std::vector<int> ranks;
  const auto wrong = [&] { refuse(source, "a list of ranks such as 0,2-5", value); };
  for (std::string_view rest = value;;) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view part = rest.substr(0, comma);
    const size_t dash = std::min(part.find('-'), part.size());
    const std::optional<long long> first = whole_number(part.substr(0, dash));
    const std::optional<long long> last =
        dash == part.size() ? first : whole_number(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *first > *last || *last >= kRanksMax) wrong();
    for (long long rank = *first; rank <= *last; ++rank) ranks.push_back(static_cast<int>(rank));
    if (ranks.size() > 2 * static_cast<size_t>(kRanksMax)) wrong();
    if (comma == rest.size()) break;
    rest.remove_prefix(comma + 1);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

// "0,2-5=NAME=VALUE", as -x@0,2-5 NAME=VALUE comes.
EnvironmentSetting read_variable_of_ranks(std::string_view source, const std::string& value) {
  const size_t equals = std::min(value.find('='), value.size());
  const std::string text = value.substr(std::min(equals + 1, value.size()));
  EnvironmentSetting setting = read_variable(source, text);
  if (!setting.value) refuse(source, "NAME=VALUE behind the ranks", text);
  setting.ranks = read_ranks(source, std::string_view(value).substr(0, equals));
  return setting;
}

// "2x3": two hosts of three slots each.
std::vector<Host> read_pretended_hosts(std::string_view source, const std::string& value) {
  const size_t cross = std::min(value.find('x'), value.size());
  const auto hosts = whole_number(std::string_view(value).substr(0, cross));
  const auto slots =
      whole_number(std::string_view(value).substr(std::min(cross + 1, value.size())));
  if (!hosts || !slots || *hosts < 1 || *slots < 1 || *hosts > 1024 || *slots > 1024)
    refuse(source, "hosts and slots such as 2x4", value);
  std::vector<Host> all;
  for (long long i = 1; i <= *hosts; ++i)
    all.push_back({"pretended" + std::to_string(i), "", static_cast<int>(*slots)});
  return all;
}

// hvdrun, an agent and rank 0's program may be on one host.
PortRange read_port_range(std::string_view source, const std::string& value) {
  const size_t dash = std::min(value.find('-'), value.size());
  const auto low = whole_number(std::string_view(value).substr(0, dash));
  const auto high = whole_number(std::string_view(value).substr(std::min(dash + 1, value.size())));
  if (!low || !high || *low < 1 || *high > 65'535 || *low + 2 > *high)
    refuse(source, "a range of at least 3 ports such as 4000-4099", value);
  return {static_cast<uint16_t>(*low), static_cast<uint16_t>(*high)};
}

// "500M": in units of 1024.
uint64_t read_size(std::string_view source, const std::string& value) {
  constexpr std::pair<char, int> kUnits[] = {{'K', 10}, {'M', 20}, {'G', 30}, {'T', 40}};
  std::string_view digits = value;
  int shift = 0;
  for (const auto& [unit, bits] : kUnits)
    if (digits.ends_with(unit) || digits.ends_with(char(unit + 32))) shift = bits;
  if (shift > 0) digits.remove_suffix(1);
  const std::optional<long long> number = whole_number(digits);
  if (!number || *number < 1 || *number > (1ll << 50) >> shift)
    refuse(source, "a size such as 500M or 8G", value);
  return static_cast<uint64_t>(*number) << shift;
}

// What `Setting::apply` is for an option that stores one value.
using Source = std::string_view;
using Value = const std::string&;

constexpr Setting kSettings[] = {
    {"--num-proc",
     [](Draft& d, Source s, Value v) { d.line.spec.size = read_integer(s, v, 1, kRanksMax); }},
    {"--hosts",
     [](Draft& d, Source, Value v) {
       d.line.host_list = d.line.host_list ? *d.line.host_list + "," + v : v;
     }},
    {"--hostfile",
     [](Draft& d, Source s, Value v) {
       if (d.line.host_file) refuse(s, "one file with all hosts", *d.line.host_file + " " + v);
       d.line.host_file = read_file_name(s, v, "/dev/stdin");
     }},
    {"--ssh-port",
     [](Draft& d, Source s, Value v) { d.line.spec.ssh.port = read_integer(s, v, 1, 65'535); }},
    {"--ssh-identity-file", [](Draft& d, Source, Value v) { d.line.spec.ssh.identity_file = v; }},
    {"--ssh-command", [](Draft& d, Source, Value v) { d.line.spec.ssh.program = v; }},
    {"--ssh-arg", [](Draft& d, Source, Value v) { d.line.spec.ssh.arguments.push_back(v); }},
    {"--network-interface",
     [](Draft& d, Source s, Value v) {
       for (std::string& one : parse_networks(s, v)) d.line.spec.networks.push_back(std::move(one));
     }},
    {"--port-range",
     [](Draft& d, Source s, Value v) { d.line.spec.ports = read_port_range(s, v); }},
    {"--pretend-hosts",
     [](Draft& d, Source s, Value v) { d.line.pretended_hosts = read_pretended_hosts(s, v); }},
    {"--devices",
     [](Draft& d, Source s, Value v) { d.line.spec.gpus.devices = parse_gpu_list(s, v); }},
    {"--share-gpu", [](Draft& d, Source, Value) { d.line.spec.gpus.share = true; }},
    {"--deterministic", [](Draft& d, Source, Value) { d.line.spec.gpus.deterministic = true; }},
    {"--launch-blocking", [](Draft& d, Source, Value) { d.line.spec.gpus.launch_blocking = true; }},
    {"--nccl-debug",
     [](Draft& d, Source s, Value v) { d.line.spec.gpus.debug_ranks = read_ranks(s, v); }},
    {"--env",
     [](Draft& d, Source s, Value v) { d.line.spec.environment.push_back(read_variable(s, v)); }},
    {"--env@", [](Draft& d, Source s,
                  Value v) { d.line.spec.environment.push_back(read_variable_of_ranks(s, v)); }},
    {"--env-file", [](Draft& d, Source, Value v) { d.line.environment_files.push_back(v); }},
    {"--wdir", [](Draft& d, Source, Value v) { d.line.spec.directory = after_cd("", v); }},
    {"--ship", [](Draft& d, Source, Value v) { d.line.spec.ship.push_back(v); }},
    {"--ship-limit", [](Draft& d, Source s, Value v) { d.line.spec.ship_limit = read_size(s, v); }},
    {"--stdin",
     [](Draft& d, Source s, Value v) { d.line.spec.stdin_mode = read_choice(s, v, kStdinModes); }},
    {"--timeout",
     [](Draft& d, Source s, Value v) {
       d.line.spec.timeout = read_seconds(s, v, Zero::kAllowed, kJobSecondsMax);
     }},
    {"--start-timeout",
     [](Draft& d, Source s, Value v) {
       d.line.spec.start_timeout = read_seconds(s, v, Zero::kRefused);
     }},
    {"--wait-hosts", [](Draft& d, Source s,
                        Value v) { d.line.spec.host_wait = read_seconds(s, v, Zero::kAllowed); }},
    {"--stop-grace", [](Draft& d, Source s,
                        Value v) { d.line.spec.stop_grace = read_seconds(s, v, Zero::kAllowed); }},
    {"--collective-timeout",
     [](Draft& d, Source s, Value v) {
       d.line.spec.collective_timeout = read_seconds(s, v, Zero::kAllowed);
     }},
    {"--agent-timeout",
     [](Draft& d, Source s, Value v) {
       d.line.spec.agent_timeout = read_seconds(s, v, Zero::kRefused);
     }},
    {"--stall-check-warning-time-seconds",
     [](Draft& d, Source s, Value v) { d.stall_warning = read_whole_seconds(s, v, 1); }},
    {"--stall-check-shutdown-time-seconds",
     [](Draft& d, Source s, Value v) { d.line.spec.stall_shutdown = read_whole_seconds(s, v, 0); }},
    {"--no-stall-check", [](Draft& d, Source, Value) { d.stall_check = false; }},
    {"--stall-check", [](Draft& d, Source, Value) { d.stall_check = true; }},
    {"--output-filename",
     [](Draft& d, Source s, Value v) {
       if (v == "-") refuse(s, "a directory (./- is one of that name)", v);
       d.line.spec.output_directory = v;
     }},
    {"--prefix-output-with-timestamp",
     [](Draft& d, Source, Value) { d.line.spec.timestamps = true; }},
    {"--no-tag-output", [](Draft& d, Source, Value) { d.line.spec.tags = false; }},
    {"--output-ranks",
     [](Draft& d, Source s, Value v) { d.line.spec.output_ranks = read_ranks(s, v); }},
    {"--color",
     [](Draft& d, Source s, Value v) { d.line.spec.color = read_choice(s, v, kColorModes); }},
    {"--result-file",
     [](Draft& d, Source s, Value v) {
       d.line.spec.result_file = read_file_name(s, v, "/dev/stdout");
     }},
    {"--verbose", [](Draft& d, Source, Value) { d.line.spec.verbose = true; }},
    {"--log-level",
     [](Draft& d, Source s, Value v) { d.line.spec.log_level = read_choice(s, v, kLogLevels); }},
    {"--dry-run", [](Draft& d, Source, Value) { d.line.request = Request::kDryRun; }},
};

}  // namespace

std::span<const Setting> all_settings() { return kSettings; }

}  // namespace hvd
