#include "cli/agent/rank_facts.h"

#include <sched.h>

#include <array>
#include <cstdio>
#include <utility>

#include "cli/quoted.h"

namespace hvd {
namespace {

StatusSnapshot copy(const StatusPage& page) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  StatusSnapshot status;
  status.phase = static_cast<Phase>(page.phase.load(kRelaxed));
  status.order = static_cast<Order>(page.order.load(kRelaxed));
  status.epoch = page.epoch.load(kRelaxed);
  status.sequence = page.sequence.load(kRelaxed);
  status.bytes = page.bytes.load(kRelaxed);
  status.step = page.step.load(kRelaxed);
  status.since_ns = page.since_ns.load(kRelaxed);
  status.told = page.told.load(kRelaxed) != 0;
  for (const std::atomic<char>& place : page.operation) {
    const char letter = place.load(kRelaxed);
    if (letter == 0) break;
    status.operation += letter;
  }
  status.operation = printable(status.operation);
  return status;
}

std::string duration_text(const StatusSnapshot& status, TimePoint now) {
  const double seconds = std::chrono::duration<double>(now.time_since_epoch()).count() -
                         double(status.since_ns) * 1e-9;
  if (status.since_ns == 0 || seconds < 0) return "";
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), ", for %.1f s", seconds);
  return text.data();
}

// "was in allreduce "x" float32 [4] Sum #12, 16 bytes"; waiting for one that others have yet to
// submit, it has no number.
std::string collective_text(const StatusSnapshot& status) {
  std::string text = status.order == Order::kLog ? "was waiting for " : "was in ";
  text += status.operation.empty() ? "a collective" : status.operation;
  if (status.sequence != 0) text += " #" + std::to_string(status.sequence);
  if (status.bytes != 0) text += ", " + std::to_string(status.bytes) + " bytes";
  return text;
}

}  // namespace

StatusSnapshot read_status(const StatusPage& page) {
  constexpr int kTries = 100;  // a living writer is done in nanoseconds, a dead one never
  StatusSnapshot status;
  for (int i = 0; i < kTries; ++i) {
    const uint32_t before = page.lock.load(std::memory_order_acquire);
    status = copy(page);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 == 0 && page.lock.load(std::memory_order_relaxed) == before) return status;
    sched_yield();
  }
  status.torn = true;
  return status;
}

std::string describe(const StatusSnapshot& status, TimePoint now) {
  const std::string duration = duration_text(status, now);
  const auto step = [&](const char* where) {
    return status.step == 0 ? "" : where + std::to_string(status.step);
  };
  switch (status.phase) {
    case Phase::kNone:
      return "never called hvd::init()";
    case Phase::kInit:
      return "was in hvd::init()" + duration;
    case Phase::kComputing:
      return "was in no call of hvd" + step(" after step ") + duration;
    case Phase::kCollective:
      return collective_text(status) + duration;
    case Phase::kSynchronize:
      return "was in synchronize()" + step(" of step ") + duration;
    case Phase::kShutdown:
      return "was in hvd::shutdown()" + duration;
    case Phase::kLeft:
      return "had called hvd::shutdown()";
    case Phase::kInitFailed:
      return "had hvd::init() fail";
  }
  return "wrote a status page that says nothing known";
}

}  // namespace hvd
