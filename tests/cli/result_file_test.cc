// What the result file says.
#include "cli/result_file.h"

#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/support/catch.h"

namespace hvd {
namespace {

JobResult failed_job() {
  JobResult result;
  result.job = "job-1";
  result.command = {"./train", "--lr", "\xff"};
  result.started_at_s = 1'000'000'000;
  result.seconds = 2.5;
  result.facts.size = 3;
  result.facts.cause = EndCause::kRankFailed;
  RankEnd first;
  first.rank = 1;
  first.host = "localhost";
  first.pid = 71;
  first.killed = true;
  first.status = SIGSEGV;
  first.run_ns = 1'500'000'000;
  first.doing = "was in no call of hvd";
  RankEnd other = first;
  other.rank = 0;
  other.killed = false;
  other.status = 0;
  result.facts.ends = {first, other};
  result.verdict = attribute(result.facts);
  result.stderr_tail = {"bad \xfe byte"};
  return result;
}

}  // namespace

TEST_CASE("result file: tells who was first, how, and what became of every rank") {
  const auto json = nlohmann::json::parse(result_json(failed_job()));
  CHECK(json["version"] == 1);
  CHECK(json["exit_code"] == 139);
  CHECK(json["signal"].is_null());
  CHECK(json["cause"] == "rank_failed");
  CHECK(json["started_at"] == "2001-09-09T01:46:40Z");
  CHECK(json["first_failure"]["rank"] == 1);
  CHECK(json["first_failure"]["signal"] == "SIGSEGV");
  CHECK(json["first_failure"]["exit_code"].is_null());
  CHECK(json["first_failure"]["seconds"] == 1.5);
  CHECK(json["first_failure"]["doing"] == "was in no call of hvd");
  CHECK(json["first_failure"]["stderr_tail"].size() == 1);
  REQUIRE(json["ranks"].size() == 3);
  CHECK(json["ranks"][0]["outcome"] == "finished");
  CHECK(json["ranks"][1]["outcome"] == "failed");
  CHECK(json["ranks"][2]["outcome"] == "unknown");
  CHECK(json["input"]["error"].is_null());
}

TEST_CASE("result file: of a rank that was lost with its agent, where it ran is told") {
  JobResult job = failed_job();
  job.facts.places = {{"h1", 71}, {"h1", 72}, {"h2", 73}};
  auto rank = nlohmann::json::parse(result_json(job))["ranks"][2];
  CHECK(rank["host"] == "h2");
  CHECK(rank["pid"] == 73);
  job.facts.places[2].pid = 0;
  rank = nlohmann::json::parse(result_json(job))["ranks"][2];
  CHECK(rank["host"] == "h2");
  CHECK(rank["pid"].is_null());
}

TEST_CASE("result file: a rank that cannot be ended is stuck, and why") {
  JobResult job = failed_job();
  job.facts.stuck = {{.rank = 2, .host = "localhost", .pid = 72, .why = "it hangs"}};
  const auto rank = nlohmann::json::parse(result_json(job))["ranks"][2];
  CHECK(rank["outcome"] == "stuck");
  CHECK(rank["host"] == "localhost");
  CHECK(rank["pid"] == 72);
  CHECK(rank["why"] == "it hangs");
}

TEST_CASE("result file: says which ends were fallout, which were not, and which hvdrun brought") {
  JobResult job = failed_job();
  RankEnd also = job.facts.ends[0], fallout = also;
  also.rank = 0, also.run_ns = also.at_ns = 2, also.order = also.batch = 2;
  fallout.rank = 2, fallout.sent_signal = SIGTERM;
  job.facts.ends = {job.facts.ends[0], also, fallout};
  const auto outcomes = [&] {
    job.verdict = attribute(job.facts);
    const auto json = nlohmann::json::parse(result_json(job));
    std::vector<std::string> all;
    for (const auto& rank : json["ranks"]) all.push_back(rank["outcome"]);
    return all;
  };
  CHECK(outcomes() == std::vector<std::string>{"also_failed", "failed", "fallout"});
  job.facts.cause = EndCause::kTimeLimit;
  CHECK(outcomes() == std::vector<std::string>{"failed", "failed", "ended"});
}

TEST_CASE(
    "result file: names the hosts that did not start, counts the rest, and names those lost") {
  JobResult job;
  job.facts.not_started = {{"h1", "no \xff route"}, {"h2", "refused"}};
  job.facts.more_not_started = 3;
  job.facts.lost = {{"h3", "killed"}};
  const auto hosts = nlohmann::json::parse(result_json(job))["hosts"];
  REQUIRE(hosts["not_started"].size() == 2);
  CHECK(hosts["not_started"][0]["host"] == "h1");
  CHECK(hosts["not_started"][1]["why"] == "refused");
  CHECK(hosts["more_not_started"] == 3);
  REQUIRE(hosts["lost"].size() == 1);
  CHECK(hosts["lost"][0]["host"] == "h3");
  CHECK(hosts["lost"][0]["why"] == "killed");
}

TEST_CASE("result file: a good end has no first failure") {
  JobResult result;
  result.facts.size = 1;
  RankEnd end;
  end.rank = 0;
  result.facts.ends = {end};
  result.verdict = attribute(result.facts);
  const auto json = nlohmann::json::parse(result_json(result));
  CHECK(json["exit_code"] == 0);
  CHECK(json["cause"] == "finished");
  CHECK(json["hosts"]["not_started"].empty());
  CHECK(json["hosts"]["more_not_started"] == 0);
  CHECK(json["first_failure"].is_null());
}

}  // namespace hvd
