// What hvdrun asks of the agents, what it makes of their words, and when it decides.
#include "cli/network_proof.h"

#include <algorithm>
#include <utility>

#include "tests/support/catch.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

const TimePoint kBegin{};

// Hosts 0, 1, …: each has eth0, where ssh reaches it, and a faster ib0.
struct Proof {
  std::vector<std::pair<int, proto::ToAgent>> sent;
  NetworkProof proof{
      [this](int host, const proto::ToAgent& order) { sent.emplace_back(host, order); }};

  explicit Proof(int hosts) {
    std::vector<NetworkProof::Party> parties;
    for (int host = 0; host < hosts; ++host) {
      const std::string last = std::to_string(host);
      std::vector<Offer> offers = {{{"eth0", "10.0.0." + last, 1000}, true},
                                   {{"ib0", "10.1.0." + last, 100000}}};
      parties.push_back({host, "h" + last, std::move(offers)});
    }
    proof.begin(std::move(parties), 0, false, 5s, kBegin);
  }

  void listens(int host, const std::string& trouble = "") {
    proto::Listening listening;
    for (const char* network : {"10.0.0.", "10.1.0."}) {
      const bool cannot = !trouble.empty() && network[3] == '1';
      listening.add_addresses(cannot ? "" : network + std::to_string(host) + ":4000");
      listening.add_troubles(cannot ? trouble : "");
    }
    proof.note(host, listening, kBegin);
  }

  void tried(int who, int whom, int offer, const std::string& trouble = "") {
    proto::Reached reached;
    proto::Reached::Try& one = *reached.add_tries();
    one.set_peer(whom);
    one.set_offer(offer);
    one.set_round_trip_us(50);
    one.set_trouble(trouble);
    proof.note(who, reached);
  }

  // All listen, and have reached each other at both offers.
  void all_reached(int hosts) {
    for (int host = 0; host < hosts; ++host) listens(host);
    for (const int offer : {0, 1}) all_tried(hosts, offer);
  }

  // How long it took to carry some MiB to `whom`, by who does that among so many hosts.
  void carried(int hosts, int whom, int offer, Clock::duration took,
               const std::string& trouble = "") {
    proto::Reached reached;
    proto::Reached::Try& one = *reached.add_tries();
    one.set_peer(whom);
    one.set_offer(offer);
    one.set_carries(true);
    one.set_carried_us(took / 1us);
    one.set_trouble(trouble);
    proof.note((whom + hosts - 1) % hosts, reached);
  }

  void all_carried(int hosts) {
    for (int whom = 0; whom < hosts; ++whom)
      for (const int offer : {0, 1}) carried(hosts, whom, offer, 1ms);
  }

  void all_tried(int hosts, int offer) {
    for (int who = 0; who < hosts; ++who)
      for (int whom = 0; whom < hosts; ++whom)
        if (who != whom) tried(who, whom, offer);
  }
};

}  // namespace

TEST_CASE("network proof: all are asked to try all when all listen, and the fastest is taken") {
  Proof job(3);
  for (const int host : {2, 0}) job.listens(host);
  CHECK(job.sent.empty());
  job.listens(0);  // again
  CHECK(job.sent.empty());
  job.listens(1);
  REQUIRE(job.sent.size() == 3);
  const proto::TryToReach& order = job.sent[1].second.try_to_reach();
  CHECK(job.sent[1].first == 1);
  CHECK(order.patience_ms() == 5000);
  REQUIRE(order.peers_size() == 2);
  CHECK(order.peers(1).number() == 2);
  CHECK(order.peers(1).name() == "h2");
  CHECK(order.peers(1).addresses(0) == "10.0.0.2:4000");
  CHECK(order.peers(1).addresses(1) == "10.1.0.2:4000");
  CHECK_FALSE(job.proof.decide(kBegin));
  job.sent.clear();
  job.all_tried(3, 1);
  CHECK_FALSE(job.proof.decide(kBegin));
  REQUIRE(job.sent.size() == 3);  // how much comes through, by who is before it
  for (const auto& [who, carry] : job.sent) {
    REQUIRE(carry.try_to_reach().peers_size() == 1);
    const proto::TryToReach::Peer& peer = carry.try_to_reach().peers(0);
    CHECK(peer.number() == (who + 1) % 3);
    CHECK(peer.addresses_size() == 0);
    CHECK(peer.carry(0).empty());  // ssh's has not been tried by all
    CHECK(peer.carry(1) == "10.1.0." + std::to_string(peer.number()) + ":4000");
  }
  job.all_carried(3);
  const auto verdict = job.proof.decide(kBegin);
  REQUIRE(verdict);
  REQUIRE(verdict->places.size() == 3);
  CHECK(verdict->places[2].at == InterfaceAddress{"ib0", "10.1.0.2", 100000});
  CHECK(verdict->places[2].listens == "10.1.0.2:4000");
  CHECK_FALSE(verdict->places[2].as_ssh);
  CHECK(network_note(verdict->places) ==
        "other hosts reach h0 at 10.1.0.0 (ib0), on a faster link (100 Gbit/s) than at 10.0.0.0 "
        "(eth0), where ssh reaches it (1 Gbit/s); h1 at 10.1.0.1 (ib0); h2 at 10.1.0.2 (ib0)");
  CHECK_FALSE(job.proof.going());
  CHECK_FALSE(job.proof.decide(kBegin + 1h));
  CHECK_FALSE(job.proof.next_deadline());
}

TEST_CASE("network proof: of many hosts all have to reach each other on a faster link") {
  constexpr int kHosts = 20;  // 5 is at none of the distances that are tried anyway from 2
  const auto told = who_tries_whom(kHosts, 0);
  for (const bool all : {true, false}) {
    Proof job(kHosts);
    for (int host = 0; host < kHosts; ++host) job.listens(host);
    REQUIRE(int(job.sent.size()) == kHosts);
    for (int who = 0; who < kHosts; ++who) {
      const proto::TryToReach& order = job.sent[size_t(who)].second.try_to_reach();
      REQUIRE(order.peers_size() == kHosts - 1);
      for (const proto::TryToReach::Peer& peer : order.peers()) {
        const int whom = peer.number();
        CHECK(peer.addresses(1) == "10.1.0." + std::to_string(whom) + ":4000");
        const bool first_too = std::ranges::binary_search(told[size_t(who)], whom);
        CHECK(peer.addresses(0).empty() == !first_too);
        job.tried(who, whom, 0);
        job.tried(who, whom, 1, all || who != 2 || whom != 5 ? "" : "No route to host");
      }
    }
    job.all_carried(kHosts);
    const auto verdict = job.proof.decide(kBegin);
    REQUIRE(verdict);
    CHECK(verdict->places[5].at.interface == (all ? "ib0" : "eth0"));
    CHECK(verdict->places[6].at.interface == "ib0");
  }
}

TEST_CASE("network proof: a faster one that is silent is waited for only so long") {
  Proof job(2);
  job.listens(0);
  job.listens(1);
  CHECK(
      awaited_lines(job.proof.progress(kBegin + 1s, {})) ==
      std::vector<std::string>{"h0: proving network, for 1.0 s", "h1: proving network, for 1.0 s"});
  job.tried(0, 1, 0);
  CHECK(job.proof.progress(kBegin + 1s, {}).size() == 1);
  CHECK_FALSE(job.proof.decide(kBegin + 1s));
  CHECK(job.proof.next_deadline() == kBegin + 5s);
  job.tried(1, 0, 0);
  CHECK_FALSE(job.proof.decide(kBegin + 1s));
  CHECK(job.proof.next_deadline() == kBegin + 1250ms);
  CHECK_FALSE(job.proof.decide(kBegin + 1249ms));
  const auto verdict = job.proof.decide(kBegin + 1250ms);
  REQUIRE(verdict);
  CHECK(verdict->places[1].at.interface == "eth0");
  CHECK(verdict->places[1].why == "where ssh reaches it");
  CHECK(network_note(verdict->places) ==
        "other hosts reach h0 at 10.0.0.0 (eth0), where ssh reaches it; h1 at 10.0.0.1 (eth0)");
}

TEST_CASE("network proof: a link over which less comes than it says is compared twice more") {
  for (const bool slow : {true, false}) {
    Proof job(2);
    job.all_reached(2);
    for (const int offer : {0, 1}) job.carried(2, 0, offer, 3ms);
    for (const int round : {1, 2, 3}) {
      CHECK_FALSE(job.proof.decide(kBegin));
      CHECK_FALSE(job.proof.decide(kBegin + 999ms));
      job.sent.clear();
      job.carried(2, 1, 1, round < 3 || slow ? 80ms : 20ms);
      CHECK(job.sent.empty());
      job.carried(2, 1, 0, 5ms);
      if (round == 3) continue;
      REQUIRE(job.sent.size() == 1);
      CHECK(job.sent[0].first == 0);
      const proto::TryToReach::Peer& peer = job.sent[0].second.try_to_reach().peers(0);
      CHECK(peer.number() == 1);
      CHECK(peer.addresses_size() == 0);
      CHECK(std::vector(peer.carry().begin(), peer.carry().end()) ==
            std::vector<std::string>{"10.0.0.1:4000", "10.1.0.1:4000"});
    }
    CHECK(job.sent.empty());
    const auto verdict = job.proof.decide(kBegin);
    REQUIRE(verdict);
    CHECK(verdict->places[0].at.interface == "ib0");
    CHECK(verdict->places[1].at.interface == (slow ? "eth0" : "ib0"));
    if (!slow) continue;
    CHECK(verdict->places[1].why ==
          "where ssh reaches it, since 10.1.0.1 (ib0), 100 Gbit/s by its own word, is slower: 4 "
          "MiB took 80.0 ms there, 5.0 ms here");
    CHECK_THAT(network_note(verdict->places),
               Catch::Contains("10.0.0.1 (eth0), where ssh reaches it, since 10.1.0.1 (ib0)"));
  }
}

TEST_CASE("network proof: what looked slower is not waited for to look so again") {
  Proof job(2);
  job.all_reached(2);
  for (const int offer : {0, 1}) job.carried(2, 0, offer, 3ms);
  CHECK_FALSE(job.proof.decide(kBegin));
  job.carried(2, 1, 0, 5ms);
  job.carried(2, 1, 1, 800ms);
  const auto verdict = job.proof.decide(kBegin + 1s);
  REQUIRE(verdict);
  CHECK(verdict->places[1].at.interface == "eth0");
  CHECK(verdict->places[1].why.ends_with("4 MiB took 800.0 ms there, 5.0 ms here"));
}

TEST_CASE("network proof: over a link that says it is faster some MiB come soon, or it is none") {
  Proof job(2);
  job.all_reached(2);
  CHECK_FALSE(job.proof.decide(kBegin));
  job.carried(2, 0, 0, 1ms);
  job.carried(2, 0, 1, 1ms, "Connection reset by peer");
  job.carried(2, 1, 0, 1ms);
  CHECK_FALSE(job.proof.decide(kBegin + 999ms));
  CHECK(job.proof.next_deadline() == kBegin + 1s);
  const auto verdict = job.proof.decide(kBegin + 1s);
  REQUIRE(verdict);
  for (const NetworkProof::Place& place : verdict->places) {
    CHECK(place.at.interface == "eth0");
    CHECK_FALSE(place.as_ssh);
    CHECK(place.why.ends_with(std::string("is slower: 4 MiB did not come through") +
                              (place.host == 0 ? ": Connection reset by peer" : " in time")));
  }
}

TEST_CASE("network proof: what an agent says of much coming through is taken as it can be") {
  Proof job(2);
  job.listens(0);
  for (const int offer : {0, 1}) job.carried(2, 1, offer, 1us + 1h * offer);  // before it is asked
  CHECK(job.sent.empty());
  job.listens(1);
  job.all_tried(2, 0);
  job.all_tried(2, 1);
  job.carried(2, 0, 0, Clock::duration::max());
  job.carried(2, 0, 1, -1h);
  job.carried(2, 0, 7, 1ms);  // at no offer
  job.carried(2, 0, -1, 1ms);
  for (const int offer : {0, 1}) job.carried(2, 1, offer, 1ms);
  const auto verdict = job.proof.decide(kBegin);
  REQUIRE(verdict);
  for (const NetworkProof::Place& place : verdict->places) CHECK(place.at.interface == "ib0");
}

TEST_CASE("network proof: where little comes through on ssh's link, too, the faster counts") {
  Proof job(2);
  job.all_reached(2);
  CHECK_FALSE(job.proof.decide(kBegin));
  const auto verdict = job.proof.decide(kBegin + 1s);
  REQUIRE(verdict);
  CHECK(verdict->places[1].at.interface == "ib0");
}

TEST_CASE("network proof: hosts may be reached on networks of their own") {
  Proof job(2);
  job.listens(0, "no port is free");
  job.listens(1);
  CHECK(job.sent[1].second.try_to_reach().peers(0).addresses(1).empty());
  job.tried(1, 0, 0);
  job.tried(0, 1, 0, "Connection refused");
  job.tried(0, 1, 1);
  const auto verdict = job.proof.decide(kBegin);
  REQUIRE(verdict);
  CHECK(verdict->places[0].at.interface == "eth0");
  CHECK(verdict->places[1].at.interface == "ib0");
  CHECK_FALSE(verdict->places[1].as_ssh);
}

TEST_CASE("network proof: hosts are told of by reason, each with its words") {
  const auto at = [](const char* name, Reason reason, const char* why, bool here = false) {
    return NetworkProof::Place{0, name, {"eth0", "10.0.0.1", 0}, "", reason, here, why};
  };
  CHECK(network_note({at("h1", Reason::kSsh, "where ssh reaches it"),
                      at("localhost", Reason::kSsh, "where ssh leaves it", true),
                      at("h2", Reason::kSsh, "where ssh reaches it")}) ==
        "other hosts reach h1 at 10.0.0.1 (eth0), where ssh reaches it; h2 at 10.0.0.1 (eth0); "
        "localhost at 10.0.0.1 (eth0), where ssh leaves it");
  std::vector<NetworkProof::Place> many(6, at("h1", Reason::kNearer, "nearer"));
  many.push_back(at("h2", Reason::kReached, "where all hosts reach it"));
  CHECK(network_note(many) ==
        "other hosts reach h1 at 10.0.0.1 (eth0), nearer; h1 at 10.0.0.1 (eth0); h1 at 10.0.0.1 "
        "(eth0); and 3 more hosts so; h2 at 10.0.0.1 (eth0), where all hosts reach it");
}

TEST_CASE("network proof: a host that nobody can reach is named at once, with what was tried") {
  Proof job(3);
  for (const int host : {0, 1, 2}) job.listens(host, host == 1 ? "no port is free" : "");
  job.tried(0, 1, 0);
  CHECK_FALSE(job.proof.decide(kBegin));
  job.tried(2, 1, 0, "No route to\nhost");
  const auto verdict = job.proof.decide(kBegin);
  REQUIRE(verdict);
  CHECK(verdict->places.empty());
  CHECK(
      verdict->trouble.starts_with("no address of h1 is reached by all other hosts: 10.0.0.1 "
                                   "(eth0) not from h2: No route to?host; 10.1.0.1 (ib0) no "
                                   "port is free; "));
}

TEST_CASE("network proof: what is no address is a trouble of who said it, and goes to nobody") {
  Proof job(2);
  job.listens(0);
  proto::Listening bad;
  for (const char* said : {"x\ny", "10.1.0.1"}) bad.add_addresses(said), bad.add_troubles("");
  job.proof.note(1, bad, kBegin);
  for (const auto& [host, order] : job.sent)
    for (const auto& peer : order.try_to_reach().peers())
      for (const std::string& address : peer.addresses())
        CHECK((peer.number() == 0) == !address.empty());
  job.tried(1, 0, 0);
  const auto verdict = job.proof.decide(kBegin + 10s);
  REQUIRE(verdict);
  CHECK(verdict->trouble.starts_with("no address of h1 is reached"));
  CHECK(verdict->trouble.find("(ib0) was told as \"10.1.0.1\", which is no address for others") !=
        std::string::npos);
}

TEST_CASE("network proof: nobody is sent to an address that a host has not offered") {
  Proof job(2);
  job.listens(0);
  proto::Listening elsewhere;
  for (const char* said : {"10.0.0.9:4000", "10.1.0.1:4000"})
    elsewhere.add_addresses(said), elsewhere.add_troubles("");
  job.proof.note(1, elsewhere, kBegin);
  for (const auto& [host, order] : job.sent)
    for (const auto& peer : order.try_to_reach().peers())
      for (const std::string& address : peer.addresses()) CHECK(address != "10.0.0.9:4000");
  job.all_tried(2, 0);
  job.all_tried(2, 1);
  job.all_carried(2);
  const auto verdict = job.proof.decide(kBegin + 10s);
  REQUIRE(verdict);
  REQUIRE(verdict->places.size() == 2);
  CHECK(verdict->places[1].listens == "10.1.0.1:4000");
}

TEST_CASE("network proof: who says nothing does not hold it up for ever") {
  Proof half(2);
  half.listens(0);
  half.listens(1);
  half.tried(1, 0, 0);
  CHECK_FALSE(half.proof.decide(kBegin + 5s));
  CHECK(half.proof.next_deadline() == kBegin + 6s);
  CHECK_FALSE(half.proof.decide(kBegin + 5999ms));
  const auto verdict = half.proof.decide(kBegin + 6s);
  REQUIRE(verdict);
  CHECK(verdict->trouble.starts_with("no address of h1 is reached"));
  CHECK(verdict->trouble.find("10.0.0.1 (eth0) was not answered in time") != std::string::npos);
}

TEST_CASE("network proof: a hvdrun that was stopped hears what came meanwhile before it decides") {
  Proof job(2);
  job.listens(0);
  job.listens(1);
  CHECK_FALSE(job.proof.decide(kBegin + 1min));
  job.tried(0, 1, 0);
  CHECK_FALSE(job.proof.decide(kBegin + 1min));
  job.tried(1, 0, 0);
  job.tried(0, 1, 1, "no answer");
  job.tried(1, 0, 1, "no answer");
  const auto verdict = job.proof.decide(kBegin + 1min);
  REQUIRE(verdict);
  CHECK(verdict->trouble.empty());
}

TEST_CASE("network proof: before all agents listen nothing is due, and who does not is named") {
  Proof job(2);
  job.listens(0);
  CHECK_FALSE(job.proof.next_deadline());
  CHECK_FALSE(job.proof.decide(kBegin + 1h));
  CHECK(awaited_lines(job.proof.progress(kBegin + 1500ms, {})) ==
        std::vector<std::string>{
            "h1: proving network, for 1.5 s; its agent has not said where it listens"});
  CHECK(job.proof.progress(kBegin + 1500ms, {1}).empty());  // that is said of it
}

TEST_CASE("network proof: what was not asked for is dropped") {
  Proof job(2);
  job.listens(0);
  job.listens(1);
  job.tried(0, 0, 0);
  job.tried(0, 7, 0);
  job.tried(0, -1, 0);
  job.tried(7, 0, 0);
  job.tried(0, 1, 2);
  job.tried(0, 1, -1);
  job.tried(0, 1, 0);
  job.tried(0, 1, 0, "twice");
  job.tried(1, 0, 0);
  proto::Listening none;
  job.proof.note(7, none, kBegin);
  CHECK_FALSE(job.proof.decide(kBegin + 10s));
  const auto verdict = job.proof.decide(kBegin + 11s);
  REQUIRE(verdict);
  CHECK(verdict->trouble.empty());
  CHECK(verdict->places[1].at.interface == "eth0");
}

TEST_CASE("network proof: a host without an address ends it at once") {
  NetworkProof proof([](int, const proto::ToAgent&) {});
  proof.begin({{0, "h0", {{{"eth0", "10.0.0.1"}}}}, {1, "h1", {}}}, 0, false, 5s, kBegin);
  const auto verdict = proof.decide(kBegin);
  REQUIRE(verdict);
  CHECK(verdict->trouble == "h1 has no address that other hosts could reach");
}

}  // namespace hvd
