// Two agents' link services on loopback: links come about whoever is sooner, and strangers do not
// get any.
#include <netinet/tcp.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tests/cli/agent/link_hosts.h"
#include "tests/support/few_descriptors.h"
#include "tests/support/seed.h"

namespace hvd {

TEST_CASE("link service: both ends get a socket of one connection, whoever asks first") {
  for (const bool caller_first : {true, false}) {
    Two hosts;
    const auto ask = [&](bool caller) -> Outcome& {
      return caller ? hosts.request(0, 1, 7, 0, 1) : hosts.request(1, 0, 7, 1, 0);
    };
    Outcome& first = ask(caller_first);
    // As far as it goes without the other end's request.
    for (int i = 0; i < 20; ++i) hosts.turn(Clock::now() + milliseconds(5));
    CHECK_FALSE((!caller_first && first.there));
    Outcome& second = ask(!caller_first);
    hosts.run_until([&] { return first.there && second.there; });
    INFO(first.why << second.why);
    REQUIRE(first.link);
    REQUIRE(second.link);
    for (const Outcome* one : {&first, &second}) {
      CHECK((fcntl(one->link.get(), F_GETFL) & O_NONBLOCK) != 0);
      CHECK(option(one->link, IPPROTO_TCP, TCP_NODELAY) != 0);
      CHECK(option(one->link, SOL_SOCKET, SO_KEEPALIVE) != 0);
      CHECK(option(one->link, IPPROTO_TCP, TCP_KEEPIDLE) == 3);
      CHECK(option(one->link, IPPROTO_TCP, TCP_KEEPINTVL) == 1);
      CHECK(option(one->link, IPPROTO_TCP, TCP_KEEPCNT) == 7);
      // A rank that does not read for long is not dead.
      CHECK(option(one->link, IPPROTO_TCP, TCP_USER_TIMEOUT) == 0);
    }
    CHECK(connected(first, second));
    CHECK(connected(second, first));
  }
}

TEST_CASE("link service: what the link's first user sends at once is the link's") {
  for (int round = 0; round < 50; ++round) {
    Two hosts;
    Outcome& caller = hosts.request(0, 1, 7, 0, 1);
    Outcome& answerer = hosts.request(1, 0, 7, 1, 0);
    const std::string words(1000, char('a' + round % 26));
    hosts.run_until([&] { return caller.there || answerer.there; });
    Outcome& sooner = caller.there ? caller : answerer;
    Outcome& later = caller.there ? answerer : caller;
    REQUIRE(send(sooner.link.get(), words.data(), words.size(), MSG_NOSIGNAL) == 1000);
    hosts.run_until([&] { return caller.there && answerer.there; });
    char got[2000];
    REQUIRE(recv(later.link.get(), got, sizeof got, 0) == 1000);
    CHECK(std::string(got, 1000) == words);
  }
}

// More than a listener lets in at once from one address, between hosts that all call each other.
TEST_CASE("link service: hundreds of links at once, each between its own two ranks") {
  constexpr int kHosts = 4, kRanksEach = 4, kIds = 3;
  Hosts hosts;
  const auto host_of = [](int rank) { return size_t(rank / kRanksEach); };
  for (int host = 0; host < kHosts; ++host) {
    std::set<int> ranks;
    for (int i = 0; i < kRanksEach; ++i) ranks.insert(host * kRanksEach + i);
    hosts.add("127.0.0.1").start_epoch(1, std::move(ranks));
  }
  const unsigned seed = random_seed();
  INFO("HVD_TEST_SEED=" << seed);
  struct Ask {
    uint32_t id;
    int local, remote;
  };
  std::vector<Ask> asks;
  for (uint32_t id = 0; id < kIds; ++id)
    for (int one = 0; one < kHosts * kRanksEach; ++one)
      for (int other = 0; other < kHosts * kRanksEach; ++other)
        if (host_of(one) != host_of(other)) asks.push_back({id, one, other});
  std::shuffle(asks.begin(), asks.end(), std::mt19937(seed));
  std::map<std::tuple<uint32_t, int, int>, Outcome*> outcomes;
  for (const Ask& ask : asks)
    outcomes[{ask.id, ask.local, ask.remote}] =
        &hosts.request(host_of(ask.local), host_of(ask.remote), ask.id, ask.local, ask.remote);
  hosts.run_until([&] {
    return std::all_of(outcomes.begin(), outcomes.end(), [](auto& o) { return o.second->there; });
  });
  for (const auto& [which, outcome] : outcomes) {
    const auto [id, local, remote] = which;
    INFO("link " << id << " of rank " << local << " to rank " << remote << ": " << outcome->why);
    REQUIRE(outcome->link);
    CHECK(connected(*outcome, *outcomes[{id, remote, local}]));
  }
}

TEST_CASE("link service: a link for an epoch that begins later here is kept until then") {
  Hosts hosts;
  LinkService& first = hosts.add("127.0.0.1");
  LinkService& second = hosts.add("127.0.0.1");
  first.start_epoch(2, {0});
  second.start_epoch(1, {5});
  Outcome& caller = hosts.request(0, 1, 7, 0, 1);
  hosts.run_until([&] { return caller.there; });
  REQUIRE(caller.link);
  second.start_epoch(2, {1});
  Outcome& answerer = hosts.request(1, 0, 7, 1, 0);
  hosts.run_until([&] { return answerer.there; });
  CHECK(connected(caller, answerer));
}

TEST_CASE("link service: a link is refused with the reason, at once") {
  const auto refusal = [](Hosts& hosts, int remote) {
    Outcome& outcome = hosts.request(0, 1, 7, 0, remote);
    hosts.run_until([&] { return outcome.there; });
    CHECK_FALSE(outcome.link);
    return outcome.why;
  };
  SECTION("another secret") {
    Two hosts("another secret");
    CHECK(refusal(hosts, 1) == "link 7 of epoch 1 from rank 0 to rank 1: the agent on h1 at " +
                                   hosts.address_of(1).text() +
                                   ": it does not know the job's secret");
  }
  SECTION("a rank that is elsewhere") {
    Two hosts;
    CHECK(refusal(hosts, 2).ends_with(": rank 2 is not on that host"));
  }
  SECTION("an epoch that is over there") {
    Hosts hosts;
    hosts.add("127.0.0.1").start_epoch(1, {0});
    hosts.add("127.0.0.1").start_epoch(2, {1});
    CHECK(refusal(hosts, 1).ends_with(": epoch 1 is over there"));
  }
}

TEST_CASE("link service: after its deadline a request says whom it waited for in vain") {
  const UniqueFd deaf(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketAddress nobody = SocketAddress::of("127.0.0.1", 0);
  REQUIRE(bind(deaf.get(), nobody.get(), nobody.size()) == 0);
  nobody = SocketAddress::local_of(deaf.get());
  Hosts alone;
  LinkService& service = alone.add("127.0.0.1");
  service.start_epoch(1, {0, 1});
  std::string calling;
  bool waiting = true;
  service.request({4, 1, 0, "h9", nobody, Deadline::in(milliseconds(100))},
                  [&](UniqueFd, const std::string&) { waiting = false; });
  service.request({3, 0, 9, "h9", nobody, Deadline::in(milliseconds(300))},
                  [&](UniqueFd, const std::string& why) { calling = why; });
  alone.run_until([&] { return !calling.empty(); });
  CHECK(calling ==
        "link 3 of epoch 1 from rank 0 to rank 9: cannot connect to the agent on h9 at " +
            nobody.text() + " in time: Connection refused");
  CHECK(waiting);  // the other rank may take as long as it likes before it asks
  // An address that takes connections and says nothing.
  const std::vector<Listener> silent = listen_on(std::vector<std::string>{"127.0.0.1"});
  std::string unanswered;
  service.request({5, 0, 9, "h9", silent[0].address, Deadline::in(milliseconds(300))},
                  [&](UniqueFd, const std::string& why) { unanswered = why; });
  alone.run_until([&] { return !unanswered.empty(); });
  CHECK(unanswered.ends_with(silent[0].address.text() + " in time: no answer"));
}

// An answerer that is done at once has given its rank the link: it would take no second call.
TEST_CASE("link service: a verdict that comes late is waited for, on the same connection") {
  const std::vector<Listener> door = listen_on(std::vector<std::string>{"127.0.0.1"});
  Hosts alone;
  LinkService& service = alone.add("127.0.0.1", "a secret", {.patience = milliseconds(50)});
  service.start_epoch(1, {0});
  Outcome outcome;
  service.request(
      {3, 0, 9, "h9", door[0].address, Deadline::in(seconds(30))},
      [&](UniqueFd link, const std::string& why) { outcome = {std::move(link), why, true}; });
  const Secret secret("a secret");
  const auto fresh = [&] {
    return LinkHandshake::answer(secret, {}, [](const LinkName&) { return LinkVerdict::kWelcome; });
  };
  std::optional<LinkHandshake> answerer;
  UniqueFd caller;
  for (const Deadline limit = Deadline::in(seconds(30)); !limit.passed();) {
    alone.turn(Clock::now() + milliseconds(1));
    if (!caller) {
      caller = UniqueFd(accept4(door[0].socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
      answerer.emplace(fresh());
    }
    char bytes[1024];
    const ssize_t n = recv(caller.get(), bytes, answerer->wanted(), MSG_DONTWAIT);
    if (n == 0) caller.reset();  // the test was slow, and it calls again
    if (n <= 0) continue;
    answerer->feed({bytes, size_t(n)});
    if (answerer->state() != LinkHandshake::State::kGoing) break;
    const std::string words = answerer->take_output();
    send(caller.get(), words.data(), words.size(), MSG_NOSIGNAL);
  }
  REQUIRE(answerer->state() == LinkHandshake::State::kDone);
  for (const Deadline late = Deadline::in(milliseconds(200)); !late.passed();)
    alone.turn(late.when());
  CHECK_FALSE(outcome.there);
  const std::string verdict = answerer->take_output();
  REQUIRE(send(caller.get(), verdict.data(), verdict.size(), MSG_NOSIGNAL) ==
          ssize_t(verdict.size()));
  alone.run_until([&] { return outcome.there; });
  CHECK(outcome.why.empty());
  CHECK(outcome.link);
}

TEST_CASE("link service: strangers are counted and cut off, and links come about meanwhile") {
  Hosts hosts;
  hosts.add("127.0.0.1").start_epoch(1, {0});
  LinkService& second = hosts.add("127.0.0.1", "a secret", {.patience = milliseconds(200)});
  second.start_epoch(1, {1});
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 12; ++i) {
    strangers.push_back(stranger_at(hosts.address_of(1)));
    if (i % 3 == 1) shutdown(strangers.back().get(), SHUT_WR);
    if (i % 3 == 2) send(strangers.back().get(), "GET / HTTP/1.1\r\n", 16, MSG_NOSIGNAL);
  }
  Outcome& caller = hosts.request(0, 1, 7, 0, 1);
  Outcome& answerer = hosts.request(1, 0, 7, 1, 0);
  hosts.run_until([&] {
    return caller.there && answerer.there &&
           std::all_of(strangers.begin(), strangers.end(), is_closed);
  });
  CHECK(connected(caller, answerer));
  CHECK(second.refused() >= 12);
  const std::vector<std::string> lines = second.take_refusals();
  CHECK(lines.size() <= 6);
  CHECK(std::count(lines.begin(), lines.end(),
                   "refused 127.0.0.1: it did not prove in time who it is") == 1);
  CHECK(second.take_refusals().empty());
}

TEST_CASE("link service: who is silent on all places of an address keeps no link back") {
  Hosts hosts;
  hosts.add("127.0.0.1").start_epoch(1, {0});
  LinkService& second =
      hosts.add("127.0.0.1", "a secret", {.patience = seconds(60), .at_least = milliseconds(100)});
  second.start_epoch(1, {1});
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 8; ++i) strangers.push_back(stranger_at(hosts.address_of(1)));
  hosts.turn(Clock::now() + milliseconds(100));  // they are in before anybody calls
  Outcome& caller = hosts.request(0, 1, 7, 0, 1);
  Outcome& answerer = hosts.request(1, 0, 7, 1, 0);
  hosts.run_until([&] { return caller.there && answerer.there; });
  INFO(caller.why);
  REQUIRE(caller.link);
  CHECK(connected(caller, answerer));
  CHECK(std::count_if(strangers.begin(), strangers.end(), is_closed) < 8);
}

TEST_CASE("link service: a new epoch forgets what the old one asked for, and what came for it") {
  Two hosts;
  Outcome& first = hosts.request(0, 1, 7, 0, 1);
  hosts.run_until([&] { return first.there; });  // it waits at the other host
  Outcome& never = hosts.request(1, 0, 8, 1, 0);
  REQUIRE(first.link);
  hosts.service(1).start_epoch(2, {1});
  hosts.run_until([&] { return is_closed(first.link); });
  CHECK_FALSE(never.there);
  hosts.service(0).start_epoch(2, {0});
  CHECK(get_linked(hosts));
  CHECK_FALSE(never.there);
}

TEST_CASE("link service: without a descriptor left it waits for one") {
  Two hosts;
  Outcome& caller = hosts.request(0, 1, 7, 0, 1, seconds(50));
  Outcome& answerer = hosts.request(1, 0, 7, 1, 0, seconds(50));
  {
    const FewDescriptors few(1);  // for the caller's end, not for the answerer's
    for (int i = 0; i < 10; ++i) hosts.turn(Clock::now() + milliseconds(20));
    CHECK_FALSE(answerer.there);
  }
  hosts.run_until([&] { return caller.there && answerer.there; });
  CHECK(connected(caller, answerer));
}

TEST_CASE("link service: what keeps a call on its own host is told as that") {
  Two hosts;
  const SocketAddress there = hosts.address_of(1);
  {
    const FewDescriptors none(0);
    const Outcome& poor = hosts.prove(0, 1, 0, there, milliseconds(100));
    hosts.run_until([&] { return poor.there; });
    CHECK(poor.why ==
          "the call did not leave its own host: Too many open files; raise the limit on open files "
          "(ulimit -n)");
  }
  // The kernel routes no TCP there, with or without a network.
  const Outcome& lost = hosts.prove(0, 1, 1, SocketAddress::of("255.255.255.255", 9));
  hosts.run_until([&] { return lost.there; });
  CHECK(lost.why == "the call did not leave its own host: Network is unreachable");
  const UniqueFd bound(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));  // and does not listen
  const SocketAddress any = SocketAddress::of("127.0.0.1", 0);
  REQUIRE(bind(bound.get(), any.get(), any.size()) == 0);
  const Outcome& refused = hosts.prove(0, 1, 2, SocketAddress::local_of(bound.get()));
  hosts.run_until([&] { return refused.there; });
  CHECK(refused.why == "Connection refused");
}

}  // namespace hvd
