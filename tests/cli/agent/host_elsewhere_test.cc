// An epoch with ranks on other hosts: what this host's agent tells their agents, and what follows
// from what is heard of them. The other hosts are the test's own words.
#include <signal.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cli/agent/host_memory.h"
#include "runtime/agent_peers.h"
#include "runtime/base/error.h"
#include "tests/cli/agent/bare_rank.h"
#include "tests/support/catch.h"
#include "tests/support/host_job.h"
#include "tests/support/rank_program.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

enum Number { kReached, kQuiet, kReason, kDead, kStood, kStands, kMayEnd, kMachineRanks };

// Until the epoch breaks; then notes why, and which ranks of the world are called dead.
void survive(Peers& peers) {
  ControlBlock& block = peers.block();
  RankWords& mine = block.rank(peers.world().local_rank);
  rank_board().numbers[kReached] = 1;
  wait_for(peers, [&] { return block.trouble != 0; });
  peers.report_broken();
  mine.seen = block.trouble.load();
  rank_board().numbers[kStood] = block.clock < 0;
  mine.quiet = 1;
  rank_board().numbers[kQuiet] = 1;
  while (rank_board().numbers[kMayEnd] == 0) poll(nullptr, 0, 1);
  rank_board().numbers[kStands] = block.clock < 0;
  rank_board().numbers[kReason] = block.reason & 0xff;
  rank_board().numbers[kMachineRanks] = block.machine_ranks;
  for (int rank = 0; rank < peers.world().size; ++rank)
    rank_board().numbers[kDead] |= int64_t{block.fate(rank).dead} << rank;
  rank_board().write(block.elsewhere);
}

const RankProgram survivor("survive elsewhere", [] {
  AgentPeers peers(connect_to_agent());
  survive(peers);
  return 0;
});

const RankProgram leaver("leave elsewhere", [] {
  AgentPeers peers(connect_to_agent());
  leave(peers);
  return 0;
});

const RankProgram deserter("desert elsewhere", [] {
  AgentPeers peers(connect_to_agent());
  rank_board().numbers[kReached] = 1;
  while (rank_board().numbers[kMayEnd] == 0) poll(nullptr, 0, 1);
  return 0;
});

// Local rank 0 has waited in vain for three ranks of the world, one of them here.
const RankProgram waiter("wait for others", [] {
  AgentPeers peers(connect_to_agent());
  if (peers.world().local_rank == 0)
    raise_trouble(peers, TroubleReason::kTimeout, "rank 2 waited 1 s", std::vector{0, 3, 4});
  survive(peers);
  return 0;
});

const RankProgram linkless("lose link", [] {
  AgentPeers peers(connect_to_agent());
  if (peers.world().local_rank == 0)
    raise_trouble(peers, TroubleReason::kLostLink, "rank 2 lost its link to rank 0",
                  std::vector{0});
  survive(peers);
  return 0;
});

const RankProgram asker("ask elsewhere", [] {
  AgentPeers peers(connect_to_agent());
  rank_board().numbers[kReached] = 1;
  try {
    const Bytes value = peers.store().get("key", Deadline::in(60s));
    rank_board().write(std::string(reinterpret_cast<const char*>(value.data()), value.size()));
  } catch (const Error& error) {
    rank_board().write(error.what());
  }
  leave(peers);
  return 0;
});

// Ranks 2 and 3 of 5 are here. By rank of the world, they were started as 20 to 24.
class Here {
 public:
  explicit Here(const std::string& program) {
    HostJobOptions options;
    options.program = program;
    options.memory.ranks = {22, 23};
    options.memory.machine_ranks = 4;
    options.memory.grace = 30s;  // nobody is given up on
    options.epoch_wanted = [this](const std::vector<int>&, bool all) {
      if (!all || std::exchange(started_, true)) return;
      std::vector<EpochMember> members(2);
      for (int i = 0; i < 2; ++i) {
        members[size_t(i)].slot = i;
        World& world = members[size_t(i)].world;
        world.epoch = 3;
        world.rank = 2 + i;
        world.size = 5;
        world.local_rank = i;
        world.local_size = 2;
      }
      job_->memory().start_epoch(members, std::vector{20, 21, 22, 23, 24});
    };
    options.add_events = [this](HostMemoryEvents& events) {
      events.died = [this](uint32_t epoch, int slot) {
        CHECK(epoch == 3);
        died.push_back(slot);
      };
      events.store_asked = [this](int slot, const AgentMessage& question) {
        CHECK(question.epoch == 3);
        CHECK(question.kind == AgentMessage::kStoreGet);
        CHECK(question.key == "key");
        CHECK((question.value > 0 && question.value <= 60'000));
        asked.emplace_back(slot, question.id);
      };
      events.broken = [this](const Breakage& breakage) { broken.push_back(breakage); };
    };
    job_ = std::make_unique<HostJob>(std::move(options));
  }

  HostJob& job() { return *job_; }
  HostMemory& memory() { return job_->memory(); }
  void wait_until_there() {
    REQUIRE(job_->run_until(
        [&] { return job_->board(0).numbers[kReached] && job_->board(1).numbers[kReached]; }));
  }
  bool quiet(int i) { return job_->board(i).numbers[kQuiet] != 0; }
  bool all_quiet() { return quiet(0) && quiet(1); }
  void end() {
    for (int i = 0; i < 2; ++i) job_->board(i).numbers[kMayEnd] = 1;
    REQUIRE(job_->run());
  }

  std::vector<int> died;
  std::vector<std::pair<int, uint32_t>> asked;
  std::vector<Breakage> broken;

 private:
  std::unique_ptr<HostJob> job_;
  bool started_ = false;
};

}  // namespace

TEST_CASE("host elsewhere: a death on another host is a word and trouble here") {
  Here here("survive elsewhere");
  here.wait_until_there();
  here.memory().hear_of_deaths(2, std::vector{20});      // of another epoch
  here.memory().hear_of_deaths(4, std::vector{20});      // likewise
  here.memory().hear_of_deaths(3, std::vector{22, 77});  // one is here, one nobody's
  CHECK_FALSE(here.job().run_until([&] { return here.quiet(0) || here.quiet(1); }, 100ms));
  here.memory().hear_of_deaths(3, std::vector{24, 21});
  here.memory().hear_of_deaths(3, std::vector{20});
  REQUIRE(here.job().run_until([&] { return here.all_quiet(); }));
  here.end();
  INFO(here.job().describe());
  for (int i = 0; i < 2; ++i) {
    CHECK(here.job().rank(i).status == 0);
    CHECK(here.job().board(i).numbers[kReason] == int(TroubleReason::kElsewhere));
    CHECK(here.job().board(i).numbers[kDead] == 0b10011);
    CHECK(here.job().board(i).numbers[kMachineRanks] == 4);
    CHECK(std::string(here.job().board(i).text) == "rank 4 died");
    CHECK(here.job().rank(i).given_up.empty());
  }
  CHECK(here.broken.empty());  // what was heard is not told again
}

TEST_CASE("host elsewhere: why it broke elsewhere is said here, and the first reason stays") {
  Here here("survive elsewhere");
  here.wait_until_there();
  here.memory().hear_of_trouble({2, "of another epoch", {}});
  here.memory().hear_of_trouble({3, "rank 0 waited 1 s for rank 2", {22}});
  here.memory().hear_of_trouble({3, "rank 1 waited 1 s for rank 4", {24}});
  here.memory().hear_of_deaths(3, std::vector{24});
  REQUIRE(here.job().run_until([&] { return here.all_quiet(); }));
  const RankFacts facts = here.memory().facts(1);
  CHECK(facts.waited_in_vain == "rank 0 waited 1 s for rank 2");
  CHECK(facts.waited_for == std::vector{22});
  here.end();
  for (int i = 0; i < 2; ++i)
    CHECK(std::string(here.job().board(i).text) == "rank 0 waited 1 s for rank 2");
}

TEST_CASE("host elsewhere: whoever breaks the epoch off here is told with its words") {
  Here here("wait for others");
  REQUIRE(here.job().run_until([&] { return here.all_quiet(); }));
  REQUIRE(here.broken.size() == 1);
  CHECK(here.broken[0].epoch == 3);
  CHECK(here.broken[0].reason == "rank 2 waited 1 s");
  CHECK(here.broken[0].waited_for == std::vector{20, 23, 24});
  CHECK_FALSE(here.broken[0].lost_link);
  CHECK(here.memory().facts(0).waited_for == std::vector{20, 23, 24});
  here.end();
  CHECK(here.broken.size() == 1);
}

TEST_CASE("host elsewhere: a link that was lost is told, and nobody is blamed for it") {
  Here here("lose link");
  REQUIRE(here.job().run_until([&] { return here.all_quiet(); }));
  REQUIRE(here.broken.size() == 1);
  CHECK(here.broken[0].reason == "rank 2 lost its link to rank 0");
  CHECK(here.broken[0].lost_link);
  CHECK(here.broken[0].waited_for.empty());
  here.end();
}

TEST_CASE("host elsewhere: a death here is told, an end after shutdown() is not") {
  {
    Here here("survive elsewhere");
    here.wait_until_there();
    here.job().signal(1, SIGKILL);
    REQUIRE(here.job().run_until([&] { return !here.died.empty() && here.quiet(0); }));
    here.end();
    CHECK(here.died == std::vector{1, 0});  // the other one ended without shutdown()
    CHECK(here.broken.empty());
  }
  Here here("leave elsewhere");
  REQUIRE(here.job().run());
  CHECK(here.died.empty());
}

TEST_CASE(
    "host elsewhere: a rank strands those of other hosts, too, as long as any of them lives") {
  for (const bool alone : {false, true}) {
    Here here("desert elsewhere");
    here.wait_until_there();
    if (alone) here.memory().hear_of_deaths(3, std::vector{20, 21, 24});
    here.job().signal(0, SIGKILL);
    REQUIRE(here.job().run_until([&] { return here.job().rank(0).status.has_value(); }));
    here.end();
    CHECK(here.job().rank(1).status == 0);
    CHECK(here.memory().facts(1).stranded_others == !alone);
  }
}

TEST_CASE("host elsewhere: the store of a world on several hosts is asked elsewhere") {
  Here here("ask elsewhere");
  REQUIRE(here.job().run_until([&] { return here.asked.size() == 2; }));
  for (const auto& [slot, id] : here.asked) {
    AgentMessage answer;
    answer.kind = AgentMessage::kStoreAnswer;
    answer.id = id;
    answer.epoch = 2;
    answer.body = to_bytes("of another epoch");
    here.memory().answer_store(slot, answer);
    answer.epoch = 3;
    answer.body = to_bytes("value for " + std::to_string(slot));
    if (slot == 1) answer.kind = AgentMessage::kStoreRefused;
    here.memory().answer_store(slot, answer);
  }
  REQUIRE(here.job().run());
  for (int i = 0; i < 2; ++i)
    CHECK(std::string(here.job().board(i).text) == "value for " + std::to_string(i));
}

TEST_CASE("host elsewhere: the clock of time-outs stands while a rank elsewhere is held") {
  Here here("survive elsewhere");
  here.wait_until_there();
  here.memory().hold_elsewhere(true);
  here.memory().hear_of_deaths(3, std::vector{20});
  REQUIRE(here.job().run_until([&] { return here.all_quiet(); }));
  here.memory().hold_elsewhere(false);
  here.end();
  for (int i = 0; i < 2; ++i) {
    CHECK(here.job().board(i).numbers[kStood] == 1);
    CHECK(here.job().board(i).numbers[kStands] == 0);
  }
}
