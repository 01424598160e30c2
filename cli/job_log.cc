#include "cli/job_log.h"

#include <spdlog/details/null_mutex.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "cli/failure_report.h"
#include "cli/messages.h"
#include "cli/quoted.h"
#include "cli/signals.h"

namespace hvd {
namespace {

// Whole lines to whoever writes our standard error: the log shares it with the ranks' lines.
class LineSink : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit LineSink(std::function<void(std::string_view line)> write) : write_(std::move(write)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    write_({line.data(), line.size()});
  }
  void flush_() override {}

  const std::function<void(std::string_view line)> write_;
};

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace:
      return spdlog::level::trace;
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kFatal:
      break;
  }
  return spdlog::level::critical;
}

// "rank 3", "ranks 0 to 31", "ranks 1, 4".
std::string names(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return "rank " + std::to_string(ranks.front());
  const bool in_a_row = std::adjacent_find(ranks.begin(), ranks.end(),
                                           [](int a, int b) { return b != a + 1; }) == ranks.end();
  if (in_a_row && ranks.size() > 2)
    return "ranks " + std::to_string(ranks.front()) + " to " + std::to_string(ranks.back());
  std::string text = "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

std::string ranks_that_run(const proto::Started& started) {
  std::string text;
  for (int i = 0; i < started.ranks_size() && i < started.pids_size(); ++i)
    text += (i == 0 ? "started rank " : ", rank ") + std::to_string(started.ranks(i)) + " (pid " +
            std::to_string(started.pids(i)) + ")";
  return text;
}

}  // namespace

bool wants_warnings(const JobSpec& spec) { return spec.log_level <= LogLevel::kWarning; }

JobLog::JobLog(const JobSpec& spec, std::function<void(std::string_view line)> write)
    : hosts_(spec.hosts) {
  const LogLevel least = spec.verbose ? std::min(spec.log_level, LogLevel::kDebug) : spec.log_level;
  if (least > LogLevel::kInfo) return;
  logger_ =
      std::make_unique<spdlog::logger>("hvdrun", std::make_shared<LineSink>(std::move(write)));
  logger_->set_pattern("hvdrun: %H:%M:%S.%e %l: %v");
  logger_->set_level(level_of(least));
}

JobLog::~JobLog() = default;

void JobLog::say(LogLevel level, const std::string& text) const {
  logger_->log(level_of(level), text);
}

void JobLog::began(const std::string& job, const JobSpec& spec) {
  if (!logger_) return;
  std::string command;
  for (const std::string& word : spec.command) command += (command.empty() ? "" : " ") + word;
  say(LogLevel::kInfo, "job " + job + ": " + (spec.size_open ? "at least " : "") +
                           std::to_string(spec.size) +
                           (spec.size == 1 ? " rank of " : " ranks of ") + in_quotes(command));
}

void JobLog::counted(int ranks) const {
  if (!logger_) return;
  say(LogLevel::kInfo, "by the GPUs of the hosts that is " + std::to_string(ranks) +
                           (ranks == 1 ? " rank" : " ranks"));
}

void JobLog::starts(int number, const std::string& what) const {
  if (logger_) say(LogLevel::kDebug, host(number) + ": " + printable(what));
}

void JobLog::listens(const std::string& agent, const proto::Listening& where) {
  for (int i = 0; i < std::min(where.addresses_size(), where.troubles_size()); ++i)
    say(LogLevel::kDebug, where.addresses(i).empty()
                              ? agent + " cannot listen for links: " + printable(where.troubles(i))
                              : agent + " listens for links at " + printable(where.addresses(i)));
}

void JobLog::note(int number, const proto::FromAgent& message) {
  if (!logger_) return;
  const std::string on = " on " + host(number);
  switch (message.what_case()) {
    case proto::FromAgent::kAttached:
      return say(LogLevel::kInfo, "the agent" + on + " is up (pid " +
                                      std::to_string(message.attached().agent_pid()) +
                                      ", its keeper " +
                                      std::to_string(message.attached().keeper_pid()) + ")");
    case proto::FromAgent::kStarted:
      return say(LogLevel::kInfo, ranks_that_run(message.started()) + on);
    case proto::FromAgent::kEnds:
      for (const proto::RankEnd& end : message.ends().ends())
        say(LogLevel::kInfo, describe(from_proto(end)));
      return;
    case proto::FromAgent::kClaimed:
      return say(LogLevel::kDebug, "rank " + std::to_string(message.claimed().rank()) + " (pid " +
                                       std::to_string(message.claimed().pid()) + ") uses libhvd");
    case proto::FromAgent::kEpochWanted: {
      const auto& ranks = message.epoch_wanted().ranks();
      return say(LogLevel::kDebug,
                 names({ranks.begin(), ranks.end()}) + " in init(), waiting for the others");
    }
    case proto::FromAgent::kDied: {
      const auto& ranks = message.died().ranks();
      return say(LogLevel::kDebug, names({ranks.begin(), ranks.end()}) + " died in epoch " +
                                       std::to_string(message.died().epoch()));
    }
    case proto::FromAgent::kBroken:
      return say(LogLevel::kInfo, "epoch " + std::to_string(message.broken().epoch()) +
                                      " is broken" + on + ": " +
                                      printable(message.broken().reason()));
    case proto::FromAgent::kListening:
      return listens("the agent" + on, message.listening());
    case proto::FromAgent::kReached:
      return say(LogLevel::kTrace, std::to_string(message.reached().tries_size()) + " tries" + on +
                                       " to reach other hosts have ended");
    case proto::FromAgent::kSuspended:
      return say(LogLevel::kInfo, "the ranks" + on + " are suspended");
    case proto::FromAgent::kEnded:
      return say(LogLevel::kInfo,
                 "the last word of the agent" + on + ": " +
                     (message.ended().reason().empty() ? "all ranks are over"
                                                       : printable(message.ended().reason())));
    case proto::FromAgent::kStdinTaken:
      return say(LogLevel::kTrace, message.stdin_taken().gone()
                                       ? "nobody is left who reads stdin" + on
                                       : std::to_string(message.stdin_taken().bytes()) +
                                             " bytes of stdin were read" + on);
    case proto::FromAgent::kBeat:
      return say(LogLevel::kTrace, "the agent" + on + " is alive");
    case proto::FromAgent::kStopping:
      return say(LogLevel::kDebug, "the agent" + on + " has heard that the job ends");
    case proto::FromAgent::kStoreQuestion:
      return say(LogLevel::kTrace, "rank " + std::to_string(message.store_question().rank()) +
                                       " asks the store for " +
                                       in_quotes(message.store_question().key()));
    case proto::FromAgent::kSpawnFailed:  // the action that follows tells
    case proto::FromAgent::kStates:       // said to the user anyway, as are the next two
    case proto::FromAgent::kHeld:
    case proto::FromAgent::kSaid:
    case proto::FromAgent::WHAT_NOT_SET:
      return;
  }
}

void JobLog::reached(const std::string& host, const std::string& address,
                     const std::string& interface, const std::string& why) const {
  if (!logger_) return;
  say(LogLevel::kInfo, "other hosts reach " + host + " at " + address +
                           (interface.empty() ? "" : " (" + interface + ")") + ", " + why);
}

void JobLog::unreached(const std::string& line) const {
  if (logger_) say(LogLevel::kInfo, line);
}

void JobLog::note(const Action& action) {
  if (logger_) std::visit([this](const auto& one) { perform(one); }, action);
}

void JobLog::perform(const action::StartWorkers& start) {
  std::vector<int> ranks;
  for (const World& world : start.worlds) ranks.push_back(world.rank);
  say(LogLevel::kInfo, "starting " + names(ranks) + " on " + host(start.host));
}

void JobLog::perform(const action::StartEpoch& start) {
  std::vector<int> ranks;
  for (const action::Member& member : start.members) ranks.push_back(member.rank);
  say(LogLevel::kInfo, "epoch " + std::to_string(start.epoch) + ": " + names(ranks) +
                           (ranks.size() == 1 ? " is its world" : " form a world"));
}

void JobLog::perform(const action::RefuseEpoch& refuse) {
  say(LogLevel::kInfo, "init() fails on " + host(refuse.host) + ": " + refuse.reason);
}

void JobLog::perform(const action::EndJob& end) {
  const std::string when =
      end.after.count() > 0 ? " after " + std::to_string(end.after.count()) + " ms" : std::string();
  say(LogLevel::kInfo,
      "ending the job with " + signal_name(end.first_signal) + when + ": " + end.reason);
}

void JobLog::ended(const ExitStatus& status, double seconds) {
  if (!logger_) return;
  char words[64];
  std::snprintf(words, sizeof words, "exit status %d after %.3f s", status.code, seconds);
  say(LogLevel::kInfo, words);
}

}  // namespace hvd
