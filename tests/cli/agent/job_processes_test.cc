// All processes below an agent: who gets which signal when, who is stopped, and the proof that
// nobody is left. The test is the agent: a subreaper with real children.
#include "cli/agent/job_processes.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "cli/agent/descendants.h"
#include "cli/pipe.h"
#include "cli/subprocess.h"
#include "tests/support/catch.h"
#include "tests/support/few_descriptors.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

// Ends and kills whatever a test leaves.
struct Job {
  Job()
      : processes({[this](pid_t pid) { return pid == own; },
                   [this](pid_t pid, int status) { reaped[pid] = status; },
                   [this](pid_t pid, int signal) {
                     ++signals;
                     signalled[pid].push_back(signal);
                     if (before_signal) before_signal(pid);
                   },
                   [this] { told_after.push_back(signals); }}) {
    REQUIRE(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
  }
  ~Job() { end_descendants(20s, nullptr); }

  // Returns once the script has said "up" as often as it should.
  pid_t start(const std::string& script, int ups = 1) {
    Pipe out = make_pipe();
    SpawnOptions options;
    options.argv = {"sh", "-c", script};
    options.path = "/usr/bin:/bin";
    options.environment = environ;
    options.stdout_fd = out.write.get();
    options.new_session = true;
    const SpawnResult result = spawn(options);
    REQUIRE(result.pid > 0);
    out.write.reset();
    processes.note_started();
    for (char letters[3]; ups > 0; --ups) {
      pollfd one{out.read.get(), POLLIN, 0};
      REQUIRE(poll(&one, 1, 60'000) == 1);
      REQUIRE(read(out.read.get(), letters, 3) == 3);
    }
    return result.pid;
  }

  // What the agent's loop does, until nobody is left.
  bool run(std::chrono::milliseconds limit = 60s) {
    for (const Deadline deadline = Deadline::in(limit); !deadline.passed();) {
      processes.reap_orphans();
      if (processes.nothing_left()) return true;
      processes.advance(Clock::now());
      poll(nullptr, 0, 1);
    }
    return false;
  }

  size_t alive() const {
    size_t count = 0;
    for (const Descendant& one : descendants(getpid())) count += one.alive;
    return count;
  }
  size_t sleepers() const {
    size_t count = 0;
    for (const Descendant& one : descendants(getpid())) {
      std::ifstream file("/proc/" + std::to_string(one.pid) + "/comm");
      std::string name;
      count += file >> name && name == "sleep";
    }
    return count;
  }
  size_t stopped() const {
    size_t count = 0;
    for (const Descendant& one : descendants(getpid())) count += one.stopped();
    return count;
  }
  bool ever(const std::function<bool()>& done) const {
    for (const Deadline limit = Deadline::in(60s); !done(); poll(nullptr, 0, 1))
      if (limit.passed()) return false;
    return true;
  }

  pid_t own = 0;  // a worker: reaped by the test
  std::map<pid_t, int> reaped;
  std::map<pid_t, std::vector<int>> signalled;
  size_t signals = 0;
  std::vector<size_t> told_after;  // so many signals: what ranks left gets the next
  std::function<void(pid_t)> before_signal;
  JobProcesses processes;
};

// A worker, a child of a session of its own, and an orphan.
const char* const kFamily =
    "setsid sh -c 'echo up; exec sleep 300' & (sh -c 'echo up; exec sleep 300' &); echo up; "
    "exec sleep 300";
const char* const kStubborn =
    "trap '' TERM; setsid sh -c 'echo up; sleep 300; :' & echo up; sleep 300; :";

}  // namespace

TEST_CASE("job processes: what ranks left gets no signal before that is told") {
  Job job;
  job.own = job.start(kFamily, 3);
  REQUIRE(job.ever([&] { return job.sleepers() == 3 && job.alive() == 3; }));
  job.processes.begin_end({{0ms, SIGCONT, StopFor::kRanks}, {60s, SIGKILL}}, Clock::now());
  CHECK(job.told_after.empty());
  const size_t before = job.signals;
  CHECK(before > 0);
  job.processes.begin_end({{0ms, SIGTERM, StopFor::kLeftovers}, {0ms, SIGKILL}}, Clock::now());
  REQUIRE(!job.told_after.empty());
  CHECK(job.told_after.front() == before);
  CHECK(job.signals > before);
}

TEST_CASE("job processes: a signal reaches all that workers started, wherever they went") {
  Job job;
  const pid_t shell = job.start(kFamily, 3);
  REQUIRE(job.ever([&] { return job.sleepers() == 3 && job.alive() == 3; }));
  job.processes.begin_end(planned_end(SIGTERM, 60s), Clock::now());
  REQUIRE(job.run());
  CHECK(job.signalled.size() == 3);
  for (const auto& [pid, signals] : job.signalled) CHECK(signals == std::vector<int>{SIGTERM});
  REQUIRE(job.reaped.contains(shell));
  CHECK(WTERMSIG(job.reaped[shell]) == SIGTERM);
  CHECK(job.alive() == 0);
}

TEST_CASE("job processes: who moves because its parent ends gets its signal where it is then") {
  Job job;
  const pid_t shell = job.start("setsid sh -c 'echo up; exec sleep 300' & echo up; wait", 2);
  REQUIRE(job.ever([&] { return job.sleepers() == 1; }));
  const pid_t sleeper = descendants(shell).at(0).pid;
  job.before_signal = [&](pid_t pid) {
    if (pid != sleeper || kill(shell, SIGKILL) != 0) return;
    CHECK(job.ever([&] { return descendants(shell).empty(); }));
  };
  job.processes.begin_end(planned_end(SIGTERM, 5s), Clock::now());
  REQUIRE(job.run());
  CHECK(WTERMSIG(job.reaped[sleeper]) == SIGTERM);
  CHECK(job.signalled[sleeper] == std::vector<int>{SIGTERM});
}

TEST_CASE("job processes: after a failure TERM goes to ranks first, to what others left later") {
  Job job;
  job.own = job.start(kFamily, 3);
  REQUIRE(job.ever([&] { return job.sleepers() == 3 && job.alive() == 3; }));
  const TimePoint now = Clock::now();
  job.processes.begin_end(failure_end(60s, 0ms), now);
  CHECK(job.signalled.size() == 2);
  CHECK(job.signalled[job.own] == std::vector<int>{SIGTERM});
  REQUIRE(job.ever([&] { return job.alive() == 1; }));
  REQUIRE(waitpid(job.own, nullptr, 0) == job.own);
  job.own = 0;
  job.processes.hurry(now);
  CHECK(*job.processes.next_deadline(now) == now + kLeftoversWhile);
  job.processes.advance(now + kLeftoversWhile - 1ms);
  CHECK(job.signalled.size() == 2);
  job.processes.advance(now + kLeftoversWhile);
  CHECK(job.signalled.size() == 3);
  for (const auto& [pid, signals] : job.signalled) CHECK(signals == std::vector<int>{SIGTERM});
  CHECK(job.run());
}

TEST_CASE("job processes: all are found, stopped and ended when no descriptor is left") {
  Job job;
  const pid_t shell = job.start(kStubborn, 2);
  {
    const FewDescriptors none(0);
    REQUIRE(descendants(getpid()).empty());
    CHECK(job.processes.all().size() >= 2);
    job.processes.suspend();
    job.processes.resume();
    job.processes.begin_end(planned_end(SIGTERM, 100ms), Clock::now());
    CHECK(job.run(20s));
    CHECK(open("/dev/null", O_RDONLY | O_CLOEXEC) < 0);  // it has taken its own back
  }
  CHECK(job.signalled[shell] == std::vector<int>{SIGTERM, SIGKILL});
  CHECK(job.alive() == 0);
}

TEST_CASE("job processes: who ignores the first signal is killed when the grace is over") {
  Job job;
  const pid_t shell = job.start(kStubborn, 2);
  job.processes.begin_end(planned_end(SIGTERM, 100ms), Clock::now());
  REQUIRE(job.run());
  CHECK(job.signalled[shell] == std::vector<int>{SIGTERM, SIGKILL});
  CHECK(WTERMSIG(job.reaped[shell]) == SIGKILL);
}

TEST_CASE(
    "job processes: given up on is the end some time after KILL went out, not after the plan") {
  Job job;
  job.start(kStubborn, 2);
  const TimePoint now = Clock::now();
  job.processes.begin_end(planned_end(SIGTERM, 100ms), now);
  CHECK_FALSE(job.processes.gave_up(now + 1000s));  // the agent itself may have been stopped
  job.processes.advance(now + 1000s);
  CHECK_FALSE(job.processes.gave_up(now + 1019s));
  CHECK(job.processes.gave_up(now + 1020s + (Clock::now() - now)));
  CHECK(job.run());
  CHECK(job.processes.all().empty());
}

TEST_CASE("job processes: only dead ones are left once all were dead before the last walk") {
  const auto one = [](pid_t pid, bool alive) {
    Descendant process;
    process.pid = pid;
    process.alive = alive;
    process.state = alive ? 'S' : 'Z';
    return process;
  };
  OnlyDead only_dead;
  CHECK_FALSE(only_dead.see({}));  // no proof: without descriptors a walk sees nobody
  CHECK_FALSE(only_dead.see({one(1, false), one(2, true)}));
  CHECK_FALSE(only_dead.see({one(1, false), one(2, false)}));
  CHECK_FALSE(only_dead.see({one(1, false), one(2, false), one(3, false)}));
  CHECK(only_dead.see({one(1, false), one(3, false)}));
  CHECK_FALSE(only_dead.see({one(1, false), one(4, true)}));
  Descendant gone;  // while the walk went on: what it left may have been missed
  gone.pid = 5;
  gone.alive = false;
  CHECK_FALSE(only_dead.see({gone}));
  CHECK_FALSE(only_dead.see({gone}));
  CHECK_FALSE(only_dead.see({}));
}

TEST_CASE("job processes: why one is not ended is said by what /proc shows") {
  const auto why = [](bool alive, char state, bool may_signal = true) {
    Descendant process;
    process.pid = 71;
    process.alive = alive;
    process.state = state;
    return why_not_ended(process, may_signal);
  };
  CHECK(why(true, 'D').find("uninterruptible wait (state D)") != std::string::npos);
  CHECK(why(true, 'D').find("/proc/71/task") != std::string::npos);
  CHECK(why(true, '?').find("hides its state") != std::string::npos);
  CHECK(why(true, 'S', false).find("another user's") != std::string::npos);
  CHECK(why(false, 'Z').find("traces it") != std::string::npos);
  CHECK(why(true, 'Z').find("does not die of SIGKILL (state Z)") != std::string::npos);
}

TEST_CASE("job processes: a stopped one gets its signal too") {
  Job job;
  const pid_t shell = job.start("trap 'exit 7' TERM; echo up; kill -STOP $$; sleep 300");
  REQUIRE(job.ever([&] { return job.stopped() == 1; }));
  job.processes.begin_end(planned_end(SIGTERM, 60s), Clock::now());
  REQUIRE(job.run());
  CHECK(WEXITSTATUS(job.reaped[shell]) == 7);
}

TEST_CASE("job processes: a second plan makes the end sooner or changes nothing") {
  Job job;
  job.start(kStubborn, 2);
  const TimePoint now = Clock::now();
  job.processes.begin_end(planned_end(SIGTERM, 1000s), now);
  const auto kill_at = job.processes.next_deadline(now);
  REQUIRE(kill_at);
  CHECK(*kill_at == now + 1000s);
  job.processes.begin_end(planned_end(SIGINT, 2000s), now + 1s);
  CHECK(job.processes.next_deadline(now) == kill_at);
  job.processes.begin_end(planned_end(SIGKILL, {}), now + 2s);
  REQUIRE(job.run());
}

TEST_CASE("job processes: what ignores an interrupt is not waited for once the ranks are gone") {
  Job job;
  job.start("trap '' INT; echo up; sleep 300; :");
  const TimePoint now = Clock::now();
  job.processes.begin_end(planned_end(SIGINT, 1000s), now);
  CHECK(*job.processes.next_deadline(now) == now + 500s);
  job.processes.hurry(now);
  CHECK(job.run());
}

TEST_CASE(
    "job processes: suspended are all, and continued are those that were not stopped before") {
  Job job;
  job.start(kFamily, 3);
  const pid_t sleeper = job.start("echo up; kill -STOP $$; sleep 300; :");
  REQUIRE(job.ever([&] { return job.stopped() == 1 && job.sleepers() == 3 && job.alive() == 4; }));
  job.processes.suspend();
  CHECK(job.processes.suspended());
  CHECK(job.stopped() == 4);
  job.processes.resume();
  CHECK(job.ever([&] { return job.stopped() == 1; }));
  for (const Descendant& one : descendants(getpid()))
    if (one.stopped()) CHECK(one.pid == sleeper);
  job.processes.suspend();
  job.processes.begin_end(planned_end(SIGTERM, 60s), Clock::now());  // ends also what is suspended
  CHECK_FALSE(job.processes.suspended());
  CHECK(job.run());
}

TEST_CASE("job processes: continued is also whose parent ends as it is continued") {
  Job job;
  const pid_t shell = job.start("setsid sh -c 'echo up; exec sleep 300' & echo up; wait", 2);
  REQUIRE(job.ever([&] { return job.sleepers() == 1; }));
  job.processes.suspend();
  REQUIRE(job.stopped() == 2);
  kill(shell, SIGTERM);
  job.processes.resume();
  CHECK(job.ever([&] { return job.sleepers() == 1 && job.stopped() == 0; }));
  job.processes.begin_end(planned_end(SIGTERM, 60s), Clock::now());
  CHECK(job.run());
}

TEST_CASE("job processes: a worker's end is left to its owner, and those behind it wait") {
  Job job;
  job.own = job.start("echo up; exit 3");
  siginfo_t info{};
  REQUIRE(waitid(P_PID, id_t(job.own), &info, WEXITED | WNOWAIT) == 0);
  job.processes.reap_orphans();
  CHECK(job.processes.orphans_due());
  CHECK(job.reaped.empty());
  REQUIRE(waitpid(job.own, nullptr, 0) == job.own);
  job.processes.reap_orphans();
  CHECK_FALSE(job.processes.orphans_due());
  CHECK(job.processes.nothing_left());
}

TEST_CASE("job processes: a loop of forks that ignores the signal does not outrun its end") {
  Job job;
  job.start("trap '' TERM; echo up; while :; do setsid sleep 300 & sleep 0.01; done");
  job.processes.begin_end(planned_end(SIGTERM, 200ms), Clock::now());
  REQUIRE(job.run());
  CHECK(job.alive() == 0);
}

TEST_CASE("job processes: however late it is, one walk stops all but who is spared") {
  Job job;
  const pid_t spared = job.start("echo up; exec sleep 300");
  job.start(kFamily, 3);
  stop_descendants(Deadline::in(-1s), [&](pid_t child) { return child == spared; });
  CHECK(job.ever([&] { return job.stopped() == 3; }));
  CHECK(job.alive() == 4);
}

}  // namespace hvd
