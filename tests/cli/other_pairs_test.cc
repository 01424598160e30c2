// Whom each host tries while ranks run, and what is said of it.
#include "cli/other_pairs.h"

#include <algorithm>
#include <map>

#include "tests/support/catch.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

const TimePoint kBegin{};

struct Pairs {
  std::map<int, std::vector<int>> tried;  // by host
  OtherPairs pairs{[this](int host, const proto::ToAgent& order) {
    REQUIRE(order.try_to_reach().peers_size() == 1);
    const proto::TryToReach::Peer& peer = order.try_to_reach().peers(0);
    CHECK(peer.addresses(0) == "10.0.0." + std::to_string(peer.number()) + ":4000");
    tried[host].push_back(peer.number());
  }};

  // All have reached host `reached`.
  explicit Pairs(int hosts, int reached = -1) {
    std::vector<NetworkProof::Place> places;
    for (int host = 0; host < hosts; ++host) {
      const std::string last = std::to_string(host), address = "10.0.0." + last;
      places.push_back(
          {host, "h" + last, {"eth0", address}, address + ":4000", Reason::kSsh, false, ""});
      places.back().by_all = hosts <= kAllPairsMax || host == reached;
    }
    pairs.begin(std::move(places), 0, 5s, kBegin);
  }
  void ask_all() {
    while (pairs.next_deadline()) pairs.tick(*pairs.next_deadline());
  }
  std::vector<std::string> fails(int who, int whom, const std::string& trouble) {
    proto::Reached reached;
    reached.add_tries()->set_peer(whom);
    reached.mutable_tries(0)->set_trouble(trouble);
    return pairs.note(who, reached, kBegin);
  }
};

}  // namespace

TEST_CASE("other pairs: each host tries who is left, one after the other") {
  Pairs job(17);
  job.pairs.tick(kBegin);
  CHECK(job.tried.empty());
  TimePoint now = kBegin;
  size_t turns = 0;
  while (job.pairs.next_deadline()) {
    CHECK(*job.pairs.next_deadline() >= now + 500ms);
    now = *job.pairs.next_deadline();
    job.pairs.tick(now);
    ++turns;
    for (const auto& [host, others] : job.tried) CHECK(others.size() <= turns);
  }
  const auto left = who_is_left(17, 0);
  for (int host = 0; host < 17; ++host)
    CHECK(job.tried[host] == std::vector(left[size_t(host)].rbegin(), left[size_t(host)].rend()));
}

TEST_CASE("other pairs: of few hosts none are left, nor is one that all have reached") {
  CHECK_FALSE(Pairs(16).pairs.next_deadline());
  Pairs job(17, 8);
  job.ask_all();
  CHECK(std::ranges::count(job.tried[2], 5) == 1);
  for (const auto& [host, others] : job.tried) CHECK(std::ranges::count(others, 8) == 0);
}

TEST_CASE(
    "other pairs: who does not reach whom is said once, after two tries, with what will fail of "
    "it") {
  Pairs job(17);
  job.ask_all();
  CHECK(job.fails(2, 7, "").empty());  // it does
  CHECK(job.fails(2, 8, "no answer").empty());
  CHECK(job.pairs.next_deadline() == kBegin + 6s);  // the kernel may have had no room
  job.tried.clear();
  job.ask_all();
  CHECK(job.tried == std::map<int, std::vector<int>>{{2, {8}}});
  CHECK(job.fails(2, 8, "No route to\nhost") ==
        std::vector<std::string>{
            "h2 does not reach h8 at 10.0.0.8 (eth0): No route to?host; what connects all hosts by "
            "itself, as torch's gloo and NCCL do, fails between them"});
  CHECK(job.fails(8, 2, "no answer").empty());  // of that pair it is told
  CHECK(job.fails(8, 99, "no answer").empty());
  job.pairs.leave(9);  // its ranks have ended
  CHECK(job.fails(2, 9, "Connection refused").empty());
  CHECK_FALSE(job.pairs.next_deadline());
  CHECK(job.fails(5, 11, "no answer").empty());
  job.ask_all();
  CHECK(job.fails(5, 11, "no answer").size() == 1);
}

TEST_CASE("other pairs: a late word of the proof, of an address not chosen, is nothing of theirs") {
  for (const int hosts : {2, 17}) {
    Pairs job(hosts);
    for (int i = 0; i < 3; ++i)
      CHECK(job.fails(0, 1, "another host of the job has that address, too").empty());
  }
  Pairs job(17);
  job.ask_all();
  REQUIRE(std::ranges::find(job.tried[2], 8) != job.tried[2].end());
  CHECK(job.fails(2, 8, "no answer").empty());
  CHECK(job.fails(2, 8, "no answer").empty());  // one that was not asked for again
  CHECK(job.fails(2, 8, "no answer").empty());
}

}  // namespace hvd
