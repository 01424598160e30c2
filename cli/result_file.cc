#include "cli/result_file.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>

#include "cli/signals.h"

namespace hvd {
namespace {

using Json = nlohmann::ordered_json;

const char* name_of(EndCause cause) {
  switch (cause) {
    case EndCause::kNone:
      return "finished";
    case EndCause::kRankFailed:
      return "rank_failed";
    case EndCause::kInterrupted:
      return "interrupted";
    case EndCause::kTerminated:
      return "terminated";
    case EndCause::kHangup:
      return "hangup";
    case EndCause::kQuit:
      return "quit";
    case EndCause::kReaderGone:
      return "output_closed";
    case EndCause::kTimeLimit:
      return "time_limit";
    case EndCause::kStartTimeout:
      return "start_timeout";
    case EndCause::kAgentLost:
      return "agent_lost";
    case EndCause::kNotStarted:
      return "not_started";
    case EndCause::kOwnFailure:
      break;
  }
  return "own_failure";
}

std::string utc(int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[64];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

Json to_json(const RankEnd& end, const char* part) {
  Json json = {{"rank", end.rank}, {"host", end.host}, {"outcome", part}};
  if (end.spawn_error != 0) {
    json["spawn_error"] = std::strerror(end.spawn_error);
    json["spawn_step"] = end.spawn_step;
    return json;
  }
  json["pid"] = end.pid;
  json["exit_code"] = end.killed || end.unknown ? Json(nullptr) : Json(end.status);
  json["signal"] = end.killed ? Json(signal_name(end.status)) : Json(nullptr);
  json["seconds"] = double(end.run_ns) / 1e9;
  if (end.sent_signal != 0) json["sent_by_hvdrun"] = signal_name(end.sent_signal);
  json["doing"] = end.doing.empty() ? Json(nullptr) : Json(end.doing);
  return json;
}

Json missing_to_json(int rank, const JobFacts& facts) {
  for (const StuckProcess& one : facts.stuck)
    if (one.rank == rank)
      return {{"rank", rank},
              {"outcome", "stuck"},
              {"host", one.host},
              {"pid", one.pid},
              {"why", one.why}};
  Json json = {{"rank", rank}, {"outcome", "unknown"}};
  if (size_t(rank) >= facts.places.size()) return json;
  const RankPlace& place = facts.places[size_t(rank)];
  json["host"] = place.host;
  json["pid"] = place.pid == 0 ? Json(nullptr) : Json(place.pid);
  return json;
}

Json hosts_to_json(const JobFacts& facts) {
  const auto list = [](const std::vector<HostFailure>& hosts) {
    Json json = Json::array();
    for (const HostFailure& one : hosts) json.push_back({{"host", one.host}, {"why", one.why}});
    return json;
  };
  return {{"not_started", list(facts.not_started)},
          {"more_not_started", facts.more_not_started},
          {"lost", list(facts.lost)}};
}

}  // namespace

std::string result_json(const JobResult& result) {
  const Verdict& verdict = result.verdict;
  Json json;
  json["version"] = 1;
  json["job"] = result.job;
  json["command"] = result.command;
  json["size"] = result.facts.size;
  json["started_at"] = utc(result.started_at_s);
  json["seconds"] = result.seconds;
  json["exit_code"] = verdict.status.code;
  json["signal"] = verdict.status.raise_signal == 0
                       ? Json(nullptr)
                       : Json(signal_name(verdict.status.raise_signal));
  json["cause"] = name_of(result.facts.cause);
  json["cause_text"] = result.facts.cause_text;
  if (verdict.first) {
    json["first_failure"] = to_json(*verdict.first, "failed");
    json["first_failure"]["why"] = verdict.why;
    json["first_failure"]["stderr_tail"] = result.stderr_tail;
  } else {
    json["first_failure"] = nullptr;
  }
  json["hosts"] = hosts_to_json(result.facts);
  Json ranks = Json::array();
  if (verdict.first) ranks.push_back(to_json(*verdict.first, "failed"));
  for (const RankEnd& end : verdict.fallout)
    ranks.push_back(to_json(end, verdict.is_explained() ? "fallout" : "ended"));
  for (const RankEnd& end : verdict.also)
    ranks.push_back(to_json(end, verdict.is_explained() ? "also_failed" : "failed"));
  for (const RankEnd& end : verdict.finished) ranks.push_back(to_json(end, "finished"));
  for (int rank : verdict.missing) ranks.push_back(missing_to_json(rank, result.facts));
  std::sort(ranks.begin(), ranks.end(),
            [](const Json& a, const Json& b) { return a["rank"] < b["rank"]; });
  json["ranks"] = std::move(ranks);
  json["output"] = {{"lost_bytes", result.lost_output_bytes}, {"split_lines", result.split_lines}};
  const std::string& input_error = result.facts.input_error;
  json["input"] = {{"error", input_error.empty() ? Json(nullptr) : Json(input_error)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace hvd
