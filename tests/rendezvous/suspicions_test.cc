// When a connection that went without a proof is told of, and when it was a good agent's own.
#include "rendezvous/suspicions.h"

#include "tests/support/catch.h"

namespace hvd {
namespace {

using std::chrono::seconds;
const TimePoint kBegin = TimePoint(seconds(1000));
constexpr seconds kPatience{5};

std::string said(Suspicions& suspicions, TimePoint now) {
  std::string all;
  for (const auto& [host, why, times] : suspicions.take(now))
    all += host + " " + why + " " + std::to_string(times) + ";";
  return all;
}

}  // namespace

TEST_CASE("suspicions: an agent's own are not told of") {
  Suspicions suspicions(kPatience);
  CHECK_FALSE(suspicions.next_deadline());
  suspicions.note_certain("a", "late");
  CHECK(suspicions.next_deadline() == TimePoint());
  CHECK(said(suspicions, kBegin) == "a late 1;");
  suspicions.note("a", "went", kBegin);
  suspicions.note("b", "went", kBegin);
  CHECK(said(suspicions, kBegin + kPatience - seconds(1)).empty());
  suspicions.clear("a");
  CHECK(said(suspicions, TimePoint::max()) == "b went 1;");
  CHECK_FALSE(suspicions.next_deadline());
}

TEST_CASE("suspicions: where no agent comes all are told of, the first one's time long after it") {
  Suspicions suspicions(kPatience);
  suspicions.note("a", "too many", kBegin);
  suspicions.note("a", "went", kBegin + seconds(1));
  suspicions.note("a", "went", kBegin + seconds(4));
  CHECK(suspicions.next_deadline() == kBegin + kPatience);
  CHECK(said(suspicions, kBegin + kPatience) == "a too many 1;a went 2;");
  CHECK_FALSE(suspicions.next_deadline());
}

TEST_CASE("suspicions: no more addresses are held than have room") {
  Suspicions suspicions(kPatience);
  for (int i = 0; i < 1024; ++i) suspicions.note(std::to_string(i), "went", kBegin);
  suspicions.note("0", "went", kBegin);
  CHECK(said(suspicions, kBegin).empty());
  suspicions.note("a", "went", kBegin);
  CHECK(said(suspicions, kBegin) == "a went 1;");
}

}  // namespace hvd
