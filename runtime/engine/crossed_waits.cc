// Callers of a name that they are missing from; for each who waits for them. Callers and steps that
// each come before the other.
#include "runtime/engine/crossed_waits.h"

#include <algorithm>

#include "runtime/engine/log_words.h"
#include "runtime/engine/text_hash.h"

namespace hvd {
namespace {

bool is_missing(const WaitingName& name, size_t rank) {
  return std::ranges::find(name.missing, static_cast<int>(rank)) != name.missing.end();
}

// Does this rank wait for what it has asked for and the caller has not, before that call?
bool waits_for_caller(const RankWait& wait, size_t rank, const RankWait& call, size_t caller,
                      std::span<const WaitingName> waiting) {
  if (!LogWords::is_in_log(wait.number) || wait.number - LogWords::kInLog >= call.number)
    return false;
  return std::ranges::any_of(waiting, [&](const WaitingName& one) {
    return text_hash(one.name) == wait.name && !is_missing(one, rank) && is_missing(one, caller);
  });
}

}  // namespace

std::optional<CrossedWaits> find_crossed_waits(std::span<const WaitingName> waiting,
                                               std::span<const RankWait> waits) {
  for (const WaitingName& name : waiting)
    for (size_t caller = 0; caller < waits.size(); ++caller) {
      const RankWait& call = waits[caller];
      if (!LogWords::is_call(call.number) || call.name != text_hash(name.name) ||
          !is_missing(name, caller))
        continue;
      for (size_t rank = 0; rank < waits.size(); ++rank)
        if (!is_missing(name, rank) && waits_for_caller(waits[rank], rank, call, caller, waiting))
          return CrossedWaits{name.name, static_cast<int>(caller), static_cast<int>(rank)};
    }
  return std::nullopt;
}

std::optional<CallAgainstStep> find_call_against_step(std::span<const RankWait> waits) {
  for (size_t caller = 0; caller < waits.size(); ++caller) {
    const RankWait& call = waits[caller];
    if (!LogWords::is_call(call.number)) continue;
    for (size_t stepper = 0; stepper < waits.size(); ++stepper) {
      const RankWait& step = waits[stepper];
      if (!LogWords::is_step(step.number) || step.name >= call.number) continue;
      if (static_cast<int32_t>(call.steps - step.steps) < 0)  // they start over at 2^32
        return CallAgainstStep{static_cast<int>(caller), static_cast<int>(stepper)};
    }
  }
  return std::nullopt;
}

}  // namespace hvd
