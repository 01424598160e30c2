// When an agent is over: its keeper is gone, what it said has been heard, and of a host that was
// cut off it is known that nothing runs there any more.
#include "cli/host_agent.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include "cli/pipe.h"
#include "cli/ssh/ssh_words.h"
#include "tests/support/catch.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint kBegin{1h};
constexpr pid_t kProcess = 71;

int exited(int code) { return code << 8; }  // as waitpid() has it

// An agent as hvdrun sees it; the test has the other ends.
struct There {
  explicit There(bool remote) {
    AgentChannels channels;
    Pipe out = make_pipe(), err = make_pipe(), in = make_pipe();
    set_nonblocking(out.read.get());
    set_nonblocking(err.read.get());
    channels.lease = std::move(in.write);
    channels.output = std::move(out.read);
    channels.words = std::move(err.read);
    lease = std::move(in.read);
    output = std::move(out.write);
    words = std::move(err.write);
    Host host;
    host.name = "a";
    host.remote = remote;
    agent.emplace(0, host, loop, std::move(channels),
                  AgentPipes::Callbacks{[](std::string_view) {}, [](std::string_view) {}}, buffer,
                  60s);
  }

  void attach() { agent->attach(server, 1, kProcess); }

  void close_channels() {
    output.reset();
    words.reset();
    while (!agent->pipes().drained()) loop.turn(Clock::now() + 1s);
  }

  Loop loop;
  std::vector<char> buffer;
  RendezvousServer server;
  UniqueFd lease, output, words;
  std::optional<HostAgent> agent;
};

}  // namespace

TEST_CASE("host agent: is over once its keeper is gone, its stream closed and its channels empty") {
  There there(false);
  HostAgent& agent = *there.agent;
  there.attach();
  there.close_channels();
  agent.close_control();
  CHECK_FALSE(agent.silenced(kBegin + 1h));
  CHECK_FALSE(agent.over_at());
  agent.note_keeper_end(exited(0), kBegin);
  CHECK(agent.silenced(kBegin));
  CHECK(agent.over(kBegin));
  CHECK(agent.keeper_ended());
  CHECK_FALSE(agent.cut_off());
}

TEST_CASE("host agent: who holds its channels or its stream open is waited for a second") {
  There there(false);
  HostAgent& agent = *there.agent;
  there.attach();
  agent.note_keeper_end(exited(0), kBegin);
  CHECK_FALSE(agent.silenced(kBegin + 999ms));
  CHECK(agent.over_at() == kBegin + 1s);
  CHECK(agent.silenced(kBegin + 1s));
  CHECK(agent.over(kBegin + 1s));

  // What is in them comes out first.
  REQUIRE(write(there.output.get(), "x", 1) == 1);
  CHECK(agent.silenced(kBegin + 1s));
  CHECK_FALSE(agent.over(kBegin + 1h));
  agent.pipes().pause_output();
  CHECK_FALSE(agent.over(kBegin + 1h));
  CHECK_FALSE(agent.over_at());
}

TEST_CASE("host agent: a host that was cut off is not over before its agent has ended itself") {
  There there(true);
  HostAgent& agent = *there.agent;
  there.attach();
  agent.heard(kBegin);
  there.close_channels();
  agent.close_control();
  agent.note_keeper_end(exited(kExitSshFailed), kBegin + 3s);
  agent.heard(kBegin + 4s);  // it was told to end by then
  CHECK(agent.cut_off());
  CHECK(agent.safe_at() == kBegin + 11s);
  CHECK(agent.over_at() == kBegin + 11s);
  CHECK_FALSE(agent.over(kBegin + 10'999ms));
  CHECK(agent.over(kBegin + 11s));

  SECTION("but its keeper's words tell that nobody is left") {
    agent.note_words("keeper: the agent (pid 71) was killed by SIGKILL; ended 2 processes");
    CHECK_FALSE(agent.cut_off());
    CHECK(agent.how_ended() == "it was killed by SIGKILL");
    CHECK(agent.over(kBegin + 3s));
  }
  SECTION("another agent's keeper tells nothing") {
    agent.note_words("keeper: the agent (pid 72) was killed by SIGKILL");
    CHECK(agent.cut_off());
    CHECK(agent.how_ended().empty());
  }
  SECTION("nor is it cut off where the host itself says so") {
    agent.note_nobody_left();
    CHECK_FALSE(agent.safe_at());
    CHECK(agent.over(kBegin + 3s));
  }
}

TEST_CASE("host agent: what an end of ssh tells depends on whether ranks may run there") {
  struct {
    bool attached, last_word;
    int code;
    bool cut;
  } const cases[] = {
      {false, false, kExitSshFailed, true},  // it never came there, or did
      {false, false, 1, false},              // the remote shell's
      {true, false, 0, false},               // a keeper's
      {true, false, 1, true},                // maybe a wrapper's for a failure
      {true, false, kExitSshFailed, true},
      {true, true, kExitSshFailed, false},  // the agent had said that all is over
  };
  for (const auto& one : cases) {
    CAPTURE(one.attached, one.last_word, one.code);
    There there(true);
    if (one.attached) there.attach();
    if (one.last_word) there.agent->note_end(0);
    there.agent->note_keeper_end(exited(one.code), kBegin);
    CHECK(there.agent->cut_off() == one.cut);
    CHECK(there.agent->safe_at().has_value() == (one.cut && one.attached));
  }
}

TEST_CASE("host agent: output that its last word told of is missing until it has come") {
  There there(true);
  HostAgent& agent = *there.agent;
  agent.note_output(10, kBegin);
  CHECK(agent.missing_output() == 0);  // nothing was told yet
  agent.note_end(25);
  CHECK(agent.missing_output() == 15);
  agent.note_output(15, kBegin);
  CHECK(agent.missing_output() == 0);
  agent.note_output(1, kBegin);
  CHECK(agent.missing_output() == 0);

  There liar(true);
  liar.agent->note_end(-1);
  CHECK(liar.agent->missing_output() == 0);
  liar.agent->note_end(INT64_MAX);
  CHECK(liar.agent->missing_output() == int64_t{1} << 50);
}

TEST_CASE("host agent: more output may be on its way while some is unread, or came just now") {
  There there(true);
  HostAgent& agent = *there.agent;
  CHECK_FALSE(agent.sends(kBegin));
  agent.note_output(10, kBegin);
  CHECK(agent.sends(kBegin + 199ms));
  CHECK_FALSE(agent.sends(kBegin + 200ms));
  REQUIRE(write(there.output.get(), "x", 1) == 1);
  CHECK(agent.sends(kBegin + 1h));
}

}  // namespace hvd
