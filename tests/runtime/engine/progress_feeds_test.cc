// What Progress owes to its feeds, and to who waits for what a feed does.
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "collectives/backends.h"
#include "runtime/engine/progress.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/until.h"

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

// Always has something, as where another thread's operations never cease; for a while.
class BusyFeed final : public Feed {
 public:
  bool feed() override { return !end_.passed(); }
  bool waiting() const override { return false; }
  void epoch_over() override {}

  bool moves() const { return !end_.passed(); }

 private:
  const Deadline end_ = Deadline::in(20s);
};

// As a GPU: its work is done when the time has come, of which it says nothing.
class SilentFeed final : public Feed {
 public:
  bool feed() override {
    if (!under_way_ || Clock::now() < due_) return false;
    under_way_ = false;
    late_ = Clock::now() - due_;
    seen_.store(true, std::memory_order_release);
    return true;
  }
  bool waiting() const override { return under_way_; }
  std::chrono::milliseconds watch(std::vector<pollfd>&) const override {
    if (std::this_thread::get_id() != beginner_) looked_ = true;
    return under_way_ ? 1ms : std::chrono::milliseconds::max();
  }
  void epoch_over() override {}

  void begin(Clock::duration lasts) {  // with the token
    beginner_ = std::this_thread::get_id();
    due_ = Clock::now() + lasts;
    under_way_ = true;
    seen_ = looked_ = false;
  }
  // By another thread than the one that began.
  bool looked() const { return looked_; }
  bool seen() const { return seen_.load(std::memory_order_acquire); }
  // Once it is seen: how much later than it could have been.
  Clock::duration late() const { return late_; }

 private:
  std::thread::id beginner_;
  TimePoint due_{};
  bool under_way_ = false;
  Clock::duration late_{};
  mutable std::atomic<bool> looked_{false};
  std::atomic<bool> seen_{false};
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

TEST_CASE("progress: a wait is timed also while something else never ceases to move") {
  Scene scene;
  BusyFeed busy;
  Awaited awaited;
  awaited.flag = &scene.progress.over();
  awaited.what = [] { return std::string("what nobody submits"); };
  awaited.timeout = 300ms;
  bool looked_out = false;
  awaited.on_sleep = [&](TimePoint) { looked_out = true; };
  scene.progress.hold();
  scene.progress.add(busy);
  scene.progress.wait_and_leave(awaited);
  CHECK(busy.moves());
  CHECK(looked_out);
  CHECK_THAT(scene.progress.end().reason(),
             Catch::Contains("waited 0.300 s for the other ranks in what"));
  scene.progress.hold();
  scene.progress.remove(busy);
  scene.progress.leave();
}

TEST_CASE("progress: who is done does not look out any more") {
  // Ends the wait in each of its first rounds, one of which is followed by a look.
  class EndingFeed final : public Feed {
   public:
    bool feed() override {
      if (--rounds == 0) ended = true;
      return rounds >= 0;
    }
    bool waiting() const override { return false; }
    void epoch_over() override {}

    int rounds = 0;
    std::atomic<bool> ended{false};
  };
  Scene scene;
  EndingFeed feed;
  scene.progress.hold();
  scene.progress.add(feed);
  scene.progress.leave();
  for (int rounds = 1; rounds <= 1100; ++rounds) {
    feed.rounds = rounds;
    feed.ended = false;
    Awaited awaited;
    awaited.flag = &feed.ended;
    awaited.what = [] { return std::string("its end"); };
    bool late = false;
    awaited.on_sleep = [&](TimePoint) { late |= feed.ended; };
    scene.progress.hold();
    scene.progress.wait_and_leave(awaited);
    CHECK_FALSE(late);
  }
  scene.progress.hold();
  scene.progress.remove(feed);
  scene.progress.leave();
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

// The engine thread has looked every millisecond, and sleeps for a second once somebody else looks.
TEST_CASE("progress: who leaves has the engine thread look after what says nothing of itself") {
  constexpr int kRounds = 12;
  constexpr auto kFarBelowBackstop = 25ms;
  Scene scene;
  SilentFeed silent;
  Peers& peers = *scene.ranks.rank(0).peers;
  scene.progress.hold();
  scene.progress.add(silent);
  scene.progress.leave();
  scene.progress.start_engine_thread();
  std::vector<Clock::duration> late;
  for (int round = 0; round < kRounds; ++round) {
    scene.progress.hold();
    silent.begin(60ms);
    scene.progress.leave();
    until("the engine thread's look", [&] { return silent.looked(); });
    std::atomic<bool> sleeps{false}, ended{false};
    std::jthread waiter([&] {
      Awaited awaited;
      awaited.flag = &ended;
      awaited.what = [] { return std::string("what ends before"); };
      awaited.on_sleep = [&](TimePoint) { sleeps = true; };
      scene.progress.hold();
      scene.progress.wait_and_leave(awaited);
    });
    until("the waiter's sleep", [&] { return sleeps.load(); });
    peers.ring(0, kEngineThread);
    until("the engine thread's look at its doorbell", [&] {
      pollfd rung{peers.doorbell(kEngineThread), POLLIN, 0};
      return poll(&rung, 1, 0) == 0;
    });
    ended = true;
    waiter.join();
    until("the end of what is under way", [&] { return silent.seen(); });
    late.push_back(silent.late());
  }
  scene.progress.stop_engine_thread();
  scene.progress.remove(silent);
  std::ranges::sort(late);
  CHECK(late[late.size() / 2] < kFarBelowBackstop);
}
