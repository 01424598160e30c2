// The stall report: Horovod's form, by missing rank.
#include "runtime/engine/stall_inspector.h"

#include <algorithm>
#include <set>

namespace hvd {
namespace {

constexpr size_t kNamesPerRank = 6;

std::string seconds(std::chrono::milliseconds duration) {
  const auto ms = duration.count();
  if (ms % 1000 == 0) return std::to_string(ms / 1000);
  return std::to_string(ms / 1000) + "." + std::to_string(1000 + ms % 1000).substr(1);
}

// 0 is never.
std::chrono::milliseconds sooner(std::chrono::milliseconds one, std::chrono::milliseconds other) {
  if (one.count() == 0 || other.count() == 0) return std::max(one, other);
  return std::min(one, other);
}

}  // namespace

StallInspector::StallInspector(std::chrono::milliseconds warning_after,
                               std::chrono::milliseconds shutdown_after)
    : warning_after_(sooner(warning_after, shutdown_after)), shutdown_after_(shutdown_after) {}

std::optional<StallReport> StallInspector::inspect(std::span<const WaitingName> waiting,
                                                   TimePoint now) {
  if (warning_after_.count() == 0) return std::nullopt;
  decltype(since_) still;
  std::vector<Stalled> stalled;
  for (const WaitingName& one : waiting) {
    auto key = std::make_pair(one.name, one.round);
    const auto known = since_.find(key);
    const TimePoint seen = one.seen == TimePoint{} ? now : one.seen;
    const TimePoint since = known == since_.end() ? seen : known->second;
    still.emplace(std::move(key), since);
    if (seen - since >= warning_after_) stalled.push_back({&one, seen - since});
  }
  since_ = std::move(still);
  const bool shut_down = shutdown_after_.count() != 0 &&
                         std::any_of(stalled.begin(), stalled.end(),
                                     [&](auto& one) { return one.age >= shutdown_after_; });
  if (stalled.empty()) return std::nullopt;
  if (!shut_down && last_report_ != TimePoint{} && now - last_report_ < warning_after_)
    return std::nullopt;
  last_report_ = now;
  StallReport report{describe(stalled), shut_down};
  std::set<int> missing;
  for (const Stalled& one : stalled) {
    if (!shut_down || one.age < shutdown_after_) continue;
    missing.insert(one.waiting->missing.begin(), one.waiting->missing.end());
    if (one.waiting->missing.empty()) report.under_way = one.waiting->name;
  }
  report.missing.assign(missing.begin(), missing.end());
  if (shut_down && missing.empty())
    report.text +=
        "\nThat is for more than " + seconds(shutdown_after_) + " seconds: the job is shut down";
  else if (shut_down)
    report.text += "\nOne or more ranks (marked by \"!\") are missing for more than " +
                   seconds(shutdown_after_) + " seconds: the job is shut down";
  return report;
}

std::string StallInspector::describe(std::span<const Stalled> stalled) const {
  std::map<int, std::vector<const Stalled*>> by_rank;
  std::string under_way;
  for (const Stalled& one : stalled) {
    for (int rank : one.waiting->missing) by_rank[rank].push_back(&one);
    if (one.waiting->missing.empty())
      under_way += "\n" + one.waiting->name + ": for " +
                   seconds(std::chrono::floor<std::chrono::seconds>(one.age)) + " seconds";
  }
  if (!under_way.empty())
    under_way =
        "What is under way does not end, and which rank holds it up is not known:" + under_way;
  return by_rank.empty()
             ? under_way
             : describe(std::move(by_rank)) + (under_way.empty() ? "" : "\n" + under_way);
}

std::string StallInspector::describe(std::map<int, std::vector<const Stalled*>> by_rank) const {
  std::string text =
      "Some ranks wait for operations that others have not submitted, or stand still in, for more "
      "than " +
      seconds(warning_after_) +
      " seconds. Either ranks submit different operations, or some have stopped; until they go on, "
      "none of these can complete.\nMissing ranks:";
  for (auto& [rank, missing] : by_rank) {
    std::sort(missing.begin(), missing.end(), [](const Stalled* a, const Stalled* b) {
      return std::pair(-a->age, a->waiting->name) < std::pair(-b->age, b->waiting->name);
    });
    const bool over = shutdown_after_.count() != 0 && missing.front()->age >= shutdown_after_;
    text += "\n" + std::to_string(rank) + (over ? "!: [" : ": [");
    for (size_t i = 0; i < missing.size() && i < kNamesPerRank; ++i)
      text += (i == 0 ? "" : ", ") + missing[i]->waiting->name;
    text += missing.size() > kNamesPerRank ? " ...]" : "]";
  }
  return text;
}

}  // namespace hvd
