// How many strangers may knock at once, and for how long.
#include "rendezvous/admission.h"

#include "tests/support/catch.h"

namespace hvd {
namespace {

using std::chrono::seconds;
const TimePoint kStart = TimePoint(seconds(1000));

}  // namespace

TEST_CASE("admission: few from one address, and others beside it") {
  Admission admission({.all = 5, .per_address = 2});
  const auto one = admission.admit("a", kStart);
  REQUIRE(one);
  CHECK(admission.admit("a", kStart));
  CHECK_FALSE(admission.admit("a", kStart));
  CHECK(admission.admit("b", kStart));
  admission.settle(*one);
  CHECK(admission.admit("a", kStart));
  CHECK_FALSE(admission.full());
}

TEST_CASE("admission: full is full, until one is settled") {
  Admission admission({.all = 3, .per_address = 3});
  std::vector<Admission::Ticket> tickets;
  for (const char* host : {"a", "b", "c"}) tickets.push_back(admission.admit(host, kStart).value());
  CHECK(admission.full());
  CHECK_FALSE(admission.admit("d", kStart));
  admission.settle(tickets[1]);
  admission.settle(tickets[1]);  // as often as one likes
  CHECK_FALSE(admission.full());
  CHECK(admission.admit("d", kStart));
  CHECK(admission.full());
}

TEST_CASE("admission: each has its time, and its place is free after it") {
  Admission admission({.all = 2, .per_address = 2, .patience = seconds(5)});
  CHECK_FALSE(admission.next_deadline());
  const auto first = admission.admit("a", kStart).value();
  const auto second = admission.admit("a", kStart + seconds(1)).value();
  CHECK(admission.next_deadline() == kStart + seconds(5));
  CHECK(admission.take_late(kStart + seconds(5) - Clock::duration(1)).empty());
  CHECK(admission.take_late(kStart + seconds(5)) == std::vector{first});
  CHECK(admission.next_deadline() == kStart + seconds(6));
  const auto third = admission.admit("a", kStart + seconds(5)).value();
  CHECK(admission.take_late(kStart + seconds(60)) == std::vector{second, third});
  CHECK(admission.take_late(kStart + seconds(60)).empty());
}

TEST_CASE("admission: 64 at once, 8 from an address, 5 seconds") {
  const Admission::Limits limits;
  CHECK(limits.all == 64);
  CHECK(limits.per_address == 8);
  CHECK(limits.patience == seconds(5));
}

}  // namespace hvd
