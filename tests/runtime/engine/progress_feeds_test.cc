// What Progress owes to its feeds, and to who waits for what a feed does.
#include <atomic>
#include <thread>

#include "collectives/backends.h"
#include "runtime/engine/progress.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

class LateFeed final : public Feed {
 public:
  bool feed() override { return answered && moves; }
  bool waiting() const override { return false; }
  void epoch_over() override { told_over = true; }
  void look() override { answered = true; }

  std::atomic<bool> answered{false}, moves{false};
  bool told_over = false;
};

struct Scene {
  ~Scene() { progress.remove(feed); }

  RankThreads ranks{std::vector<int>{1}, tcp_factory()};
  Progress progress{*ranks.rank(0).peers, {}};
  LateFeed feed;
};

}  // namespace

TEST_CASE("progress: what a look has answered is not waited for any longer") {
  Scene scene;
  scene.progress.hold();
  scene.progress.add(scene.feed);
  scene.progress.leave();
  std::atomic<bool> ended{false};
  std::jthread waiter([&] {
    Awaited awaited;
    awaited.flag = &scene.feed.answered;
    awaited.what = [] { return std::string("a look"); };
    scene.progress.hold();
    scene.progress.wait_and_leave(awaited);
    ended = true;
  });
  const Deadline end = Deadline::in(20s);
  while (!ended && !end.passed()) std::this_thread::yield();
  CHECK(ended);
  scene.feed.moves = true;  // ends a wait that went on
}

TEST_CASE("progress: a feed that comes when the epoch is over is told") {
  Scene scene;
  raise_trouble(*scene.ranks.rank(0).peers, TroubleReason::kAbort, "for a test");
  scene.progress.hold();
  const Deadline end = Deadline::in(60s);
  while (!scene.progress.over() && !end.passed()) scene.progress.advance();
  REQUIRE(scene.progress.over());
  scene.progress.add(scene.feed);
  CHECK(scene.feed.told_over);
  scene.progress.leave();
}
