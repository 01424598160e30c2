// Who was first, what hvdrun ends with, and what it says.
#include "cli/failure_report.h"

#include <cerrno>
#include <csignal>

#include "tests/support/catch.h"

namespace hvd {
namespace {

RankEnd code(int rank, int status, int batch, int sent = 0) {
  RankEnd end;
  end.rank = rank;
  end.host = "localhost";
  end.pid = 100 + rank;
  end.status = status;
  end.batch = batch;
  end.order = batch * 10 + rank;
  end.at_ns = batch * 1'000'000;
  end.run_ns = 1'234'000'000;
  end.sent_signal = sent;
  return end;
}

RankEnd killed(int rank, int signal, int batch, int sent = 0) {
  RankEnd end = code(rank, signal, batch, sent);
  end.killed = true;
  return end;
}

JobFacts facts(std::vector<RankEnd> ends, EndCause cause = EndCause::kRankFailed) {
  JobFacts facts;
  facts.size = int(ends.size());
  facts.ends = std::move(ends);
  facts.cause = cause;
  return facts;
}

}  // namespace

TEST_CASE("failure report: the first that failed by itself is named, the others are fallout") {
  const Verdict one =
      attribute(facts({killed(1, SIGTERM, 3, SIGTERM), code(2, 5, 2), code(0, 0, 1)}));
  REQUIRE(one.first);
  CHECK(one.first->rank == 2);
  CHECK(one.status.code == 5);
  CHECK(one.fallout.size() == 1);
  CHECK(one.finished.size() == 1);
}

TEST_CASE("failure report: fallout is what follows from a signal of ours or from libhvd's word") {
  const auto parts = [](const JobFacts& job) {
    const Verdict verdict = attribute(job);
    return std::pair{verdict.fallout.size(), verdict.also.size()};
  };
  using Parts = std::pair<size_t, size_t>;
  CHECK(parts(facts({code(0, 3, 1), code(1, 3, 2)})) == Parts{0, 1});
  CHECK(parts(facts({code(0, 3, 1), code(1, 3, 2, SIGTERM)})) == Parts{1, 0});
  const RankEnd first = killed(0, SIGSEGV, 1), itself = code(4, 7, 2);
  RankEnd told = code(1, 3, 2), aborted = killed(2, SIGABRT, 2), crashed = killed(3, SIGSEGV, 2);
  for (RankEnd* end : {&told, &aborted, &crashed}) end->told = true;
  CHECK(parts(facts({first, told, aborted, crashed})) == Parts{2, 1});
  CHECK(parts(facts({first, told, itself})) == Parts{1, 1});
}

TEST_CASE("failure report: who failed beside the first is said apart from the fallout") {
  const JobFacts job = facts({code(1, 3, 1), code(0, 4, 2), killed(2, SIGTERM, 3, SIGTERM)});
  const std::string text = report(attribute(job), job, {});
  CHECK(text.find("hvdrun: only fallout: rank 2 was killed by SIGTERM\n"
                  "hvdrun: also failed: rank 0 exited with code 4\n") == 0);
}

TEST_CASE("failure report: of several hosts each rank is told with its own") {
  JobFacts job = facts({code(1, 3, 1), code(0, 4, 2), killed(2, SIGTERM, 3, SIGTERM)});
  job.ends[0].host = job.ends[2].host = "h2";
  CHECK(report(attribute(job), job, {})
            .starts_with("hvdrun: only fallout: rank 2 on h2 was killed by SIGTERM\n"
                         "hvdrun: also failed: rank 0 on localhost exited with code 4\n"));
}

TEST_CASE(
    "failure report: of deaths seen together a crash comes before an exit code, that before a "
    "broken pipe") {
  CHECK(
      attribute(facts({killed(0, SIGPIPE, 4), killed(2, SIGSEGV, 4), code(1, 3, 4)})).first->rank ==
      2);
  CHECK(attribute(facts({killed(0, SIGPIPE, 4), code(1, 3, 4)})).first->rank == 1);
  CHECK(attribute(facts({killed(0, SIGTERM, 4), code(1, 128 + SIGTERM, 4)})).first->rank == 1);
}

TEST_CASE("failure report: of deaths seen one after the other the first is the first") {
  CHECK(attribute(facts({killed(2, SIGSEGV, 5), killed(0, SIGPIPE, 4)})).first->rank == 0);
  RankEnd early = code(0, 1, 7), late = code(1, 1, 7);
  early.order = 2, late.order = 1;
  CHECK(attribute(facts({early, late})).first->rank == 1);
}

TEST_CASE("failure report: the exit status is that of the first failing rank") {
  for (int status = 1; status <= 255; ++status)
    REQUIRE(attribute(facts({code(0, 0, 1), code(1, status, 2)})).status.code == status);
  for (int signal : {SIGKILL, SIGSEGV, SIGABRT, SIGTERM})
    CHECK(attribute(facts({killed(0, signal, 1)})).status.code == 128 + signal);
  CHECK(attribute(facts({code(0, 0, 1), code(1, 0, 2)}, EndCause::kNone)).status.code == 0);
}

TEST_CASE("failure report: an end that is missing is no success") {
  JobFacts missing = facts({code(0, 0, 1)}, EndCause::kNone);
  missing.size = 2;
  const Verdict verdict = attribute(missing);
  CHECK(verdict.status.code == 125);
  CHECK(verdict.missing == std::vector<int>{1});
}

TEST_CASE("failure report: lost output is no success, but a rank's failure counts more") {
  JobFacts lost = facts({code(0, 0, 1)}, EndCause::kNone);
  lost.output_lost = true;
  CHECK(attribute(lost).status.code == 125);
  JobFacts both = facts({code(0, 9, 1)});
  both.output_lost = true;
  CHECK(attribute(both).status.code == 9);
}

TEST_CASE("failure report: input that could not be read is no success, but counts less likewise") {
  JobFacts unread = facts({code(0, 0, 1)}, EndCause::kNone);
  unread.input_error = "Is a directory";
  CHECK(attribute(unread).status.code == 125);
  JobFacts both = facts({code(0, 9, 1)});
  both.input_error = "Is a directory";
  CHECK(attribute(both).status.code == 9);
}

TEST_CASE("failure report: causes of hvdrun's own decide before ranks do") {
  const auto status = [](EndCause cause) {
    return attribute(facts({code(0, 1, 1, SIGTERM)}, cause)).status;
  };
  CHECK(status(EndCause::kInterrupted).raise_signal == SIGINT);
  CHECK(status(EndCause::kTerminated).raise_signal == SIGTERM);
  CHECK(status(EndCause::kHangup).raise_signal == SIGHUP);
  CHECK(status(EndCause::kQuit).raise_signal == SIGQUIT);
  CHECK(status(EndCause::kReaderGone).raise_signal == SIGPIPE);
  CHECK(status(EndCause::kReaderGone).code == 141);
  CHECK(status(EndCause::kTimeLimit).code == 124);
  CHECK(status(EndCause::kStartTimeout).code == 125);
  CHECK(status(EndCause::kAgentLost).code == 125);
  CHECK(status(EndCause::kOwnFailure).code == 125);
}

TEST_CASE("failure report: a command that is not there is 127, one that cannot run 126") {
  RankEnd end = code(0, 0, 0);
  end.spawn_step = "exec of ./train";
  for (const auto& [error, wanted] : {std::pair{ENOENT, 127},
                                      {ENOTDIR, 127},
                                      {EACCES, 126},
                                      {ENOEXEC, 126},
                                      {EMFILE, 125},
                                      {EAGAIN, 125}}) {
    end.spawn_error = error;
    JobFacts one = facts({end});
    one.size = 4;
    CHECK(attribute(one).status.code == wanted);
  }
  RankEnd without_directory = end;
  without_directory.spawn_step = "chdir to /a";
  without_directory.spawn_error = ENOENT;
  CHECK(attribute(facts({without_directory})).status.code == 125);
  end.spawn_error = EMFILE;
  CHECK_THAT(how_it_ended(end), Catch::Contains("raise the limit on open files (ulimit -n)"));
}

TEST_CASE("failure report: of the first failure it is said what its host sees to be wrong") {
  RankEnd end = code(0, 0, 0);
  end.host = "h1";
  end.spawn_error = ENOENT;
  end.spawn_step = "exec of a";
  end.spawn_advice = "try: hvdrun ... ./a";
  CHECK(describe(end) ==
        "rank 0 on h1 could not be started (exec of a: No such file or directory): try: hvdrun "
        "... ./a");
  CHECK(how_it_ended(end) == "could not be started (exec of a: No such file or directory)");
  end.spawn_error = E2BIG;
  CHECK(how_it_ended(end) ==
        "could not be started (exec of a: Argument list too long: command and environment "
        "together; put what is long into a file)");
}

TEST_CASE("failure report: a rank that left others alone with exit code 0 is the failure") {
  RankEnd deserter = code(1, 0, 2), stranded = code(0, 1, 3);
  deserter.stranded_others = stranded.told = true;
  const Verdict verdict = attribute(facts({stranded, deserter}));
  REQUIRE(verdict.first);
  CHECK(verdict.first->rank == 1);
  CHECK(verdict.status.code == 1);
  CHECK(verdict.fallout.size() == 1);
  // Also where both were seen to be dead at once.
  RankEnd at_once = code(2, 3, 2);
  at_once.told = true;
  REQUIRE(at_once.order > deserter.order);
  CHECK(attribute(facts({at_once, deserter})).first->rank == 1);
  at_once.order = deserter.order - 1;
  CHECK(attribute(facts({at_once, deserter})).first->rank == 2);
  // One that failed before it has a cause of its own.
  RankEnd before = code(2, 7, 1);
  CHECK(attribute(facts({stranded, deserter, before})).first->rank == 2);
  // One that failed without having been told of it has a reason of its own.
  RankEnd itself = code(0, 7, 3);
  const Verdict own = attribute(facts({itself, deserter}));
  REQUIRE(own.first);
  CHECK(own.first->rank == 0);
  CHECK(own.status.code == 7);
  CHECK(own.why.empty());
  CHECK(own.finished.size() == 1);
  // Also when its program made the best of it.
  stranded.status = 0;
  const Verdict silent = attribute(facts({stranded, deserter}, EndCause::kNone));
  REQUIRE(silent.first);
  CHECK(silent.first->rank == 1);
  CHECK(silent.status.code == 1);
  // Who had been told of another's end before it ended deserted nobody.
  deserter.told = true;
  CHECK(attribute(facts({stranded, deserter}, EndCause::kNone)).status.code == 0);
  // Nor who ended when nobody needed it any more.
  deserter.told = false;
  stranded.told = false;
  CHECK(attribute(facts({stranded, deserter}, EndCause::kNone)).status.code == 0);
}

TEST_CASE("failure report: who called shutdown() too early is the failure, if that broke others") {
  RankEnd leaver = code(1, 0, 2), stranded = code(0, 3, 3);
  stranded.waited_for = {1};
  CHECK(attribute(facts({stranded, leaver})).first->rank == 0);  // it had a reason of its own
  stranded.told = true;
  for (int batch : {2, 4}) {  // whoever's end is seen first
    leaver.batch = batch, leaver.at_ns = batch * 1'000'000;
    CHECK(attribute(facts({stranded, leaver})).first->rank == 1);
    CHECK(attribute(facts({stranded, leaver})).status.code == 1);
  }
}

TEST_CASE("failure report: who never came to init() is the failure, not the first that threw") {
  RankEnd first = code(1, 3, 2), second = code(0, 4, 3), missing = killed(2, SIGTERM, 4, SIGTERM);
  first.told = second.told = true;
  JobFacts job = facts({first, second, missing});
  job.init_refused = "rank 2 did not call hvd::init() within 1 s";
  job.never_came = {2};
  const Verdict verdict = attribute(job);
  REQUIRE(verdict.first);
  CHECK(verdict.first->rank == 2);
  CHECK(verdict.status.code == 3);  // the thrower's
  CHECK(verdict.fallout.size() == 2);
  CHECK(report(verdict, job, {}) ==
        "hvdrun: only fallout: rank 1 exited with code 3, rank 0 exited with code 4\n"
        "hvdrun: rank 2 did not call hvd::init() within 1 s\n"
        "hvdrun: first failure: rank 2 (pid 102) on localhost was ended by hvdrun with SIGTERM "
        "after 1.234 s\n");
  // Its end is not known yet: what is known names it.
  job.ends.pop_back();
  CHECK(attribute(job).first->rank == 1);
  CHECK(attribute(job).why == "rank 2 did not call hvd::init() within 1 s");
}

TEST_CASE("failure report: a crash is its own cause, whoever did not come to init()") {
  RankEnd crashed = killed(1, SIGSEGV, 2), missing = killed(2, SIGTERM, 4, SIGTERM);
  crashed.told = true;
  JobFacts job = facts({crashed, missing});
  job.never_came = {2};
  CHECK(attribute(job).first->rank == 1);
  job.ends[0].status = SIGABRT;  // an exception that nobody caught
  CHECK(attribute(job).first->rank == 2);
  CHECK(attribute(job).status.code == 128 + SIGABRT);
  job.ends[0].told = false;  // it never waited in init(), or does not use libhvd
  CHECK(attribute(job).first->rank == 1);
}

TEST_CASE("failure report: who was waited for in vain in a collective is the failure") {
  RankEnd threw = code(0, 3, 2), missing = killed(2, SIGTERM, 4, SIGTERM);
  threw.told = true;
  threw.waited_in_vain = missing.waited_in_vain = "rank 0 waited 1 s for rank 2 in allreduce";
  threw.waited_for = missing.waited_for = {2};
  const JobFacts job = facts({threw, code(1, 3, 3), missing});
  const Verdict verdict = attribute(job);
  CHECK(verdict.first->rank == 2);
  CHECK(verdict.status.code == 3);
  CHECK(verdict.why == "rank 0 waited 1 s for rank 2 in allreduce");
  // One of those that were waited for fails by itself: no matter who is seen first.
  for (const int batch : {1, 2, 4}) {
    RankEnd itself = code(2, 9, batch);
    itself.waited_for = {2};
    const Verdict own = attribute(facts({threw, itself}));
    CHECK(own.first->rank == 2);
    CHECK(own.status.code == 9);
  }
}

TEST_CASE("failure report: of a rank that was given up on the reason is what broke the epoch") {
  RankEnd threw = code(0, 3, 2), stopped = killed(1, SIGKILL, 1);
  threw.told = true;
  stopped.given_up = "rank 0 waited 1 s for rank 1 in sum; rank 1 was stopped and was given up on";
  const auto expect_named = [&](const JobFacts& job) {
    const Verdict verdict = attribute(job);
    REQUIRE(verdict.first);
    CHECK(verdict.first->rank == 1);
    CHECK(verdict.why == stopped.given_up);
    CHECK(verdict.status.code == 128 + SIGKILL);
    CHECK(verdict.fallout.size() == 1);
  };
  expect_named(facts({threw, stopped}));
  // Whoever threw is heard of first: it leads to the one that it waited for.
  threw.batch = 0;
  threw.at_ns = 0;
  threw.waited_for = {1};
  threw.waited_in_vain = "rank 0 waited 1 s for rank 1 in sum";
  expect_named(facts({threw, stopped}));
}

TEST_CASE("failure report: who failed by itself is first, though who was told of it ended sooner") {
  RankEnd told = code(0, 1, 1);
  told.told = true;
  const Verdict verdict = attribute(facts({told, code(1, 7, 2)}));
  REQUIRE(verdict.first);
  CHECK(verdict.first->rank == 1);
  CHECK(verdict.status.code == 7);
  CHECK(verdict.fallout.size() == 1);
  CHECK(attribute(facts({told, code(1, 0, 2)})).first->rank == 0);
}

TEST_CASE("failure report: a link that was lost is told, and no rank is blamed for it") {
  RankEnd one = code(0, 3, 1), other = code(1, 4, 2);
  one.told = other.told = true;
  JobFacts job = facts({one, other});
  job.lost_link = "rank 1 on b lost its link to rank 0 on a (Connection reset by peer)";
  const Verdict verdict = attribute(job);
  CHECK_FALSE(verdict.first);
  CHECK(verdict.status.code == 3);
  CHECK(report(verdict, job, {}) ==
        "hvdrun: only fallout: rank 0 exited with code 3, rank 1 exited with code 4\n"
        "hvdrun: rank 1 on b lost its link to rank 0 on a (Connection reset by peer)\n");
  job.ends[1].told = false;  // who fails by itself is the failure all the same
  CHECK(attribute(job).first->rank == 1);
  job.ends[1] = code(1, 0, 2);
  job.ends[0].status = 0;  // whatever broke, the program got over it
  CHECK(attribute(job).status.code == 0);
  CHECK(report(attribute(job), job, {}).empty());
}

TEST_CASE(
    "failure report: the last line names the rank, its host, how and after how long it ended") {
  JobFacts job = facts({killed(1, SIGSEGV, 2), killed(0, SIGTERM, 3, SIGTERM)});
  job.ends[0].doing = "was in allreduce float32 [4] x (#12) for 2.1 s";
  const std::string text = report(attribute(job), job, {"one", "two"});
  CHECK(
      text ==
      "hvdrun: last lines of rank 1's stderr:\n"
      "  | one\n"
      "  | two\n"
      "hvdrun: only fallout: rank 0 was killed by SIGTERM\n"
      "hvdrun: rank 1 was in allreduce float32 [4] x (#12) for 2.1 s\n"
      "hvdrun: first failure: rank 1 (pid 101) on localhost was killed by SIGSEGV after 1.234 s\n");
}

TEST_CASE("failure report: a colour that a last line of a rank left on ends with that line") {
  const JobFacts job = facts({code(1, 3, 2)});
  CHECK_THAT(report(attribute(job), job, {"plain", "\033[31mred"}),
             Catch::Contains("  | plain\n  | \033[31mred\033[0m\nhvdrun: "));
}

TEST_CASE("failure report: who ended nobody knows how while others needed it is the failure") {
  JobFacts job = facts({code(1, 0, 2), code(0, 3, 3)});
  job.ends[0].unknown = job.ends[0].stranded_others = true;
  job.ends[1].told = true;
  const Verdict verdict = attribute(job);
  CHECK(verdict.first->rank == 1);
  CHECK(verdict.status.code == 1);
  CHECK_THAT(
      report(verdict, job, {}),
      Catch::Contains("rank 1 ended while other ranks needed it for a collective\n") &&
          Catch::Contains(" on localhost ended, nobody knows how (its parent process does)"));
}

TEST_CASE("failure report: nothing is said when all went well") {
  const JobFacts job = facts({code(0, 0, 1)}, EndCause::kNone);
  CHECK(report(attribute(job), job, {}).empty());
}

TEST_CASE("failure report: many that fell out are counted") {
  std::vector<RankEnd> ends = {code(0, 1, 1)};
  for (int rank = 1; rank < 20; ++rank) ends.push_back(killed(rank, SIGTERM, 2, SIGTERM));
  const JobFacts job = facts(ends);
  CHECK(report(attribute(job), job, {}).find("and 11 more") != std::string::npos);
}

TEST_CASE(
    "stderr tail: a line ends as it does in the output, and a progress bar is its last state") {
  using Lines = std::vector<std::string>;
  const auto lines_of = [](const std::string& text) {
    StderrTail tail;
    for (const char byte : text) tail.feed({&byte, 1});
    return tail.lines();
  };
  CHECK(lines_of("one\r\ntwo\n\nfour") == Lines{"one", "two", "", "four"});
  CHECK(lines_of("start\n1/3\r2/3\r3/3\rwhat()\r\nend\r") ==
        Lines{"start", "3/3", "what()", "end"});
  CHECK(lines_of("\r1/3\r2/3\r3/3 done\n\r1/2\r2/2\r") == Lines{"2/3", "3/3 done", "2/2"});
  std::string bar;
  for (int i = 0; i < 3000; ++i) bar += "\r" + std::to_string(i) + "/3000 it/s";
  CHECK(lines_of(bar + "\nRuntimeError: no\n") ==
        Lines{"2998/3000 it/s", "2999/3000 it/s", "RuntimeError: no"});
}

TEST_CASE("stderr tail: keeps the last twenty lines") {
  StderrTail tail;
  for (int i = 0; i < 100'000; ++i) tail.feed("line " + std::to_string(i) + "\n");
  const std::vector<std::string> lines = tail.lines();
  REQUIRE(lines.size() == 20);
  CHECK(lines.front() == "line 99980");
  CHECK(lines.back() == "line 99999");
}

TEST_CASE("stderr tail: once closed it takes nothing more, unless it was empty") {
  StderrTail tail;
  tail.close();
  tail.feed("of what it left\n");
  CHECK(tail.lines() == std::vector<std::string>{"of what it left"});
  tail.close();
  tail.feed("of what it left, later\n");
  CHECK(tail.lines() == std::vector<std::string>{"of what it left"});
}

TEST_CASE("stderr tail: a long line is cut between characters, says so, and costs no other") {
  constexpr size_t kMax = StderrTail::kLineBytesMax;
  const std::string whole(kMax, 'a'), umlaut = std::string(kMax - 1, 'b') + "\u00e4";
  std::string text = "before\nfirst\n";
  for (int i = 0; i < 16; ++i) text += whole + "\n";
  text += std::string(kMax + 1, 'c') + "\n" + umlaut + "\r\n" + std::string(1 << 20, 'd');
  StderrTail at_once, in_pieces;
  at_once.feed(text);
  for (size_t at = 0; at < text.size(); at += 999)
    in_pieces.feed(std::string_view(text).substr(at, 999));
  for (const StderrTail& tail : {at_once, in_pieces}) {
    const std::vector<std::string> lines = tail.lines();
    REQUIRE(lines.size() == 20);
    CHECK(lines[0] == "first");
    for (size_t i = 1; i <= 16; ++i) CHECK(lines[i] == whole);
    CHECK(lines[17] == std::string(kMax, 'c') + "... (cut: the line has 2049 bytes)");
    CHECK(lines[18] == std::string(kMax - 1, 'b') + "... (cut: the line has 2049 bytes)");
    CHECK(lines[19] == std::string(kMax, 'd') + "... (cut: the line has 1048576 bytes)");
  }
}

TEST_CASE("failure report: who cannot be ended is named and changes no status") {
  JobFacts job = facts({code(0, 3, 1)});
  job.size = 2;
  job.stuck = {{.rank = 1, .host = "gpu1", .pid = 71, .why = "it hangs"},
               {.host = "", .pid = 72, .why = "no"}};
  const Verdict verdict = attribute(job);
  CHECK(verdict.status.code == 3);
  CHECK(report(verdict, job, {})
            .find("hvdrun: rank 1 (pid 71) on gpu1 cannot be ended: it hangs\n"
                  "hvdrun: process 72, which a rank had started, cannot be ended: no\n") == 0);
  job.stuck.resize(10);
  CHECK(report(verdict, job, {}).find("hvdrun: and 2 more cannot be ended\n") != std::string::npos);
}

}  // namespace hvd
