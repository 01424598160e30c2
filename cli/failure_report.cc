#include "cli/failure_report.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "cli/pipe.h"
#include "cli/signals.h"
#include "runtime/base/utf8.h"

namespace hvd {
namespace {

constexpr size_t kShownMax = 8;
constexpr const char* kPlain = "\033[0m";  // a colour that a rank's line left on

bool failed(const RankEnd& end) { return end.spawn_error != 0 || end.killed || end.status != 0; }

// Among ends of one wake-up the likelier cause goes first: a crash before an exit code, that before
// a broken pipe or TERM.
int likelihood(const RankEnd& end) {
  if (end.spawn_error != 0) return 0;
  if (end.sent_signal != 0) return 9;
  if (!end.killed) return end.status == 128 + SIGPIPE || end.status == 128 + SIGTERM ? 4 : 3;
  switch (end.status) {
    case SIGSEGV:
    case SIGBUS:
    case SIGILL:
    case SIGFPE:
    case SIGABRT:
    case SIGSYS:
      return 1;
    case SIGKILL:
    case SIGXCPU:
    case SIGXFSZ:
      return 2;
    case SIGPIPE:
    case SIGTERM:
    case SIGHUP:
    case SIGINT:
      return 5;
    default:
      return 3;
  }
}

int code_of(const RankEnd& end) {
  if (end.spawn_step.starts_with("chdir")) return kExitOwnFailure;  // the command was not tried
  if (end.spawn_error != 0) return exit_code_of_spawn(end.spawn_error);
  return end.killed ? 128 + end.status : end.status;
}

std::string seconds(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, ns < 10'000'000'000 ? "%.3f s" : "%.1f s", double(ns) / 1e9);
  return text;
}

// By the time of death; those of one wake-up of one host by likelihood, then by the order in which
// they were seen.
void sort_by_death(std::vector<RankEnd>& ends) {
  using Batch = std::pair<std::string, int>;
  std::map<Batch, int64_t> began;
  for (const RankEnd& end : ends) {
    const auto [at, first] = began.try_emplace(Batch{end.host, end.batch}, end.at_ns);
    if (!first) at->second = std::min(at->second, end.at_ns);
  }
  // An agent's clock is known better by and by, so that an earlier batch may seem to be later.
  for (auto later = began.rbegin(); later != began.rend(); ++later)
    if (const auto one = std::next(later); one != began.rend() &&
                                           one->first.first == later->first.first &&
                                           one->first.second != kOfSpawns)
      one->second = std::min(one->second, later->second);
  const auto key = [&](const RankEnd& end) {
    const Batch batch{end.host, end.batch};
    return std::make_tuple(began.at(batch), batch, likelihood(end), end.order, end.rank);
  };
  std::sort(ends.begin(), ends.end(),
            [&](const RankEnd& a, const RankEnd& b) { return key(a) < key(b); });
}

struct Blame {
  const RankEnd* rank;  // null: a link between hosts is
  int code;             // the job's exit status
  std::string why;
};

// The job's exit status when `threw` threw because of `blamed`, whose own says nothing if it ended
// well or was sent a signal to end the job. That it was given up on is its own failure.
int code_for(const RankEnd& blamed, const RankEnd& threw) {
  if (!failed(blamed)) return 1;
  return blamed.sent_signal != 0 && blamed.given_up.empty() ? code_of(threw) : code_of(blamed);
}

// Who ended well, but before a rank that was told so had had what it needed. Of those seen dead in
// one wake-up of their host, where likelihood says little, it is one that was seen before: only
// then is anybody told.
std::optional<Blame> deserter_before(const RankEnd& end, const std::vector<RankEnd>& sorted) {
  if (!end.told) return std::nullopt;
  bool behind = false;
  for (const RankEnd& other : sorted) {
    behind |= other.rank == end.rank;
    if (behind && (other.host != end.host || other.order >= end.order)) continue;
    if (!failed(other) && !other.told && other.stranded_others)  // the world had not broken before
      return Blame{&other, 1,
                   "rank " + std::to_string(other.rank) +
                       (other.unknown ? " ended" : " ended (exit status 0)") +
                       " while other ranks needed it for a collective"};
  }
  return std::nullopt;
}

// A rank that failed: by itself, because it was left alone, or because it had waited in vain and
// threw; the exit status then is still its own.
Blame blame_for(const RankEnd& end, const std::vector<RankEnd>& sorted, const JobFacts& facts) {
  const bool in_init = end.waited_for.empty();
  const std::vector<int>& missing = in_init ? facts.never_came : end.waited_for;
  const std::string& why = in_init ? facts.init_refused : end.waited_in_vain;
  const auto is_missing = [&](const RankEnd& one) {
    return std::find(missing.begin(), missing.end(), one.rank) != missing.end();
  };
  const bool threw = end.told && (!end.killed || end.status == SIGABRT);
  if (const std::optional<Blame> deserter = deserter_before(end, sorted)) return *deserter;
  if (threw && !is_missing(end))
    for (const RankEnd& other : sorted)
      if (is_missing(other))
        return {&other, code_for(other, end), other.given_up.empty() ? why : other.given_up};
  if (!end.given_up.empty()) return {&end, code_of(end), end.given_up};
  return {&end, code_of(end), threw ? why : ""};
}

// Of the ranks that nobody sent a signal the first that failed leads to the one to blame. Who was
// told of a broken epoch and leads to nobody else comes behind those that failed by themselves: one
// that others hear of may take longer to end than they do.
std::optional<Blame> first_failure(const std::vector<RankEnd>& sorted, const JobFacts& facts) {
  std::optional<Blame> told;
  for (const RankEnd& end : sorted) {
    if (!failed(end) || end.sent_signal != 0) continue;
    Blame blame = blame_for(end, sorted, facts);
    if (!end.told || blame.rank != &end) return blame;
    if (!told && !facts.lost_link.empty()) blame = {nullptr, code_of(end), facts.lost_link};
    if (!told) told = blame;
  }
  if (told) return told;
  // Nobody failed; but what was told was not to be had, whatever the program made of it.
  for (const RankEnd& end : sorted)
    if (std::optional<Blame> deserter = deserter_before(end, sorted); deserter && !failed(end))
      return deserter;
  return std::nullopt;
}

// Whether a failed end follows from what was to blame, if that is known: from a signal of ours, or
// from what libhvd had told its program. Uncaught, that is SIGABRT.
bool is_fallout(const RankEnd& end, bool is_known) {
  if (end.sent_signal != 0 || !end.given_up.empty()) return true;
  return is_known && end.told && (!end.killed || end.status == SIGABRT);
}

// `with_hosts`: the job's ranks are on several.
std::string list_of(std::string words, const std::vector<RankEnd>& ends, bool with_hosts) {
  for (size_t i = 0; i < ends.size() && i < kShownMax; ++i)
    words += (i > 0 ? ", rank " : " rank ") + std::to_string(ends[i].rank) +
             (with_hosts ? " on " + ends[i].host : "") + " " + how_it_ended(ends[i]);
  if (ends.size() > kShownMax) words += " and " + std::to_string(ends.size() - kShownMax) + " more";
  return words;
}

}  // namespace

std::string how_it_ended(const RankEnd& end) {
  if (end.spawn_error != 0)
    return "could not be started (" + end.spawn_step + ": " + error_text(end.spawn_error) +
           (end.spawn_error == E2BIG
                ? ": command and environment together; put what is long into a file"
                : "") +
           ")";
  if (end.unknown) return "ended, nobody knows how (its parent process does)";
  if (end.killed) return "was killed by " + signal_name(end.status);
  return "exited with code " + std::to_string(end.status);
}

std::string describe(const RankEnd& end) {
  std::string text = "rank " + std::to_string(end.rank);
  if (end.spawn_error == 0) text += " (pid " + std::to_string(end.pid) + ")";
  if (!end.host.empty()) text += " on " + end.host;
  text += " " + (end.killed && end.sent_signal != 0
                     ? "was ended by hvdrun with " + signal_name(end.status)
                     : how_it_ended(end));
  if (end.spawn_error == 0) text += " after " + seconds(end.run_ns);
  if (!end.spawn_advice.empty()) text += ": " + end.spawn_advice;
  return text;
}

std::string describe(const StuckProcess& stuck) {
  const std::string pid = std::to_string(stuck.pid);
  return (stuck.rank < 0 ? "process " + pid + ", which a rank had started,"
                         : "rank " + std::to_string(stuck.rank) + " (pid " + pid + ")") +
         (stuck.host.empty() ? "" : " on " + stuck.host) + " cannot be ended: " + stuck.why;
}

Verdict attribute(const JobFacts& facts) {
  std::vector<RankEnd> ends = facts.ends;
  sort_by_death(ends);
  Verdict verdict;
  const bool by_rank = facts.cause == EndCause::kNone || facts.cause == EndCause::kRankFailed;
  const std::optional<Blame> blame = by_rank ? first_failure(ends, facts) : std::nullopt;
  if (blame && blame->rank != nullptr) verdict.first = *blame->rank;
  std::vector<bool> known(size_t(facts.size), false);
  for (const RankEnd& end : ends) {
    if (end.rank >= 0 && end.rank < facts.size) known[size_t(end.rank)] = true;
    if (verdict.first && verdict.first->rank == end.rank) continue;
    auto& part = !failed(end)                         ? verdict.finished
                 : is_fallout(end, blame.has_value()) ? verdict.fallout
                                                      : verdict.also;
    part.push_back(end);
  }
  for (int rank = 0; rank < facts.size; ++rank)
    if (!known[size_t(rank)]) verdict.missing.push_back(rank);

  verdict.status = exit_status_of(facts.cause);
  if (blame) {
    verdict.status.code = blame->code;
    verdict.why = blame->why;
  } else if (by_rank &&
             (!verdict.fallout.empty() || !verdict.also.empty() || !verdict.missing.empty())) {
    verdict.status.code = kExitOwnFailure;  // nothing explains these ends: not a success
  }
  if (verdict.status.code == 0 && (facts.output_lost || !facts.input_error.empty()))
    verdict.status.code = kExitOwnFailure;
  return verdict;
}

std::string report(const Verdict& verdict, const JobFacts& facts,
                   const std::vector<std::string>& stderr_tail) {
  std::string text;
  const auto line = [&](const std::string& words) { text += "hvdrun: " + words + "\n"; };
  if (verdict.first && !stderr_tail.empty()) {
    line("last lines of rank " + std::to_string(verdict.first->rank) + "'s stderr:");
    for (const std::string& one : stderr_tail)
      text += "  | " + one + (one.find('\033') != one.npos ? kPlain : "") + "\n";
  }
  const bool explained = verdict.is_explained();
  const bool with_hosts = std::ranges::any_of(
      facts.ends, [&](const RankEnd& end) { return end.host != facts.ends.front().host; });
  if (!verdict.fallout.empty())
    line(list_of(explained ? "only fallout:" : "ended by hvdrun:", verdict.fallout, with_hosts));
  if (!verdict.also.empty())
    line(list_of(explained ? "also failed:" : "failed:", verdict.also, with_hosts));
  if (facts.cause == EndCause::kRankFailed)  // that came before
    for (size_t i = 0; i < facts.lost.size() && i < kShownMax; ++i)
      line("fallout, too: " + facts.lost[i].why);
  for (size_t i = 0; i < facts.stuck.size() && i < kShownMax; ++i) line(describe(facts.stuck[i]));
  if (facts.stuck.size() > kShownMax)
    line("and " + std::to_string(facts.stuck.size() - kShownMax) + " more cannot be ended");
  switch (facts.cause) {
    case EndCause::kNone:
    case EndCause::kRankFailed:
      break;
    case EndCause::kInterrupted:
      line("interrupted (SIGINT)");
      break;
    case EndCause::kTerminated:
      line("ended by SIGTERM");
      break;
    case EndCause::kHangup:
      line("ended by SIGHUP");
      break;
    case EndCause::kQuit:
      line("ended by SIGQUIT");
      break;
    case EndCause::kReaderGone:
      line("nobody reads the output any more");
      break;
    case EndCause::kTimeLimit:
    case EndCause::kStartTimeout:
    case EndCause::kAgentLost:
    case EndCause::kOwnFailure:
    case EndCause::kNotStarted:
      line(facts.cause_text);
      break;
  }
  if (verdict.first) {
    if (!verdict.first->doing.empty())
      line("rank " + std::to_string(verdict.first->rank) + " " + verdict.first->doing);
  }
  if (!verdict.why.empty()) line(verdict.why);
  if (verdict.first) line("first failure: " + describe(*verdict.first));
  return text;
}

void StderrTail::feed(std::string_view bytes) {
  if (closed_) return;
  const bool has_cr = after_cr_ || bytes.find('\r') != bytes.npos;
  while (!bytes.empty()) {
    if (after_cr_) {
      after_cr_ = false;
      end_line(bytes.front() != '\n');
      if (bytes.front() == '\n') bytes.remove_prefix(1);
      continue;
    }
    // find() is much faster than the search for either, and \r is rare
    const size_t end =
        std::min(has_cr ? bytes.find_first_of("\r\n") : bytes.find('\n'), bytes.size());
    open_.begin += bytes.substr(0, std::min(end, kLineBytesMax + 1 - open_.begin.size()));
    open_.bytes += end;
    bytes.remove_prefix(end);
    if (bytes.empty()) return;
    after_cr_ = bytes.front() == '\r';
    if (!after_cr_) end_line(false);
    bytes.remove_prefix(1);
  }
}

void StderrTail::end_line(bool update) {
  Line line = std::exchange(open_, {});
  if (update && line.bytes == 0) return;
  if (update && update_before_) ended_.pop_back();
  ended_.push_back(std::move(line));
  if (ended_.size() > kTailLines) ended_.pop_front();
  update_before_ = update;
}

std::vector<std::string> StderrTail::lines() const {
  StderrTail all = *this;
  if (after_cr_ || open_.bytes > 0) all.end_line(after_cr_);
  std::vector<std::string> lines;
  for (const Line& line : all.ended_) {
    lines.emplace_back(head_of(line.begin, kLineBytesMax));
    if (line.bytes > kLineBytesMax)
      lines.back() += "... (cut: the line has " + std::to_string(line.bytes) + " bytes)";
  }
  return lines;
}

}  // namespace hvd
