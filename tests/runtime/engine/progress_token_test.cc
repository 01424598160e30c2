// The token: one holder, no kick lost, no sleeper forgotten.
#include "runtime/engine/progress_token.h"

#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/time_limit.h"
#include "tests/support/until.h"

using namespace hvd;

namespace {

// Takes and leaves as Progress does: serves kicks before it lets go.
template <typename Serve>
void release(ProgressToken& token, Serve&& serve) {
  while (!token.try_release()) serve();
}

}  // namespace

TEST_CASE("progress token: one holder at a time, and no kick goes unserved") {
  const TimeLimit limit;
  ProgressToken token;
  int served = 0;  // guarded by the token
  std::atomic<int> left{0};
  constexpr int kThreads = 4, kKicks = 20'000;
  auto serve = [&] { served += left.exchange(0); };
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i)
      threads.emplace_back([&] {
        for (int k = 0; k < kKicks; ++k) {
          ++left;
          if (!token.take_or_kick()) continue;
          serve();
          release(token, serve);
        }
      });
  }
  REQUIRE(token.try_take());
  CHECK(served == kThreads * kKicks);
  CHECK_FALSE(token.try_take());
}

TEST_CASE("progress token: who wants it urgently gets it from a holder that passes it on") {
  const TimeLimit limit;
  ProgressToken token;
  std::atomic<bool> stop{false}, never{false};
  int turns = 0;  // guarded by the token
  std::jthread holder([&] {
    if (!token.take_unless(never)) return;
    while (!stop) {
      if (!token.wanted()) continue;
      release(token, [] {});
      if (!token.take_unless(never)) return;
    }
    release(token, [] {});
  });
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 3; ++i)
      threads.emplace_back([&] {
        for (int k = 0; k < 300; ++k) {
          token.take_urgently();
          ++turns;
          release(token, [] {});
        }
      });
  }
  stop = true;
  holder.join();
  CHECK(turns == 900);
}

TEST_CASE("progress token: a waiter wakes when its work is done by another") {
  const TimeLimit limit;
  ProgressToken token;
  for (int i = 0; i < 500; ++i) {
    std::atomic<bool> done{false};
    bool taken = true;
    REQUIRE(token.try_take());
    std::jthread waiter([&] { taken = token.take_unless(done); });
    const bool waits = i % 2 == 1 || comes_about([&] { return token.has_waiters(); });
    done = true;
    token.completed();
    waiter.join();
    REQUIRE(waits);
    CHECK_FALSE(taken);
    release(token, [] {});
  }
}

TEST_CASE("progress token: while somebody watches, waiters leave it alone until they are done") {
  const TimeLimit limit;
  ProgressToken token;
  REQUIRE(token.try_take());
  REQUIRE(token.try_release(true));
  std::atomic<bool> done{false};
  std::atomic<int> taken{-1};
  std::jthread waiter([&] { taken = token.take_unless(done) ? 1 : 0; });
  CHECK(comes_about([&] { return token.has_waiters(); }));
  CHECK(token.try_take());  // anybody may take it, the waiter does not
  CHECK(taken == -1);
  token.stop_watching();
  release(token, [] {});  // nobody watches any more: the waiter takes over
  waiter.join();
  CHECK(taken == 1);
}
