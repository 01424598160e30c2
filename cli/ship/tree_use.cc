#include "cli/ship/tree_use.h"

#include <pthread.h>
#include <sys/stat.h>

#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <utility>

#include "runtime/base/start_thread.h"

namespace hvd {

TreeUse::TreeUse(std::vector<UniqueFd> trees, std::chrono::milliseconds every)
    : trees_(std::move(trees)),
      thread_(start_thread("the trees'", [this, every](const std::stop_token& stop) {
        pthread_setname_np(pthread_self(), "tree-use");
        std::mutex mutex;
        std::condition_variable_any asleep;
        for (std::unique_lock lock(mutex); !stop.stop_requested();) {
          asleep.wait_for(lock, stop, every, [] { return false; });
          for (const UniqueFd& one : trees_) futimens(one.get(), nullptr);
        }
      })) {}

TreeUse::~TreeUse() = default;

}  // namespace hvd
