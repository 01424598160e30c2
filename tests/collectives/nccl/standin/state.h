// What the stand-ins of CUDA and of NCCL share: settings, counts, violations, threads.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

// Seen by the other stand-in's library, and by none of the product's.
#define HVD_STANDIN_API __attribute__((visibility("default")))

namespace hvd {

// See tests/collectives/nccl/standin.h.
HVD_STANDIN_API std::string setting(const std::string& name);  // empty: not set
HVD_STANDIN_API long long setting(const std::string& name, long long otherwise);

HVD_STANDIN_API void count(const std::string& name, int device, long long amount = 1);

// Notes a broken rule, or ends the process.
HVD_STANDIN_API void violate(const std::string& text);
HVD_STANDIN_API void note_mismatch(const std::string& text);

// 0 … bound - 1, from the seed.
HVD_STANDIN_API long long random_below(long long bound);
// Lets time pass for work that is slow.
HVD_STANDIN_API void pass_time(long long us);

// Calls it whenever a setting has changed, by its name, and with none when something else has that
// others may wait for. Never while a lock is held.
using Listener = void (*)(const std::string& setting);
HVD_STANDIN_API void listen_to_changes(Listener listener);
HVD_STANDIN_API void tell_change(const std::string& setting = "");

// Runs `job` on a thread that has nothing else to do. These threads live as long as the process.
HVD_STANDIN_API void run_in_background(std::function<void()> job);

// What hvd_standin_quiet() tells: whether a job does anything, and whether anything has come to
// where one waits.
HVD_STANDIN_API bool is_in_background();
HVD_STANDIN_API void stand_still();
HVD_STANDIN_API void move_on(int jobs);
HVD_STANDIN_API void await_from(int fd);
HVD_STANDIN_API void await_no_more_from(int fd);

// As std::condition_variable, but who is told counts as moving at once. All of it with the lock.
class Condition {
 public:
  template <class Predicate>
  void wait(std::unique_lock<std::mutex>& lock, Predicate is_so) {
    while (!is_so()) {
      const uint64_t seen = changes_;
      if (is_in_background()) {
        ++waiting_;
        stand_still();
      }
      changed_.wait(lock, [&] { return changes_ != seen; });
    }
  }
  // Moving, since it comes to an end.
  template <class Duration, class Predicate>
  void wait_for(std::unique_lock<std::mutex>& lock, Duration most, Predicate is_so) {
    changed_.wait_for(lock, most, is_so);
  }
  void notify_all() {
    ++changes_;
    move_on(std::exchange(waiting_, 0));
    changed_.notify_all();
  }

 private:
  std::condition_variable changed_;
  uint64_t changes_ = 0;
  int waiting_ = 0;
};

}  // namespace hvd
