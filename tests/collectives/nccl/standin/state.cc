#include "tests/collectives/nccl/standin/state.h"

#include <poll.h>

#include <cctype>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
#include "tests/collectives/nccl/standin.h"
#pragma GCC visibility pop

namespace hvd {
namespace {

struct State {
  std::mutex mutex;
  std::map<std::string, std::string> settings;
  std::map<std::pair<std::string, int>, long long> counts;
  std::deque<std::string> violations, mismatches;  // texts that were forgotten stay
  size_t forgotten = 0;
  std::mt19937_64 random{static_cast<uint64_t>(1)};
  bool seeded = false;
  std::vector<Listener> listeners;
};

// Never destroyed: threads go on while the process ends.
State& state() {
  static State& only = *new State;
  return only;
}

struct Background {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> jobs;
  size_t idle = 0;
  std::deque<std::jthread> threads;
};

Background& background() {
  static Background& only = *new Background;
  return only;
}

// Of jobs.
struct Movement {
  std::mutex mutex;
  int moving = 0;
  std::vector<pollfd> awaited;
};

Movement& movement() {
  static Movement& only = *new Movement;
  return only;
}

thread_local bool in_background = false;

void serve() {
  in_background = true;
  Background& pool = background();
  std::unique_lock lock(pool.mutex);
  for (;;) {
    ++pool.idle;
    pool.changed.wait(lock, [&] { return !pool.jobs.empty(); });
    --pool.idle;
    auto job = std::move(pool.jobs.front());
    pool.jobs.pop_front();
    lock.unlock();
    job();
    job = nullptr;
    stand_still();
    lock.lock();
  }
}

}  // namespace

std::string setting(const std::string& name) {
  {
    const std::lock_guard lock(state().mutex);
    if (const auto found = state().settings.find(name); found != state().settings.end())
      return found->second;
  }
  std::string variable = "HVD_STANDIN_";
  for (const char letter : name)
    variable += static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  const char* value = std::getenv(variable.c_str());
  return value == nullptr ? "" : value;
}

long long setting(const std::string& name, long long otherwise) {
  const std::string value = setting(name);
  return value.empty() ? otherwise : std::stoll(value);
}

void count(const std::string& name, int device, long long amount) {
  const std::lock_guard lock(state().mutex);
  state().counts[{name, device}] += amount;
}

void violate(const std::string& text) {
  {
    const std::lock_guard lock(state().mutex);
    state().violations.push_back(text);
  }
  if (setting("abort_on_violation", 1) == 0) return;
  std::fprintf(stderr, "stand-in: %s\n", text.c_str());
  std::abort();
}

void note_mismatch(const std::string& text) {
  const std::lock_guard lock(state().mutex);
  state().mismatches.push_back(text);
}

long long random_below(long long bound) {
  if (bound <= 0) return 0;
  const long long seed = setting("seed", 1);
  const std::lock_guard lock(state().mutex);
  if (!std::exchange(state().seeded, true)) state().random.seed(static_cast<uint64_t>(seed));
  return static_cast<long long>(state().random() % static_cast<uint64_t>(bound));
}

void pass_time(long long us) {
  if (us <= 0) return;
  std::mutex mutex;
  std::condition_variable never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, std::chrono::microseconds(us), [] { return false; });
}

void listen_to_changes(Listener listener) {
  const std::lock_guard lock(state().mutex);
  state().listeners.push_back(listener);
}

void tell_change(const std::string& setting) {
  std::vector<Listener> listeners;
  {
    const std::lock_guard lock(state().mutex);
    listeners = state().listeners;
  }
  for (const Listener listener : listeners) listener(setting);
}

void run_in_background(std::function<void()> job) {
  Background& pool = background();
  move_on(1);
  const std::lock_guard lock(pool.mutex);
  pool.jobs.push_back(std::move(job));
  if (pool.jobs.size() > pool.idle) pool.threads.emplace_back(serve);
  pool.changed.notify_one();
}

bool is_in_background() { return in_background; }

void stand_still() {
  const std::lock_guard lock(movement().mutex);
  --movement().moving;
}

void move_on(int jobs) {
  const std::lock_guard lock(movement().mutex);
  movement().moving += jobs;
}

void await_from(int fd) {
  const std::lock_guard lock(movement().mutex);
  movement().awaited.push_back({fd, POLLIN, 0});
}

void await_no_more_from(int fd) {
  const std::lock_guard lock(movement().mutex);
  std::erase_if(movement().awaited, [fd](const pollfd& each) { return each.fd == fd; });
}

}  // namespace hvd

void hvd_standin_set(const char* name, const char* value) {
  {
    const std::lock_guard lock(hvd::state().mutex);
    if (value == nullptr) hvd::state().settings.erase(name);
    if (value != nullptr) hvd::state().settings[name] = value;
    if (std::string(name) == "seed") hvd::state().seeded = false;
  }
  hvd::tell_change(name);
}

// Who is told or sent something moves on before that is taken, so nothing is missed.
int hvd_standin_quiet() {
  const std::lock_guard lock(hvd::movement().mutex);
  std::vector<pollfd>& awaited = hvd::movement().awaited;
  return hvd::movement().moving == 0 && ::poll(awaited.data(), awaited.size(), 0) == 0 ? 1 : 0;
}

long long hvd_standin_count(const char* name, int device) {
  const std::lock_guard lock(hvd::state().mutex);
  long long sum = 0;
  for (const auto& [key, amount] : hvd::state().counts)
    if (key.first == name && (device < 0 || key.second == device)) sum += amount;
  return sum;
}

void hvd_standin_reset_counts() {
  const std::lock_guard lock(hvd::state().mutex);
  hvd::state().counts.clear();
}

int hvd_standin_violations() {
  const std::lock_guard lock(hvd::state().mutex);
  return static_cast<int>(hvd::state().violations.size() - hvd::state().forgotten);
}

const char* hvd_standin_violation(int number) {
  const std::lock_guard lock(hvd::state().mutex);
  const size_t k = hvd::state().forgotten + static_cast<size_t>(number);
  return k < hvd::state().violations.size() ? hvd::state().violations[k].c_str() : "";
}

void hvd_standin_forget_violations() {
  const std::lock_guard lock(hvd::state().mutex);
  hvd::state().forgotten = hvd::state().violations.size();
}

int hvd_standin_mismatches() {
  const std::lock_guard lock(hvd::state().mutex);
  return static_cast<int>(hvd::state().mismatches.size());
}

const char* hvd_standin_mismatch(int number) {
  const std::lock_guard lock(hvd::state().mutex);
  const size_t k = static_cast<size_t>(number);
  return k < hvd::state().mismatches.size() ? hvd::state().mismatches[k].c_str() : "";
}
