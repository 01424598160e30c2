// How many strangers may knock at once, for how long, and who gives its place to another.
#include "rendezvous/admission.h"

#include "tests/support/catch.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
const TimePoint kStart = TimePoint(seconds(1000));
const Clock::duration kMoment(1);

}  // namespace

TEST_CASE("admission: few from one address, and others beside it") {
  Admission admission({.all = 5, .per_address = 2});
  const auto one = admission.admit("a", kStart);
  REQUIRE(one);
  CHECK(admission.admit("a", kStart));
  CHECK_FALSE(admission.admit("a", kStart));
  CHECK(admission.admit("b", kStart));
  admission.settle(one->ticket);
  CHECK(admission.admit("a", kStart));
  CHECK(admission.accepts_at() <= kStart);
}

TEST_CASE("admission: full is full, until one is settled") {
  Admission admission({.all = 3, .per_address = 3});
  std::vector<Admission::Ticket> tickets;
  for (const char* host : {"a", "b", "c"})
    tickets.push_back(admission.admit(host, kStart).value().ticket);
  CHECK(admission.accepts_at() == kStart + seconds(1));
  CHECK_FALSE(admission.admit("d", kStart));
  admission.settle(tickets[1]);
  admission.settle(tickets[1]);  // as often as one likes
  CHECK(admission.accepts_at() <= kStart);
  CHECK(admission.admit("d", kStart));
  CHECK(admission.accepts_at() == kStart + seconds(1));
}

TEST_CASE("admission: each has its time, and its place is free after it") {
  Admission admission({.all = 2, .per_address = 2, .patience = seconds(5)});
  CHECK_FALSE(admission.next_deadline());
  const auto first = admission.admit("a", kStart).value().ticket;
  const auto second = admission.admit("a", kStart + seconds(1)).value().ticket;
  CHECK(admission.next_deadline() == kStart + seconds(5));
  CHECK(admission.take_late(kStart + seconds(5) - kMoment).empty());
  CHECK(admission.take_late(kStart + seconds(5)) == std::vector{first});
  CHECK(admission.next_deadline() == kStart + seconds(6));
  const auto third = admission.admit("a", kStart + seconds(5)).value().ticket;
  CHECK(admission.take_late(kStart + seconds(60)) == std::vector{second, third});
  CHECK(admission.take_late(kStart + seconds(60)).empty());
}

TEST_CASE("admission: who had some time gives its place to who comes next from there") {
  Admission admission({.all = 9, .per_address = 2});
  admission.admit("b", kStart);  // the oldest of all, and not in the way
  const auto first = admission.admit("a", kStart).value().ticket;
  const auto second = admission.admit("a", kStart + milliseconds(500)).value().ticket;
  CHECK_FALSE(admission.admit("a", kStart + seconds(1) - kMoment));
  const auto third = admission.admit("a", kStart + seconds(1));
  REQUIRE(third);
  CHECK(third->displaced == first);
  CHECK_FALSE(admission.admit("a", kStart + seconds(1)));
  const auto fourth = admission.admit("a", kStart + seconds(2));
  REQUIRE(fourth);
  CHECK(fourth->displaced == second);
  CHECK_FALSE(admission.admit("b", kStart + seconds(2)).value().displaced);
}

TEST_CASE("admission: full, the oldest of all gives its place") {
  Admission admission({.all = 3, .per_address = 2});
  const auto first = admission.admit("a", kStart).value().ticket;
  admission.admit("b", kStart);
  admission.admit("c", kStart + kMoment);
  CHECK(admission.accepts_at() == kStart + seconds(1));
  CHECK_FALSE(admission.admit("d", kStart + seconds(1) - kMoment));
  CHECK(admission.admit("d", kStart + seconds(1)).value().displaced == first);
  CHECK(admission.accepts_at() == kStart + seconds(1));  // the next one is as old
}

TEST_CASE("admission: 64 at once, 8 from an address, 5 seconds, 1 where others wait") {
  const Admission::Limits limits;
  CHECK(limits.all == 64);
  CHECK(limits.per_address == 8);
  CHECK(limits.patience == seconds(5));
  CHECK(limits.at_least == seconds(1));
}

}  // namespace hvd
