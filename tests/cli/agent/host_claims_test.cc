// Sockets that are no rank's: refused, cut off, and not kept without limit.
#include <sys/mman.h>
#include <unistd.h>

#include "cli/agent/host_memory.h"
#include "hvd/error.h"
#include "rendezvous/agent_socket.h"
#include "runtime/base/status_page.h"
#include "runtime/base/wake_fd.h"
#include "tests/cli/agent/bare_rank.h"
#include "tests/support/catch.h"
#include "tests/support/host_job.h"
#include "tests/support/rank_program.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

// Counts itself, and what it throws lands on the board.
int begin_again(const std::function<void(Peers&)>& then) {
  try {
    AgentPeers peers(connect_to_agent());
    ++rank_board().numbers[0];
    then(peers);
    leave(peers);
    return 0;
  } catch (const Error& error) {
    rank_board().write(error.what());
    return 3;
  }
}

void become_next() {
  execl("/proc/self/exe", "test", "--rank-program", "the next program", nullptr);
}

const RankProgram next_program("the next program", [] { return begin_again([](Peers&) {}); });
const RankProgram leaves_and_executes("leave and exec", [] {
  return begin_again([](Peers& peers) {
    leave(peers);
    become_next();
  });
});
const RankProgram deserts_and_executes("exec without leaving",
                                       [] { return begin_again([](Peers&) { become_next(); }); });

}  // namespace

TEST_CASE("host memory: a program that replaces itself by exec may claim anew once it has left") {
  HostJob left({.ranks = 2, .program = "leave and exec"});
  REQUIRE(left.run());
  INFO(left.describe());
  for (int i = 0; i < 2; ++i) CHECK((left.rank(i).status == 0 && left.board(i).numbers[0] == 2));
  CHECK(left.warnings().empty());

  HostJob deserted({.ranks = 1, .program = "exec without leaving"});
  REQUIRE(deserted.run());
  CHECK_THAT(deserted.board(0).text,
             Catch::Contains("claims rank 0, but its program has replaced itself by exec without "
                             "hvd::shutdown()"));
}

TEST_CASE("host memory: who does not begin with a claim is refused and cut off") {
  Loop loop;
  std::vector<std::string> warnings;
  HostMemory memory(loop, {.slots = 1},
                    {.warn = [&](const std::string& text) { warnings.push_back(text); }});
  AgentSocket socket(connect_to(AgentAddress::parse(memory.address(0)).name));
  AgentMessage wish;
  wish.kind = AgentMessage::kWantEpoch;
  socket.send(wish);
  std::optional<AgentMessage> answer;
  const Deadline deadline = Deadline::in(30s);
  while (!(answer = socket.receive()) && !deadline.passed()) loop.turn(Clock::now() + 10ms);
  REQUIRE(answer);
  CHECK(answer->kind == AgentMessage::kRefused);
  CHECK_THAT(answer->text(), Catch::Contains("did not begin with one claim"));
  CHECK(warnings.size() == 1);
  while (!socket.ended() && !deadline.passed()) {
    loop.turn(Clock::now() + 1ms);
    socket.receive();
  }
  CHECK(socket.ended());
}

TEST_CASE("host memory: a rank whose stores do not arrive is told so, and starts no epoch") {
  const bool shares = GENERATE(false, true);
  Loop loop;
  bool wanted = false;
  HostMemory memory(loop, {.slots = 1},
                    {.epoch_wanted = [&](const std::vector<int>&, bool) { wanted = true; }});
  memory.started(0, getpid());
  AgentSocket socket(connect_to(AgentAddress::parse(memory.address(0)).name));
  const Deadline deadline = Deadline::in(30s);
  const auto turn_until = [&](const auto& done) {
    while (!done() && !deadline.passed()) loop.turn(Clock::now() + 10ms);
  };
  AgentMessage message;
  message.kind = AgentMessage::kClaim;
  socket.send(message);
  std::optional<AgentMessage> answer;
  turn_until([&] { return (answer = socket.receive()).has_value(); });
  REQUIRE(answer);
  REQUIRE(answer->kind == AgentMessage::kClaimed);
  // A private mapping reads what the agent stores, too.
  void* const mapped = mmap(nullptr, sizeof(StatusPage), PROT_READ | PROT_WRITE,
                            shares ? MAP_SHARED : MAP_PRIVATE, answer->fds.at(0).get(), 0);
  REQUIRE(mapped != MAP_FAILED);
  static_cast<StatusPage*>(mapped)->shown = 7;
  message.kind = AgentMessage::kWantEpoch;
  message.value = 7;
  socket.send(message);
  turn_until([&] { return wanted || (answer = socket.receive()).has_value(); });
  munmap(mapped, sizeof(StatusPage));
  CHECK(wanted == shares);
  if (shares) return;
  REQUIRE(answer);
  CHECK(answer->kind == AgentMessage::kRefused);
  CHECK(answer->value == static_cast<int64_t>(ErrorCode::kUnavailable));
  CHECK_THAT(answer->text(), Catch::StartsWith("rank 0 (process " + std::to_string(getpid()) +
                                               ") runs on the host of its agent, but they share "
                                               "no memory: "));
}

TEST_CASE("host memory: connections that say nothing are not kept without limit") {
  Loop loop;
  HostMemory memory(loop, {.slots = 1}, {});
  const std::string name = AgentAddress::parse(memory.address(0)).name;
  std::vector<AgentSocket> silent;
  for (int i = 0; i < 200; ++i) {
    silent.emplace_back(connect_to(name));
    loop.turn(Clock::now());
  }
  int open = 0;
  for (AgentSocket& one : silent) {
    one.receive();
    open += !one.ended();
  }
  CHECK(open <= 1 + 64);
}

TEST_CASE("host memory: strangers who come without a pause leave the loop to others") {
  Loop loop;
  HostMemory memory(loop, {.slots = 1, .user = getuid() + 1}, {});
  const std::string name = AgentAddress::parse(memory.address(0)).name;
  std::vector<AgentSocket> crowd;  // all of them are there before the first is accepted
  for (int i = 0; i < 100; ++i) crowd.emplace_back(connect_to(name));
  const auto refused = [&] {
    long count = 0;
    for (AgentSocket& one : crowd) {
      if (!one.ended()) one.receive();
      count += one.ended();
    }
    return count;
  };
  WakeFd others;
  others.wake();
  int served = 0;
  loop.watch(others.get(), EPOLLIN, [&](uint32_t) { ++served; });
  int turns = 0;
  const Deadline deadline = Deadline::in(30s);
  for (long before = 0, now = 0; now < 100 && !deadline.passed(); before = now, ++turns) {
    loop.turn(memory.deadline());
    now = refused();
    REQUIRE(now - before <= 16);
    if (now - before == 16) CHECK(memory.deadline());  // then it rests
    memory.tick(Clock::now());
  }
  CHECK(refused() == 100);
  CHECK(served == turns);
  CHECK(turns >= 7);
  loop.unwatch(others.get());
}
