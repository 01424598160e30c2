// Callers of a name that they are missing from; for each who waits for them. Steps, and what each
// comes before the other.
#include "runtime/engine/crossed_waits.h"

#include <algorithm>

#include "collectives/describe.h"
#include "runtime/engine/log_words.h"
#include "runtime/engine/text_hash.h"
#include "runtime/engine/unnamed.h"

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

// What has no name is asked for by the init thread alone, and that waits for it.
bool waits_for_unnamed(const RankWait& wait, const RankWait& call, const WaitingName& name) {
  return is_unnamed(name.name) && LogWords::is_in_log(wait.number) &&
         wait.number - LogWords::kInLog < call.number && wait.name == text_hash(name.name);
}

}  // namespace

std::optional<CrossedWaits> find_crossed_waits(std::span<const WaitingName> waiting,
                                               std::span<const RankWait> waits) {
  for (const WaitingName& name : waiting)
    for (size_t caller = 0; caller < waits.size(); ++caller) {
      const RankWait& call = waits[caller];
      if (!LogWords::is_call(call.number) || !is_missing(name, caller)) continue;
      const bool same = call.name == text_hash(name.name);
      for (size_t rank = 0; rank < waits.size(); ++rank)
        if (!is_missing(name, rank) &&
            ((same && waits_for_caller(waits[rank], rank, call, caller, waiting)) ||
             waits_for_unnamed(waits[rank], call, name)))
          return CrossedWaits{name.name, name.asked, static_cast<int>(caller),
                              static_cast<int>(rank)};
    }
  return std::nullopt;
}

std::string crossed_text(const CrossedWaits& crossed, const std::string& call,
                         const std::string& caller, const std::string& submitter) {
  const std::string what = "\"" + crossed.name + "\"";
  if (is_unnamed(crossed.name))
    return caller + " waits in " + call + ", " + submitter + " in " +
           (crossed.asked.empty() ? what : crossed.asked) +
           "; make the same calls, in the same order and on the same kind of device, on all ranks";
  if (crossed.asked.find(kOnGpu) != std::string::npos)
    return what + " is on the CPU on " + caller + " and on a GPU on " + submitter +
           "; have it on the same kind of device on all ranks";
  return what + " was called synchronously on " + caller +
         " and submitted asynchronously, or from another thread than init()'s, on " + submitter +
         "; call it the same way on all ranks";
}

std::optional<CrossedStep> find_crossed_step(std::span<const RankWait> waits) {
  for (size_t stepper = 0; stepper < waits.size(); ++stepper)
    for (size_t other = 0; other < waits.size(); ++other) {
      const RankWait &step = waits[stepper], &wait = waits[other];
      if (!LogWords::is_step(step.number)) continue;
      const auto ahead = static_cast<int32_t>(step.steps - wait.steps);  // they start over at 2^32
      const bool in_call = LogWords::is_call(wait.number) && step.name < wait.number && ahead > 0;
      const bool in_step =
          LogWords::is_step(wait.number) && wait.number != step.number && ahead == 0;
      if (in_call || in_step)
        return CrossedStep{static_cast<int>(stepper), static_cast<int>(other)};
    }
  return std::nullopt;
}

}  // namespace hvd
