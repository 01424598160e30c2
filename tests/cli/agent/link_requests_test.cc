// Ranks of two hosts get links to each other: ranks as processes, each host with its own agent's
// parts, all on loopback and without hvdrun.
#include "cli/agent/link_requests.h"

#include <poll.h>
#include <sys/socket.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/agent_peers.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"
#include "tests/cli/agent/bare_rank.h"
#include "tests/support/catch.h"
#include "tests/support/host_job.h"
#include "tests/support/rank_program.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

constexpr int kRanksEach = 2;
enum Number { kSum, kCode };

std::vector<UniqueFd> wait_for_links(Peers& peers, uint32_t id) {
  const Deadline deadline = Deadline::in(30s);
  while (true) {
    if (auto links = peers.take_links(id)) return std::move(*links);
    if (deadline.passed()) throw Error(ErrorCode::kTimeout, "no links came");
    pollfd polled[] = {{peers.agent_fd(), POLLIN, 0}, {peers.doorbell(kCaller), POLLIN, 0}};
    poll(polled, 2, deadline.poll_timeout_ms());
  }
}

std::vector<int> ranks_elsewhere(const World& world) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size; ++rank)
    if (rank / kRanksEach != world.rank / kRanksEach) ranks.push_back(rank);
  return ranks;
}

int guarded(int (*body)()) {
  try {
    return body();
  } catch (const Error& error) {
    rank_board().numbers[kCode] = static_cast<int>(error.code()) + 1;
    rank_board().write(error.what());
    return 3;
  }
}

// Tells each rank elsewhere over both of its links which rank speaks, and adds up what it hears.
const RankProgram greet("greet", [] {
  return guarded([] {
    AgentPeers peers(connect_to_agent());
    const World& world = peers.world();
    const std::vector<int> others = ranks_elsewhere(world);
    for (const uint32_t id : {0u, 5u}) peers.request_links(id, others);
    int64_t sum = 0;
    for (const uint32_t id : {5u, 0u}) {  // in another order than asked for
      const std::vector<UniqueFd> links = wait_for_links(peers, id);
      const int words[2] = {world.rank, static_cast<int>(id)};
      for (const UniqueFd& link : links)
        if (send(link.get(), words, sizeof words, MSG_NOSIGNAL) != sizeof words) return 4;
      for (size_t i = 0; i < links.size(); ++i) {
        pollfd readable{links[i].get(), POLLIN, 0};
        int heard[2] = {-1, -1};
        if (poll(&readable, 1, 30'000) != 1 ||
            recv(links[i].get(), heard, sizeof heard, 0) != sizeof heard || heard[0] != others[i] ||
            heard[1] != static_cast<int>(id))
          return 5;
        sum += 1 + heard[0];
      }
    }
    rank_board().numbers[kSum] = sum;
    leave(peers);
    return 0;
  });
});

// Asks for links that it cannot have: HVD_TEST_RANK says to which rank.
const RankProgram ask_wrongly("ask_wrongly", [] {
  return guarded([] {
    AgentPeers peers(connect_to_agent());
    const int rank = static_cast<int>(env::get_integer("HVD_TEST_RANK").value_or(0));
    peers.request_links(0, std::vector{rank});
    if (rank == 2) peers.request_links(0, std::vector{rank});
    wait_for_links(peers, 0);
    return 6;
  });
});

// One host of the test's world.
class Host {
 public:
  Host(int number, const std::string& program, const std::string& secret,
       std::vector<std::string> environment = {})
      : number_(number) {
    HostJobOptions options;
    options.ranks = kRanksEach;
    options.program = program;
    options.environment = std::move(environment);
    options.epoch_wanted = [this](const std::vector<int>&, bool all) { ready_ = all; };
    options.links_wanted = [this](const LinksWanted& wanted) { requests_->wanted(wanted); };
    job_ = std::make_unique<HostJob>(std::move(options));
    std::vector<Listener> listeners = listen_on(std::vector<std::string>{"127.0.0.1"});
    address_ = listeners[0].address;
    service_ = std::make_unique<LinkService>(job_->loop(), 0, std::move(listeners), Secret(secret));
    requests_ = std::make_unique<LinkRequests>(*service_, job_->memory(), 20s);
  }

  bool ready() const { return ready_; }
  LinkRequests::Place place() const {
    if (deaf_) return {"host" + std::to_string(number_), {}, "no port is free"};
    return {"host" + std::to_string(number_), address_};
  }
  void be_deaf() { deaf_ = true; }
  HostJob& job() { return *job_; }
  int first_rank() const { return number_ * kRanksEach; }

  void start_epoch(const std::map<int, LinkRequests::Place>& elsewhere) {
    std::vector<EpochMember> members;
    std::set<int> ranks;
    for (int slot = 0; slot < kRanksEach; ++slot) {
      World world;
      world.epoch = 1;
      world.rank = first_rank() + slot;
      world.size = 2 * kRanksEach;
      world.local_rank = slot;
      world.local_size = kRanksEach;
      world.host = "host" + std::to_string(number_);
      members.push_back({slot, world});
      ranks.insert(world.rank);
    }
    requests_->start_epoch(1, ranks, elsewhere);
    job_->memory().start_epoch(members);
  }

  // True: all its ranks have ended.
  bool turn() {
    job_->run_until([] { return false; }, 1ms);  // also for the other host's ranks
    service_->tick(Clock::now());
    return job_->run(0ms);
  }

 private:
  const int number_;
  bool ready_ = false, deaf_ = false;
  SocketAddress address_;
  std::unique_ptr<HostJob> job_;
  std::unique_ptr<LinkService> service_;
  std::unique_ptr<LinkRequests> requests_;
};

void run(Host& one, Host& other) {
  const Deadline limit = Deadline::in(60s);
  bool started = false;
  while (true) {
    const bool over = one.turn(), other_over = other.turn();
    if (over && other_over) return;
    if (!started && one.ready() && other.ready()) {
      started = true;
      for (const auto& [here, there] : {std::pair(&one, &other), std::pair(&other, &one)}) {
        std::map<int, LinkRequests::Place> elsewhere;
        for (int i = 0; i < kRanksEach; ++i) elsewhere[there->first_rank() + i] = there->place();
        here->start_epoch(elsewhere);
      }
    }
    INFO(one.job().describe() << other.job().describe());
    REQUIRE_FALSE(limit.passed());
  }
}

}  // namespace

TEST_CASE("link requests: every rank talks to every rank of the other host") {
  for (int round = 0; round < 5; ++round) {
    Host one(0, "greet", "a secret"), other(1, "greet", "a secret");
    run(one, other);
    INFO(one.job().describe() << other.job().describe());
    for (int slot = 0; slot < kRanksEach; ++slot) {
      CHECK(one.job().rank(slot).status == 0);
      CHECK(other.job().rank(slot).status == 0);
      CHECK(one.job().board(slot).numbers[kSum] == 2 * (3 + 4));
      CHECK(other.job().board(slot).numbers[kSum] == 2 * (1 + 2));
    }
  }
}

TEST_CASE("link requests: one that cannot be had is refused with the reason") {
  std::string secret = "a secret", rank = "3", words;
  SECTION("another job's host") {
    secret = "another";
    words = "it does not know the job's secret";
  }
  SECTION("a rank of this host") {
    rank = "1";
    words = "links 0: rank 1 is on this host";
  }
  SECTION("no rank") {
    rank = "4";
    words = "links 0: there is no rank 4";
  }
  SECTION("asked for twice") {
    rank = "2";
    words = "links 0 were asked for twice";
  }
  bool deaf = false;
  SECTION("of a host whose agent does not listen") {
    deaf = true;
    words = "the agent on host1 of rank 3 cannot be called: no port is free";
  }
  Host one(0, "ask_wrongly", "a secret", {"HVD_TEST_RANK=" + rank});
  Host other(1, "ask_wrongly", secret, {"HVD_TEST_RANK=9"});
  if (deaf) other.be_deaf();
  run(one, other);
  for (int slot = 0; slot < kRanksEach; ++slot) {
    INFO(one.job().describe());
    CHECK(one.job().board(slot).numbers[kCode] == static_cast<int>(ErrorCode::kUnavailable) + 1);
    CHECK(std::string(one.job().board(slot).text).find(words) != std::string::npos);
  }
}
