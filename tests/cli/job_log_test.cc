// The lines of --verbose and --log-level, and who gets none.
#include "cli/job_log.h"

#include <csignal>

#include "tests/support/catch.h"

namespace hvd {
namespace {

JobSpec spec_with(LogLevel level, bool verbose) {
  JobSpec spec;
  spec.size = 3;
  spec.hosts = {{"gpu1", "", 3}};
  spec.command = {"./train", "--fast"};
  spec.log_level = level;
  spec.verbose = verbose;
  return spec;
}

// A short job, told to a log. Each line without its time, "info: started rank 0 (pid 71)".
std::vector<std::string> lines_of(LogLevel level, bool verbose) {
  const JobSpec spec = spec_with(level, verbose);
  std::vector<std::string> lines;
  JobLog log(spec, [&](std::string_view line) {
    const std::string head = "hvdrun: 00:00:00.000 ";
    REQUIRE(line.size() > head.size());
    CHECK(line.substr(0, 8) == "hvdrun: ");
    CHECK(line.back() == '\n');
    lines.emplace_back(line.substr(head.size(), line.size() - head.size() - 1));
  });
  log.began("17-4", spec);
  log.starts(0, "connecting");
  action::StartWorkers start{0, std::vector<World>(3)};
  for (int rank = 0; rank < 3; ++rank) start.worlds[size_t(rank)].rank = rank;
  log.note(start);
  proto::FromAgent message;
  message.mutable_attached()->set_agent_pid(70);
  message.mutable_attached()->set_keeper_pid(69);
  log.note(0, message);
  for (int rank = 0; rank < 2; ++rank) {
    message.mutable_started()->add_ranks(rank);
    message.mutable_started()->add_pids(71 + rank);
  }
  log.note(0, message);
  message.mutable_claimed()->set_rank(1);
  message.mutable_claimed()->set_pid(72);
  log.note(0, message);
  message.mutable_epoch_wanted()->add_ranks(1);
  log.note(0, message);
  log.note(action::StartEpoch{1, {{0, {}}, {1, {}}}});
  log.note(action::RefuseEpoch{0, {2}, "rank 2 did not call it"});
  message.mutable_beat();
  log.note(0, message);
  proto::RankEnd& end = *message.mutable_ends()->add_ends();
  end.set_rank(1);
  end.set_pid(72);
  end.set_killed(true);
  end.set_status(SIGSEGV);
  end.set_run_ns(1'500'000'000);
  log.note(0, message);
  log.note(action::EndJob{EndCause::kRankFailed, SIGTERM, std::chrono::milliseconds(300), "why"});
  message.mutable_ended()->set_reason("asked to");
  log.note(0, message);
  log.ended({139, 0}, 1.75);
  return lines;
}

const std::vector<std::string> kInfo = {"info: job 17-4: 3 ranks of \"./train --fast\"",
                                        "info: starting ranks 0 to 2 on gpu1",
                                        "info: the agent on gpu1 is up (pid 70, its keeper 69)",
                                        "info: started rank 0 (pid 71), rank 1 (pid 72) on gpu1",
                                        "info: epoch 1: ranks 0, 1 form a world",
                                        "info: init() fails on gpu1: rank 2 did not call it",
                                        "info: rank 1 (pid 72) was killed by SIGSEGV after 1.500 s",
                                        "info: ending the job with SIGTERM after 300 ms: why",
                                        "info: the last word of the agent on gpu1: asked to",
                                        "info: exit status 139 after 1.750 s"};

}  // namespace

TEST_CASE("job log: each step at info, more at debug and trace") {
  CHECK(lines_of(LogLevel::kInfo, false) == kInfo);
  std::vector<std::string> debug = kInfo;
  debug.insert(debug.begin() + 1, "debug: gpu1: connecting");
  debug.insert(debug.begin() + 5, {"debug: rank 1 (pid 72) uses libhvd",
                                   "debug: rank 1 in init(), waiting for the others"});
  CHECK(lines_of(LogLevel::kDebug, false) == debug);
  std::vector<std::string> trace = debug;
  trace.insert(trace.begin() + 9, "trace: the agent on gpu1 is alive");
  CHECK(lines_of(LogLevel::kTrace, false) == trace);
}

TEST_CASE(
    "job log: --verbose is debug, whatever the ranks log, and never less than was asked for") {
  for (LogLevel level : {LogLevel::kDebug, LogLevel::kWarning, LogLevel::kFatal})
    CHECK(lines_of(level, true).size() == kInfo.size() + 3);
  CHECK(lines_of(LogLevel::kTrace, true).size() == kInfo.size() + 4);
}

TEST_CASE("job log: what an agent says moves no cursor") {
  const std::string hostile = "x\x1b[2J\n\xc2\x9b", shown = "x?[2J??";
  std::vector<std::string> lines;
  const JobSpec spec = spec_with(LogLevel::kDebug, false);
  JobLog log(spec, [&](std::string_view line) { lines.emplace_back(line); });
  proto::FromAgent message;
  message.mutable_broken()->set_reason(hostile);
  log.note(0, message);
  message.mutable_listening()->add_addresses(hostile);
  message.mutable_listening()->add_troubles("");
  message.mutable_listening()->add_addresses("");
  message.mutable_listening()->add_troubles(hostile);
  log.note(0, message);
  message.mutable_ended()->set_reason(hostile);
  log.note(0, message);
  log.starts(0, hostile);
  REQUIRE(lines.size() == 5);
  for (const std::string& line : lines) CHECK(line.ends_with(shown + "\n"));
}

TEST_CASE("job log: by default nothing is said") {
  for (LogLevel level : {LogLevel::kWarning, LogLevel::kError, LogLevel::kFatal})
    CHECK(lines_of(level, false).empty());
}

TEST_CASE("job log: warnings beside it go with the level") {
  CHECK(wants_warnings(spec_with(LogLevel::kWarning, false)));
  CHECK(wants_warnings(spec_with(LogLevel::kTrace, false)));
  CHECK_FALSE(wants_warnings(spec_with(LogLevel::kError, false)));
  CHECK_FALSE(wants_warnings(spec_with(LogLevel::kError, true)));
}

}  // namespace hvd
