#include "cli/agent/first_look.h"

#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>

#include <utility>

#include "runtime/base/start_thread.h"

namespace hvd {
namespace {

constexpr std::chrono::seconds kSlow{1};

}  // namespace

bool FirstLook::look_at_path(const std::string& path) {
  struct stat facts{};
  return stat(path.c_str(), &facts) == 0;
}

FirstLook::FirstLook(Loop& loop, std::vector<Alternatives> wanted, std::function<void()> done,
                     Look look)
    : loop_(loop), wanted_(std::move(wanted)), look_(std::move(look)) {
  loop_.watch(over_.get(), EPOLLIN, [this, done = std::move(done)](uint32_t) {
    loop_.unwatch(over_.get());
    done();
  });
  thread_ = start_thread("the one that looks first", [this] { run(); });
}

FirstLook::~FirstLook() { loop_.unwatch(over_.get()); }

void FirstLook::run() {
  pthread_setname_np(pthread_self(), "first-look");
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  for (const Alternatives& one : wanted_)
    for (const std::string& path : one) {
      begin(path);
      if (look_(path)) break;
    }
  begin("");
  over_.wake();
}

void FirstLook::begin(const std::string& path) {
  MutexLock lock(mutex_);
  path_ = path;
  since_ = Clock::now();
}

std::optional<std::string> FirstLook::take_slow_path(TimePoint now) {
  MutexLock lock(mutex_);
  if (told_ || path_.empty() || now - since_ < kSlow) return std::nullopt;
  told_ = true;
  return path_;
}

}  // namespace hvd
