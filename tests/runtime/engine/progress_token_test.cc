// The token: one holder, no kick lost, no sleeper forgotten.
#include "runtime/engine/progress_token.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/time_limit.h"
#include "tests/support/until.h"

using namespace hvd;

namespace {

// Of a thread of this process, as proc(5) has it.
std::string status_of(pid_t thread, const std::string& line) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/status");
  for (std::string word; file >> word;)
    if (word == line + ":" && file >> word) return word;
  return "";
}
char state_of(pid_t thread) { return status_of(thread, "State")[0]; }
int times_slept(pid_t thread) {
  const std::string count = status_of(thread, "voluntary_ctxt_switches");
  return count.empty() ? 0 : std::stoi(count);
}

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

// A thread that sleeps and is woken has slept once more.
TEST_CASE("progress token: who is done is woken, and one for the token, but nobody else") {
  const TimeLimit limit;
  constexpr int kWaiters = 8;
  ProgressToken token;
  REQUIRE(token.try_take());
  std::array<std::atomic<bool>, kWaiters> done{};
  std::array<std::atomic<pid_t>, kWaiters> threads{};
  std::atomic<int> back{0};
  std::vector<std::jthread> waiters;
  for (size_t k = 0; k < kWaiters; ++k)
    waiters.emplace_back([&, k] {
      threads[k] = gettid();
      if (token.take_unless(done[k])) release(token, [] {});
      ++back;
    });
  // In two looks one after the other: the first may find one on its way to sleep.
  std::array<int, kWaiters> before{};
  until("all sleep", [&] {
    bool asleep = true;
    for (size_t k = 0; k < kWaiters; ++k) {
      const int slept = threads[k] == 0 ? 0 : times_slept(threads[k]);
      asleep &=
          slept != 0 && slept == std::exchange(before[k], slept) && state_of(threads[k]) == 'S';
    }
    return asleep;
  });
  done[3] = true;
  token.completed();
  until("it is back", [&] { return back == 1; });
  for (size_t k = 0; k < kWaiters; ++k)
    if (k != 3) CHECK(times_slept(threads[k]) == before[k]);
  for (std::atomic<bool>& one : done) one = true;
  release(token, [] {});
  token.completed();
}

// Two want it at once; who gets it first lets go as a watcher, or while another watches.
TEST_CASE("progress token: no urgent waiter is forgotten for another") {
  const bool another_watches = GENERATE(true, false);
  CAPTURE(another_watches);
  const TimeLimit limit;
  for (int round = 0; round < 50; ++round) {
    ProgressToken token;
    std::atomic<int> taken{0};
    REQUIRE(token.try_take());
    std::vector<std::jthread> threads;
    for (int k = 0; k < 2; ++k)
      threads.emplace_back([&] {
        token.take_urgently();
        ++taken;
        while (!token.try_release(!another_watches)) {
        }
      });
    until("both sleep", [&] { return token.waiters() == 2 && token.wanted(); });
    while (!token.try_release(another_watches)) {
    }
    CHECK(comes_about([&] { return taken == 2; }));
    token.stop_watching();
    while (taken != 2)  // a test that has failed ends, too
      if (token.try_take()) release(token, [] {});
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
