// Who is named for a leader that was asked and says nothing, by literals.
#include "runtime/engine/leader_pulse.h"

#include "tests/support/catch.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

using Ranks = std::vector<int>;

// Rank 3 looks at its leader, rank 2, ten times a second.
struct Scene {
  Scene() { pulse.look(looks, rounds, now); }
  void pass(Clock::duration time, bool works = false) {
    for (const TimePoint end = now + time; now < end;)
      pulse.look(looks, works ? ++rounds : rounds, now += 100ms);
  }
  // It has seen that 0 and 4 are missing.
  Ranks named() const { return pulse.who_did_not_say(2, asked_at_look, {0, 4}); }

  LeaderPulse pulse;
  TimePoint now{1000s};
  uint64_t looks = 5, rounds = 70, asked_at_look = 5;
};

}  // namespace

TEST_CASE("leader pulse: a leader that has stood still for two seconds is named") {
  Scene scene;
  scene.pass(1900ms);
  CHECK(scene.named().empty());
  scene.pass(100ms);
  CHECK(scene.named() == Ranks{2});
}

TEST_CASE("leader pulse: so is one that worked, and looked, after it was asked") {
  Scene scene;
  scene.pass(3s, true);
  scene.looks += GENERATE(0, 1, 2);
  scene.pass(1900ms);
  CHECK_FALSE(scene.pulse.stands_still());
  scene.pass(100ms);
  CHECK(scene.named() == Ranks{2});
}

TEST_CASE("leader pulse: for a leader that works without pause nobody is named") {
  Scene scene;
  for (int look = 0; look < 2; ++look, ++scene.looks) {  // the first may have been under way
    scene.pass(10s, true);
    CHECK(scene.named().empty());
  }
}

TEST_CASE("leader pulse: where it was passed on rank 0 would have named others than itself") {
  Scene scene;
  scene.looks += 2;
  scene.pass(1s);
  CHECK(scene.named() == Ranks{0});
  CHECK(scene.pulse.who_did_not_say(2, 5, {4}) == Ranks{4});
}

TEST_CASE("leader pulse: while this process stood still its leader did not") {
  Scene scene;
  scene.pass(1s);  // as long as a leader sleeps
  scene.pulse.look(scene.looks, scene.rounds, scene.now += 60s);
  CHECK_FALSE(scene.pulse.stands_still());
  scene.pulse.look(scene.looks, scene.rounds, scene.now += 1s);
  CHECK(scene.pulse.stands_still());
}
