// A rank of several hosts dies, or is stopped and given up on, at any step: every survivor's wait
// ends, who died is named, results are right, survivors are one operation apart at most, and nobody
// writes their memory afterwards.
//
// Ranks are processes below one HostMemory for each host; nobody ends the survivors.
#include <signal.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "tests/runtime/engine/engine_steps.h"
#include "tests/support/catch.h"
#include "tests/support/extent.h"
#include "tests/support/hosts_job.h"
#include "tests/support/temporary_directory.h"

using namespace hvd;

namespace {

using Hosts = std::vector<int>;  // how many ranks each has

int ranks_of(const Hosts& hosts) { return std::accumulate(hosts.begin(), hosts.end(), 0); }

HostsJobOptions options_for(const Hosts& hosts) {
  return {.hosts = hosts, .program = "engine_steps"};
}

void check(HostsJob& job, const StepsJudgement& judged) {
  INFO(job.describe());
  CHECK(judged.in_time);
  CHECK(judged.crashed == 0);
  CHECK(judged.wrong == 0);
  CHECK(judged.late == 0);
  CHECK(judged.unknown == 0);
  // An asynchronous operation and a synchronous one may both be the last.
  CHECK(judged.apart(&Survivor::completed) <= 2);
  CHECK(judged.apart(&Survivor::steps) <= 1);
}

// How many steps each rank takes when nobody dies.
std::vector<long> count_steps(const Hosts& hosts) {
  const TemporaryDirectory directory;
  const int ranks = ranks_of(hosts);
  HostsJobOptions options = options_for(hosts);
  std::vector<std::string> files;
  for (int k = 0; k < ranks; ++k) {
    files.push_back(directory.path() / std::to_string(k));
    options.rank_environment[k] = {"HVD_FAULT_POINT=count:" + files.back()};
  }
  HostsJob job(options);
  const StepsJudgement judged = judge_steps(job, ranks, {});
  check(job, judged);
  CHECK(judged.survivors.size() == files.size());
  CHECK(judged.failed() == 0);
  for (const Survivor& one : judged.survivors) {
    CHECK(one.steps == kEngineSteps);
    CHECK(one.completed == kCompletedEachStep * kEngineSteps);
  }
  std::vector<long> steps;
  for (const std::string& file : files) steps.push_back(count_fault_points(file));
  return steps;
}

// Kills it at that step, if it comes so far.
bool dies(const Hosts& hosts, int who, long step) {
  CAPTURE(hosts, step, who);
  HostsJobOptions options = options_for(hosts);
  options.rank_environment[who] = at_step(step, "kill");
  HostsJob job(options);
  const StepsJudgement judged = judge_steps(job, ranks_of(hosts), {who});
  check(job, judged);
  INFO(job.describe());
  for (const Survivor& one : judged.survivors)
    if (!one.error.empty() && !one.in_store)
      CHECK_THAT(one.error, Catch::Contains("rank " + std::to_string(who)));
  return job.rank(who).status == 128 + SIGKILL;
}

// Stops it there. False, too, where nobody needs it any more.
bool is_given_up(const Hosts& hosts, int who, long step) {
  CAPTURE(hosts, step, who);
  HostsJobOptions options = options_for(hosts);
  options.environment = {"HVD_TEST_TIMEOUT_MS=300"};
  options.rank_environment[who] = at_step(step, "stop");
  HostsJob job(options);
  const StepsJudgement judged = judge_steps(job, ranks_of(hosts), {who}, who);
  check(job, judged);
  if (job.rank(who).given_up.empty()) return false;
  INFO(job.describe());
  CHECK(judged.survivors.size() + 1 == static_cast<size_t>(ranks_of(hosts)));
  return true;
}

}  // namespace

TEST_CASE("hosts death: a rank killed at its k-th step ends every wait, by name") {
  const Hosts hosts = GENERATE(Hosts{1, 1}, Hosts{2, 1}, Hosts{2, 2});
  const int ranks = ranks_of(hosts);
  const std::vector<long> steps = count_steps(hosts);
  for (int who = 0; who < ranks; ++who) {
    const long all = steps[static_cast<size_t>(who)];
    REQUIRE(all > 100);
    // In the long run every step, else some, others of each rank.
    const long stride = thorough() ? 1 : all / 6;
    for (long k = 1 + (thorough() ? 0 : stride * who / ranks); k <= all; k += stride)
      CHECK(happens_by(k, 1, [&](long step) { return dies(hosts, who, step); }));
  }
}

TEST_CASE(
    "hosts death: a stopped rank is given up on, on whichever host, and writes nothing later") {
  const Hosts hosts{2, 1};
  const std::vector<long> steps = count_steps(hosts);
  constexpr long kWished = 4;  // before its wish for the epoch nobody misses it
  for (int who = 0; who < ranks_of(hosts); ++who) {
    const long all = steps[static_cast<size_t>(who)];
    const long stride = thorough() ? 23 : all / 2;  // each takes seconds
    for (long k = kWished + stride * who / 3; k <= all; k += stride)
      CHECK(happens_by(k, kWished, [&](long step) { return is_given_up(hosts, who, step); }));
  }
}
