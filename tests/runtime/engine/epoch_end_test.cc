// The way out of a broken epoch, for who comes late: a communicator that was being made meanwhile.
#include "collectives/backends.h"
#include "runtime/engine/progress.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"

using namespace hvd;

namespace {

// Rank 0 of three has a Progress that knows no communicator yet; the others do nothing.
struct Scene {
  Scene() : ranks(3), progress(*ranks.rank(0).peers, {}) {
    barrier.name = "late";
    progress.hold();
  }
  ~Scene() { progress.leave(); }

  void advance() {
    while (progress.advance()) {
    }
  }
  void add_and_start() {
    Communicator& communicator = *ranks.rank(0).communicator;
    progress.add(communicator);
    communicator.start(barrier);
    advance();
  }

  RankThreads ranks;
  Progress progress;
  Operation barrier;
};

}  // namespace

TEST_CASE("epoch end: a communicator that is added when all is over fails what is started there") {
  Scene scene;
  scene.ranks.host().declare_dead(1);
  scene.ranks.host().declare_dead(2);
  scene.advance();
  REQUIRE(scene.progress.over());
  scene.add_and_start();
  CHECK(scene.barrier.outcome == Outcome::kFailedUntouched);
}

TEST_CASE("epoch end: one that is added on the way out enters nothing, and fails with the rest") {
  Scene scene;
  scene.ranks.host().declare_dead(1);
  scene.advance();
  REQUIRE(scene.progress.end().quiet());
  REQUIRE_FALSE(scene.progress.over());
  scene.add_and_start();
  CHECK(scene.barrier.outcome == Outcome::kPending);
  CHECK(scene.ranks.rank(0).communicator->entered() == 0);
  scene.ranks.host().declare_dead(2);
  scene.advance();
  CHECK(scene.progress.over());
  CHECK(scene.barrier.outcome == Outcome::kFailedUntouched);
}
