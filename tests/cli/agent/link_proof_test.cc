// Agents' link services that prove to each other which host is where, and how much comes through.
#include <algorithm>
#include <string>
#include <vector>

#include "tests/cli/agent/link_hosts.h"

namespace hvd {

TEST_CASE("link service: a host is proven where its agent answers, and nowhere else") {
  Hosts hosts;
  hosts.add("127.0.0.1");
  hosts.add("127.0.0.1");
  hosts.add("127.0.0.1");
  hosts.add("127.0.0.1", "another job's");
  const std::vector<Listener> silent = listen_on(std::vector<std::string>{"127.0.0.1"});
  SocketAddress nobody;
  nobody = listen_on(std::vector<std::string>{"127.0.0.1"}).front().address;  // not any more
  Outcome& there = hosts.prove(0, 1, 0, hosts.address_of(1));
  Outcome& back = hosts.prove(1, 0, 0, hosts.address_of(0));
  Outcome& other = hosts.prove(0, 1, 1, hosts.address_of(2));
  Outcome& own = hosts.prove(0, 1, 2, hosts.address_of(0));  // as that of every docker0
  Outcome& stranger = hosts.prove(0, 1, 3, hosts.address_of(3));
  Outcome& refused = hosts.prove(0, 1, 4, nobody);
  Outcome& late = hosts.prove(0, 1, 5, silent[0].address, milliseconds(200));
  hosts.run_until([&] {
    return there.there && back.there && other.there && own.there && stranger.there &&
           refused.there && late.there;
  });
  CHECK(there.why.empty());
  CHECK(there.link);
  CHECK(back.link);
  CHECK(is_closed(there.link));  // it has served
  for (const Outcome* one : {&other, &own}) {
    CHECK_FALSE(one->link);
    CHECK(one->why == "another host of the job has that address, too");
  }
  CHECK(stranger.why == "it does not know the job's secret");
  CHECK(refused.why == "Connection refused");
  CHECK(late.why == "no answer");
  for (const size_t host : {0u, 1u, 2u}) CHECK(hosts.service(host).refused() == 0);
}

TEST_CASE("link service: links come about after a proof, where it was settled") {
  Hosts hosts;
  hosts.add("127.0.0.1");
  hosts.add("127.0.0.1", "a secret", {}, "127.0.0.2");
  const std::vector<Listener> silent = listen_on(std::vector<std::string>{"127.0.0.1"});
  Outcome& first = hosts.prove(0, 1, 0, hosts.address_of(1));
  Outcome& second = hosts.prove(0, 1, 1, hosts.second());
  Outcome& never = hosts.prove(0, 1, 2, silent[0].address);
  hosts.run_until([&] { return first.there && second.there; });
  CHECK(first.link);
  CHECK(second.link);
  hosts.service(0).settle(hosts.address_of(0));
  hosts.service(1).settle(hosts.address_of(1));
  CHECK_FALSE(stranger_is_let_in(hosts.second()));
  hosts.service(0).start_epoch(1, {0});
  hosts.service(1).start_epoch(1, {1});
  CHECK(get_linked(hosts));
  CHECK_FALSE(never.there);
}

TEST_CASE("link service: a proof of how much comes through is one of its own, and is timed") {
  Hosts hosts;
  hosts.add("127.0.0.1");
  hosts.add("127.0.0.1");
  Outcome& there = hosts.prove(0, 1, 0, hosts.address_of(1));
  Outcome& carried = hosts.prove(0, 1, 0, hosts.address_of(1), seconds(30), true);
  const TimePoint begin = Clock::now();
  hosts.run_until([&] { return there.there && carried.there; });
  CHECK(there.link);
  CHECK(carried.link);
  CHECK(carried.carried > Clock::duration::zero());
  CHECK(carried.carried < Clock::now() - begin);
  for (const size_t host : {0u, 1u}) CHECK(hosts.service(host).refused() == 0);
}

TEST_CASE(
    "link service: a call for a proof that has begun goes on, and who hangs up is no stranger") {
  Hosts hosts;
  hosts.add("127.0.0.1");
  LinkService& second = hosts.add("127.0.0.1");
  Outcome& begun = hosts.prove(0, 1, 0, hosts.address_of(1));
  hosts.service(0).tick(Clock::now());
  Outcome& never = hosts.prove(0, 1, 1, hosts.address_of(1));  // not begun
  hosts.service(0).settle(hosts.address_of(0));
  hosts.service(0).start_epoch(1, {0});
  hosts.run_until([&] { return begun.there; });
  CHECK(begun.link);
  CHECK_FALSE(never.there);
  const Secret secret("a secret");
  for (const uint32_t epoch : {0u, 1u}) {
    const UniqueFd caller = stranger_at(hosts.address_of(1));
    LinkHandshake call = LinkHandshake::call(secret, {epoch, 0, 0, 1}, {});
    const std::string words = call.take_output();
    CHECK(send(caller.get(), words.data(), words.size(), MSG_NOSIGNAL) == ssize_t(words.size()));
  }  // and hangs up
  hosts.run_until([&] { return second.refused() > 0; });
  for (int i = 0; i < 10; ++i) hosts.turn(Clock::now() + milliseconds(2));
  CHECK(second.refused() == 1);  // who called for a link
}

TEST_CASE("link service: many hosts prove each other at once") {
  constexpr size_t kHosts = 24;
  Hosts hosts;
  for (size_t i = 0; i < kHosts; ++i) hosts.add("127.0.0.1");
  std::vector<Outcome*> all;
  for (size_t from = 0; from < kHosts; ++from)
    for (size_t to = 0; to < kHosts; ++to)
      if (from != to) all.push_back(&hosts.prove(from, to, 0, hosts.address_of(to)));
  hosts.run_until([&] {
    return std::all_of(all.begin(), all.end(), [](const Outcome* one) { return one->there; });
  });
  for (const Outcome* one : all) CHECK(one->why.empty());
}

}  // namespace hvd
