// Taking, moving, sleeping; what is looked at while time passes is in progress_ticks.cc.
#include "runtime/engine/progress.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "runtime/base/error.h"
#include "runtime/base/start_thread.h"
#include "runtime/base/usable_cpus.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

// An affinity mask does not say who else runs there: two spinners on one CPU cost each other whole
// time slices.
constexpr auto kSpinAlone = 20us;
constexpr auto kBeforeSleep = 1ms;
constexpr auto kBeforeLookingAgain = 1ms;  // whether a peer is still on this CPU, by spinning once
constexpr unsigned kTriesPerLook = 64;     // tries between two looks at the clock
constexpr unsigned kRoundsPerLook = 256;   // the same, while something moves
constexpr auto kLookOutEvery = 50ms;       // who never sleeps
// The backstop covers a publisher that was stopped between its store and its ring.
constexpr auto kBackstopAtFirst = 50ms, kBackstop = 1000ms;
constexpr auto kNotLater = 1ms;  // is no reason to wake a sleeper
constexpr int kExitWithoutAgent = 125;

TimePoint when_to_look(std::chrono::milliseconds again) {
  return again == std::chrono::milliseconds::max() ? TimePoint::max() : Clock::now() + again;
}

// Ranks of other hosts that are this machine, too, share its CPUs.
int ranks_here(Peers& peers) { return static_cast<int>(peers.block().machine_ranks); }

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Progress::Progress(Peers& peers, ProgressOptions options)
    : peers_(peers),
      words_(peers.block().rank(peers.world().local_rank)),
      options_(std::move(options)),
      may_spin_(ranks_here(peers) <= usable_cpus()),
      idle_cpus_(2 * ranks_here(peers) <= usable_cpus()),
      end_(peers),
      stall_inspector_(options_.stall_warning, options_.stall_shutdown) {}

Progress::~Progress() { stop_engine_thread(); }

// --- Moving.

bool Progress::advance() {
  try {
    return advance_all();
  } catch (const std::exception& error) {
    return break_off(error);
  }
}

// An error of our own, of a feed: the epoch ends on all ranks.
bool Progress::break_off(const std::exception& error) {
  // On the way out too: as an error of a communicator.
  if (end_.broken()) check_failed("advance()", error.what(), __FILE__, __LINE__);
  const int me = peers_.world().rank;
  raise_trouble(peers_, TroubleReason::kEngineError,
                "rank " + std::to_string(me) + " failed: " + error.what(), std::span(&me, 1));
  return true;
}

bool Progress::advance_all() {
  bool moved = end_.trouble_is_new() && end_.advance(communicators_);
  for (Feed* feed : feeds_) moved |= feed->feed();
  for (Communicator* communicator : communicators_)
    if (!communicator->idle()) moved |= advance(*communicator);
  if (end_.broken() || end_.closed()) [[unlikely]] {
    moved |= end_.advance(communicators_);
    if (end_.over() && !told_over_) {
      told_over_ = true;
      for (Feed* feed : feeds_) feed->epoch_over();
    }
  }
  if (moved && !awaited_.empty()) settle_awaited();
  return moved;
}

bool Progress::is_done(const Awaited& awaited) {
  if (awaited.operation != nullptr)
    return awaited.operation->outcome.load(std::memory_order_acquire) != Outcome::kPending;
  return awaited.flag != nullptr ? awaited.flag->load(std::memory_order_acquire) : awaited.when();
}

void Progress::settle_awaited() {
  bool any = false;
  int slept = 0;
  std::erase_if(awaited_, [&](Awaited* one) {
    const bool done = is_done(*one);
    if (done && one->since != TimePoint{}) ++slept;
    if (done) one->done.store(true, std::memory_order_release);  // from here on it may be gone
    any |= done;
    return done;
  });
  if (!any) return;
  if (slept != 0 && (slept_ -= slept) == 0) say_asleep();
  token_.completed();
  if (token_.watched()) peers_.ring(peers_.world().local_rank, kCaller);
}

void Progress::kick() {
  if (!token_.take_or_kick()) return;
  disarm();
  advance();
  leave();
}

void Progress::kick_and_work() {
  if (!token_.take_or_kick()) return;
  disarm();
  while (advance() && !idle_cpus_ && !token_.wanted()) {
  }
  leave();
}

void Progress::leave() {
  for (;;) {
    if (const uint32_t sleepers = sleepers_wanted(); sleepers != 0) {
      arm(sleepers);
      if (advance()) {  // what moved may go on moving without another ring from outside
        if ((sleepers >> kEngineThread & 1) != 0) ring_engine_thread();
        if ((sleepers >> kCaller & 1) != 0) peers_.ring(peers_.world().local_rank, kCaller);
      }
      // Between hosts nobody rings: a sleeper that polls too few links has to look again.
      if ((sleepers >> kEngineThread & 1) != 0 && has_unwatched_links(kEngineThread))
        ring_engine_thread();
      if ((sleepers >> kCaller & 1) != 0 && has_unwatched_links(kCaller))
        peers_.ring(peers_.world().local_rank, kCaller);
    }
    if (token_.try_release()) return;
    advance();  // kicked
  }
}

// Whom peers have to ring from now on, since this thread no longer looks.
uint32_t Progress::sleepers_wanted() const {
  if (token_.watched()) return 1u << kCaller;
  if (token_.has_waiters()) return 0;  // one of them takes over
  return outstanding() ? 1u << kEngineThread : 0;
}

bool Progress::outstanding() const {
  if (end_.closed() && !end_.over() && (end_.broken() || !end_.quiet())) return true;
  return std::any_of(communicators_.begin(), communicators_.end(),
                     [](const Communicator* one) { return !one->idle(); }) ||
         std::any_of(feeds_.begin(), feeds_.end(), [](const Feed* one) { return one->waiting(); });
}

// --- Waiting.

void Progress::wait_and_leave(Awaited& awaited) {
  awaited_.push_back(&awaited);
  awaited.since = {};
  settle_awaited();
  Pacing pacing;
  bool held = true;
  while (held && !awaited.done.load(std::memory_order_acquire)) {
    if (advance()) {
      pacing = {.busy = pacing.busy};
      if (++pacing.busy % kRoundsPerLook == 0 && !awaited.done.load(std::memory_order_acquire))
        look_out(awaited, kLookOutEvery);
      if (token_.wanted()) held = pass_on(awaited);
      continue;
    }
    switch (next_pause(pacing)) {
      case Pause::kSpin:
        pause_cpu();
        break;
      case Pause::kYield:
        if (token_.wanted()) {
          held = pass_on(awaited);
        } else {
          sched_yield();
        }
        break;
      case Pause::kSleep:
        held = rest(awaited);
        break;
    }
  }
  // Without the token something else may still be under way that nobody looks after now.
  if (held) {
    leave();
  } else {
    kick();
  }
}

// There may be CPUs enough, and the scheduler may put two ranks on one all the same because others
// use the rest. Each says where it waited; who finds a peer there lets it run at once for a while.
bool Progress::is_peer_here() {
  const auto here = static_cast<uint32_t>(sched_getcpu() + 1);  // 0 when it is not known
  const World& world = peers_.world();
  if (words_.cpu.load(std::memory_order_relaxed) != here)
    words_.cpu.store(here, std::memory_order_relaxed);
  for (int k = 0; k < world.local_size; ++k)
    if (k != world.local_rank && here != 0 &&
        peers_.block().rank(k).cpu.load(std::memory_order_relaxed) == here)
      return true;
  return false;
}

Progress::Pause Progress::next_pause(Pacing& pacing) {
  if (spins() && ++pacing.tries % kTriesPerLook != 0) return Pause::kSpin;
  const TimePoint now = Clock::now();
  if (pacing.idle_since == TimePoint{}) pacing.idle_since = now;
  const auto idle = now - pacing.idle_since;
  if (idle > kBeforeSleep) return Pause::kSleep;
  if (!may_spin_ || (shares_cpu_ && now < shares_cpu_until_)) return Pause::kYield;
  shares_cpu_ = false;
  if (idle < kSpinAlone) return Pause::kSpin;
  shares_cpu_ = is_peer_here();
  shares_cpu_until_ = now + kBeforeLookingAgain;
  return Pause::kYield;
}

// Somebody wants the token in order to start something. True: back with the token.
bool Progress::pass_on(Awaited& awaited) {
  leave();
  if (!token_.take_unless(awaited.done)) return false;
  disarm();
  return true;
}

// What a wait owes while time passes, unless that was looked at so shortly before.
void Progress::look_out(Awaited& awaited, Clock::duration before) {
  const TimePoint now = Clock::now();
  if (job_time(now) - last_tick_ < before) return;
  for (Awaited* one : awaited_) {  // the others are asleep until they have the token
    if (one->since != TimePoint{}) continue;
    one->since = job_time(now);
    ++slept_;
  }
  say_asleep();
  if (awaited.on_sleep) awaited.on_sleep(now);
  tick(now);
}

// Nothing moves: sleeps. One thread watches the doorbell, others wait for it. True: with the token.
bool Progress::rest(Awaited& awaited) {
  look_out(awaited, Clock::duration::min());
  if (token_.watched()) return pass_on(awaited);
  const bool agent_answers = agent_answers_ > 0;
  const auto most = backstop(awaited);
  drain(kCaller);
  arm(1u << kCaller);
  const bool moved = advance();
  watch_links(kCaller);
  const auto until_look = std::min(most, links_again_);
  if (moved || awaited.done.load(std::memory_order_acquire) || !token_.try_release(true)) {
    disarm();
    advance();
    return true;
  }
  poll_doorbell(kCaller, true, agent_answers, until_look);
  token_.stop_watching();
  if (!token_.try_take() && !token_.take_unless(awaited.done)) return false;
  disarm();
  return true;
}

// Whoever sleeps already has to look out for the agent from now on.
void Progress::watch_agent(bool watch) {
  agent_answers_ += watch ? 1 : -1;
  if (watch && token_.watched()) peers_.ring(peers_.world().local_rank, kCaller);
}

void Progress::wait_until_over() {
  if (over().load(std::memory_order_acquire)) return;
  hold();
  Awaited awaited;
  awaited.flag = &over();
  awaited.what = [] { return std::string("the end of a broken epoch"); };
  wait_and_leave(awaited);
}

// --- Sleeping.

void Progress::arm(uint32_t sleepers) {
  armed_ = sleepers;
  say_asleep();
  full_fence();  // what follows looks at other words once more
}

void Progress::lower_arms() {
  armed_ = 0;
  say_asleep();
}

void Progress::say_asleep() {
  words_.asleep.store(armed_ | (slept_ > 0 ? kWaitsBit : 0), std::memory_order_relaxed);
}

void Progress::ring_engine_thread() {
  if (!engine_rung_.exchange(true)) peers_.ring(peers_.world().local_rank, kEngineThread);
}

void Progress::drain(Sleeper sleeper) {
  uint64_t rings;
  while (read(peers_.doorbell(sleeper), &rings, sizeof rings) < 0 && errno == EINTR) {
  }
}

// With the token: what this sleeper polls from now on.
void Progress::watch_links(Sleeper sleeper) {
  std::vector<pollfd>& links = links_[sleeper];
  links.clear();
  links_again_ = watch_all(links);
  look_at_[sleeper] = when_to_look(links_again_);
}

std::chrono::milliseconds Progress::watch_all(std::vector<pollfd>& links) const {
  auto again = std::chrono::milliseconds::max();
  for (const Communicator* one : communicators_) again = std::min(again, one->watch(links));
  for (const Feed* one : feeds_) again = std::min(again, one->watch(links));
  return again;
}

// With the token: would the sleeper miss what comes in, or look too late for what says nothing of
// itself, as a GPU does?
bool Progress::has_unwatched_links(Sleeper sleeper) {
  links_wanted_.clear();
  const auto again = watch_all(links_wanted_);
  const TimePoint look_at = when_to_look(again);
  if (links_wanted_.empty() && look_at == TimePoint::max()) return false;
  // The engine thread says that it stops polling, and looking when it said it would, before it
  // looks whether somebody else works.
  full_fence();
  if (sleeper == kEngineThread && !engine_watches_.load(std::memory_order_relaxed)) return true;
  const auto not_later = again == 0ms ? 0ms : kNotLater;
  const bool sooner = look_at != TimePoint::max() && look_at + not_later < look_at_[sleeper];
  return sooner || !std::ranges::all_of(links_wanted_, [&](const pollfd& wanted) {
           return std::ranges::any_of(links_[sleeper], [&](const pollfd& link) {
             return link.fd == wanted.fd && (wanted.events & ~link.events) == 0;
           });
         });
}

std::chrono::milliseconds Progress::backstop(const Awaited& awaited) const {
  auto most = awaited.waited < 1s ? kBackstopAtFirst : kBackstop;
  for (const Awaited* one : awaited_) {
    if (one->timeout.count() == 0) continue;
    const Clock::duration quarter = one->timeout / 4, left = one->timeout - one->waited;
    const auto next = left.count() > 0 ? std::min(quarter, left) : quarter;
    most = std::clamp(std::chrono::ceil<std::chrono::milliseconds>(next), 1ms, most);
  }
  return most;
}

// Whoever wakes up looks whether the agent is there: without it nobody would tell of deaths.
void Progress::poll_doorbell(Sleeper sleeper, bool links, bool agent_answers,
                             std::chrono::milliseconds most) {
  std::vector<pollfd>& fds = polled_[sleeper];
  fds = {{peers_.doorbell(sleeper), POLLIN, 0},
         {peers_.agent_fd(), static_cast<short>((agent_answers ? POLLIN : 0) | POLLRDHUP), 0}};
  if (links) fds.insert(fds.end(), links_[sleeper].begin(), links_[sleeper].end());
  poll(fds.data(), fds.size(), static_cast<int>(most.count()));
  const std::string why = peers_.lost_agent();
  if (why.empty()) return;
  std::fprintf(stderr, "hvd: rank %d ends, for nobody would tell it of deaths any more: %s\n",
               peers_.world().rank, why.c_str());
  _exit(kExitWithoutAgent);
}

// --- The engine thread.

void Progress::start_engine_thread() {
  engine_thread_ = start_silent_thread(
      "the engine's", [this](const std::stop_token& stop) { run_engine_thread(stop); });
}

void Progress::stop_engine_thread() {
  if (!engine_thread_.joinable()) return;
  engine_thread_.request_stop();
  peers_.ring(peers_.world().local_rank, kEngineThread);
  engine_thread_.join();
}

void Progress::run_engine_thread(const std::stop_token& stop) {
  pthread_setname_np(pthread_self(), "hvd-engine");
  // Held until the thread ends, by whatever: the kernel marks it, so the agent learns early.
  const bool holds_life = pthread_mutex_lock(&words_.life) == 0;
  TimePoint idle_since = Clock::now();
  while (!stop.stop_requested()) engine_round(stop, &idle_since);
  if (holds_life) pthread_mutex_unlock(&words_.life);
}

void Progress::engine_round(const std::stop_token& stop, TimePoint* idle_since) {
  // In this order: who finds it set rings not, and is seen by what follows here. The other way
  // round a ring between the two is taken away, and those after it are not given.
  drain(kEngineThread);
  if (stop.stop_requested()) return;  // that ring may be gone now
  engine_rung_ = false;
  auto most = kBackstop;
  bool moved = false, links = false;
  engine_watches_.store(false, std::memory_order_seq_cst);
  full_fence();
  const bool others_look = token_.watched() || token_.has_waiters();
  // A kick: the holder may have rung just before, and would not ring twice.
  if (!others_look && token_.take_or_kick()) {
    disarm();
    moved = advance();
    const TimePoint now = Clock::now();
    tick(now);
    if (moved) *idle_since = now;
    if (outstanding() && now - *idle_since < 1s) most = kBackstopAtFirst;
    watch_links(kEngineThread);
    links = true;
    engine_watches_.store(true, std::memory_order_relaxed);
    most = std::min<std::chrono::milliseconds>(most, links_again_);
    leave();
  }
  if (most == 0ms)
    sched_yield();
  else if (!moved)
    poll_doorbell(kEngineThread, links, false, most);
}

}  // namespace hvd
