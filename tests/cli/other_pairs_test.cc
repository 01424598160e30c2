// Whom each host tries while ranks run, and what is said of it.
#include "cli/other_pairs.h"

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

  explicit Pairs(int hosts) {
    std::vector<NetworkProof::Place> places;
    for (int host = 0; host < hosts; ++host) {
      const std::string last = std::to_string(host), address = "10.0.0." + last;
      places.push_back({host, "h" + last, {"eth0", address}, address + ":4000", ""});
    }
    pairs.begin(std::move(places), 0, 5s, kBegin);
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

TEST_CASE("other pairs: of few hosts none are left") {
  CHECK_FALSE(Pairs(16).pairs.next_deadline());
}

TEST_CASE(
    "other pairs: who does not reach whom is said once, after two tries, with what will fail of "
    "it") {
  Pairs job(17);
  CHECK(job.fails(2, 5, "").empty());
  CHECK(job.fails(2, 5, "no answer").empty());
  CHECK(job.pairs.next_deadline() == kBegin + 6s);  // the kernel may have had no room
  job.pairs.tick(kBegin + 6s);
  CHECK(job.tried[2] == std::vector{5});
  CHECK(job.fails(2, 5, "No route to\nhost") ==
        std::vector<std::string>{
            "h2 does not reach h5 at 10.0.0.5 (eth0): No route to?host; what connects all hosts by "
            "itself, as torch's gloo and NCCL do, fails between them"});
  CHECK(job.fails(5, 2, "no answer").empty());
  CHECK(job.fails(5, 99, "no answer").empty());
  job.pairs.leave(6);  // its ranks have ended
  CHECK(job.fails(2, 6, "Connection refused").empty());
  CHECK(job.fails(5, 8, "no answer").empty());
  CHECK(job.fails(5, 8, "no answer").size() == 1);
}

}  // namespace hvd
