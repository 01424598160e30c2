// Learns early that a rank has died: before the kernel has freed its memory and tells its parent.
//
// A thread of its own sleeps on the robust mutexes that the ranks' engine threads hold; the kernel
// marks one when its holder ends. Then it looks whether every task of the rank is in exit. It never
// does so on the agent's loop, since reading /proc may take the last reference to a dead rank's
// memory and then frees it, 0.1 s per GiB. Kernels before 5.16 cannot wait for several words: there
// deaths are known from the pidfd alone.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "cli/loop.h"
#include "runtime/base/deadline.h"
#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"

namespace hvd {

class DeathWatch {
 public:
  enum class Finding {
    kExiting,    // no task of the process runs its program any more
    kEndedWell,  // the same, and its exit status is 0
    kAlive,      // after suspect() only: it does
  };
  // Called on the loop's thread.
  using Found = std::function<void(int slot, pid_t pid, Finding finding)>;

  DeathWatch(Loop& loop, Found found);
  ~DeathWatch();
  DeathWatch(const DeathWatch&) = delete;
  DeathWatch& operator=(const DeathWatch&) = delete;

  // The loop's thread calls these. `memory` keeps `life` mapped.
  void watch(int slot, pid_t pid, std::shared_ptr<void> memory, pthread_mutex_t* life);
  // Something speaks for the death of the process (its socket ended): look, and say either way.
  void suspect(int slot, pid_t pid);
  void forget(int slot);
  // Ranks take their mutexes about now.
  void poke();

 private:
  struct Watch {
    int slot = 0;
    pid_t pid = 0;
    std::shared_ptr<void> memory;
    std::atomic<uint32_t>* word = nullptr;  // of the mutex; null: suspected only
    bool suspected = false;                 // an answer is owed either way
    bool reported = false;
    std::optional<TimePoint> hinted;  // since when something speaks for its death
    TimePoint look{};                 // when to look at its tasks next
  };
  struct Report {
    int slot;
    pid_t pid;
    Finding finding;
  };

  void start();
  void tell();
  void run(const std::stop_token& stop);
  std::optional<Report> examine(Watch& watch, TimePoint now);
  void keep(const Watch& seen) REQUIRES(mutex_);
  void sleep(const std::vector<Watch>& watches, uint32_t changes, TimePoint poked);
  void deliver();

  Loop& loop_;
  const Found found_;
  const UniqueFd event_;
  std::atomic<uint32_t> changes_{0};  // a futex: there is something new for the thread
  Mutex mutex_;
  std::vector<Watch> watches_ GUARDED_BY(mutex_);
  std::vector<Report> reports_ GUARDED_BY(mutex_);
  TimePoint poked_ GUARDED_BY(mutex_){};
  std::jthread thread_;  // last: it ends before what it uses
};

}  // namespace hvd
