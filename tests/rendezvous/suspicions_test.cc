// When a connection that went without a proof is told of, and when it was a good agent's own.
#include "rendezvous/suspicions.h"

#include "tests/support/catch.h"

namespace hvd {
namespace {

using std::chrono::seconds;
const TimePoint kStart = TimePoint(seconds(1000));
constexpr seconds kPatience{5};

std::string said(Suspicions& suspicions, TimePoint now) {
  std::string all;
  for (const auto& [host, why, times] : suspicions.take(now))
    all += host + " " + why + " " + std::to_string(times) + ";";
  return all;
}

}  // namespace

TEST_CASE("suspicions: who came alone is told of at once") {
  Suspicions suspicions(kPatience);
  CHECK_FALSE(suspicions.next_deadline());
  suspicions.note("a", "went", false, kStart);
  CHECK(suspicions.next_deadline() == kStart);
  CHECK(said(suspicions, kStart) == "a went 1;");
  CHECK(said(suspicions, TimePoint::max()).empty());
}

TEST_CASE("suspicions: an agent's own are not told of") {
  Suspicions suspicions(kPatience);
  suspicions.note_certain("a", "late");
  CHECK(suspicions.next_deadline() == TimePoint());
  CHECK(said(suspicions, kStart) == "a late 1;");
  suspicions.note("a", "went", true, kStart);
  suspicions.note("b", "went", true, kStart);
  CHECK(said(suspicions, kStart + kPatience - seconds(1)).empty());
  suspicions.clear("a");
  CHECK(said(suspicions, TimePoint::max()) == "b went 1;");
  CHECK_FALSE(suspicions.next_deadline());
}

TEST_CASE("suspicions: where nobody proves who it is, all are told of, and in time") {
  Suspicions suspicions(kPatience);
  suspicions.note("a", "too many", true, kStart);
  suspicions.note("a", "went", true, kStart + seconds(1));
  suspicions.note("a", "went", true, kStart + seconds(4));  // the first one's time counts
  CHECK(suspicions.next_deadline() == kStart + kPatience);
  SECTION("as their time is over") {
    CHECK(said(suspicions, kStart + kPatience) == "a too many 1;a went 2;");
  }
  SECTION("as the last of them goes") {
    suspicions.note("a", "went", false, kStart + seconds(4));
    CHECK(said(suspicions, kStart + seconds(4)) == "a too many 1;a went 3;");
  }
  CHECK_FALSE(suspicions.next_deadline());
}

}  // namespace hvd
