// What a sleeping rank looks at now and then: timeouts, ranks that have left, stalls.
#include <algorithm>
#include <utility>

#include "runtime/base/job_clock.h"
#include "runtime/engine/progress.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

// Nor does time count in which this process alone was stopped: no step between two looks is taken
// for longer than the longest sleep, nor for more than a quarter of the timeout.
constexpr Clock::duration kStepMost = 1500ms;
constexpr Clock::duration kStallLookEvery = 1s;
// After a timeout, for the rank that can say who is missing; longer if it has to ask other hosts.
constexpr Clock::duration kOtherTells = 2s, kOtherHostsTell = 5s;

Clock::duration longest_step(std::chrono::milliseconds timeout) {
  return timeout.count() == 0 ? kStepMost : std::min(kStepMost, Clock::duration(timeout) / 4);
}

std::string seconds_text(std::chrono::milliseconds duration) {
  std::string text = std::to_string(duration.count() / 1000);
  if (duration.count() % 1000 != 0)
    text += "." + std::to_string(1000 + duration.count() % 1000).substr(1);
  return text + " s";
}

}  // namespace

TimePoint Progress::job_time(TimePoint now) const {
  return JobClock::time(peers_.block().clock.load(std::memory_order_acquire), now);
}

void Progress::tick(TimePoint real_now) {
  try {
    const TimePoint now = job_time(real_now);
    look_for_timeouts(now);
    const auto step = now - std::exchange(last_tick_, now);
    if (end_.broken()) return;
    look_at_devices(step);
    for (Feed* feed : feeds_) feed->look();
    settle_awaited();  // a look may have answered what is waited for
    look_for_left_ranks();
    look_for_stalls(now);
  } catch (const std::exception& error) {
    break_off(error);
  }
}

void Progress::look_for_timeouts(TimePoint now) {
  const World& world = peers_.world();
  const auto other_tells = world.size == world.local_size ? kOtherTells : kOtherHostsTell;
  for (Awaited* one : awaited_) {
    if (one->since == TimePoint{}) continue;  // has not slept yet
    const auto step = now - std::max(last_tick_, one->since);
    one->waited += std::clamp(step, Clock::duration::zero(), longest_step(one->timeout));
    if (one->timeout.count() == 0 || one->waited < one->timeout || end_.broken()) continue;
    if (one->told_by_other && one->waited < one->timeout + other_tells && one->told_by_other())
      continue;
    const auto missing = one->missing ? one->missing() : std::vector<int>{};
    const bool at_device = one->on_device && missing.empty() && !on_devices_.empty();
    time_out(world.rank, one->timeout, missing,
             one->what() + (at_device ? ": " + on_devices_.front().wait.what : ""),
             at_device ? kDevice : one->otherwise);
    return;
  }
}

// Also of what no thread waits for: a step's sums are launched, and the program goes on.
void Progress::look_at_devices(Clock::duration step) {
  std::vector<OnDevice> under_way;
  for (const Communicator* one : communicators_) {
    DeviceWait wait = one->device_wait();
    if (wait.what.empty()) continue;
    const auto timeout = wait.connecting ? options_.connect_timeout : options_.device_timeout;
    const auto known = std::ranges::find_if(on_devices_, [&](const OnDevice& before) {
      return before.communicator == one && before.wait.number == wait.number;
    });
    Clock::duration waited{};
    if (known != on_devices_.end())
      waited = known->waited + std::clamp(step, Clock::duration::zero(), longest_step(timeout));
    if (timeout.count() != 0 && waited >= timeout)
      time_out(peers_.world().rank, timeout, wait.missing, wait.what, kDevice);
    under_way.push_back({one, std::move(wait), waited});
  }
  on_devices_ = std::move(under_way);
}

void Progress::time_out(int waiting, std::chrono::milliseconds timeout,
                        const std::vector<int>& missing, const std::string& what,
                        std::string_view otherwise) {
  raise_trouble(peers_, TroubleReason::kTimeout,
                rank_text(peers_, waiting) + " waited " + seconds_text(timeout) + " for " +
                    (missing.empty() ? std::string(otherwise) : ranks_text(peers_, missing)) +
                    " in " + what,
                missing);
}

// A communicator looks itself whether an operation needs a rank that has left; here it is about
// what has not got that far. The word of its leaving is read first: it took part in nothing
// afterwards.
void Progress::look_for_left_ranks() {
  const int left = end_.find_left();
  if (left < 0) return;
  const bool needed =
      std::any_of(feeds_.begin(), feeds_.end(), [&](Feed* feed) { return feed->needs(left); });
  settle_awaited();  // needs() may have answered what was waited for
  const int rank = peers_.world().rank - peers_.world().local_rank + left;
  if (needed)
    raise_trouble(peers_, TroubleReason::kLeft,
                  rank_text(peers_, rank) + " called shutdown() while other ranks went on",
                  std::span(&rank, 1));
}

// The coordinator reports what the log waits for and, of several hosts, who waits in which call and
// who has not acted on what is in the log; on one host the lowest rank that waits in a call, or for
// what is in the log, reports it: who is not missing may be elsewhere in its program.
void Progress::look_for_stalls(TimePoint now) {
  const Clock::duration quarter = options_.stall_warning / 4;  // short ones are for tests
  const auto every = quarter.count() == 0 ? kStallLookEvery : std::min(kStallLookEvery, quarter);
  if (now - last_stall_look_ < every) return;
  last_stall_look_ = now;
  std::vector<WaitingName> waiting;
  for (Feed* feed : feeds_) feed->add_waiting(waiting);
  const int me = peers_.world().rank;
  const bool several_hosts = peers_.world().size != peers_.world().local_size;
  for (const Awaited* one : awaited_) {
    if (!one->missing || (one->reported_by_other && one->reported_by_other())) continue;
    if (several_hosts && one->told_by_other) continue;  // rank 0 hears of it, and reports
    std::vector<int> missing = one->missing();
    const auto reports = [&](int rank) {
      const bool waits = several_hosts || (peers_.block().rank(rank).asleep & kWaitsBit) != 0;
      return waits && std::ranges::find(missing, rank) == missing.end();
    };
    int lowest = 0;
    while (lowest < me && !reports(lowest)) ++lowest;
    if (missing.empty() || lowest != me) continue;
    // Of one name there are many waits, one after the other.
    const uint64_t sequence = one->operation != nullptr
                                  ? one->operation->sequence
                                  : static_cast<uint64_t>(one->since.time_since_epoch().count());
    waiting.push_back({one->what(), sequence, std::move(missing)});
  }
  for (const OnDevice& one : on_devices_)  // here, whatever others say of themselves
    waiting.push_back(
        {rank_text(peers_, me) + ", " + one.wait.what, one.wait.number, one.wait.missing});
  auto report = stall_inspector_.inspect(waiting, now);
  if (!report) return;
  if (options_.warn) options_.warn(report->text);
  if (!report->shut_down) return;
  const std::string why =
      report->missing.empty()
          ? std::string(kDevice) + " did not end this: " + report->under_way
          : ranks_text(peers_, report->missing) + " did not come to what others waited for";
  raise_trouble(
      peers_, TroubleReason::kTimeout,
      "rank " + std::to_string(me) + " gave up after the stall check's shutdown time: " + why,
      report->missing);
}

}  // namespace hvd
