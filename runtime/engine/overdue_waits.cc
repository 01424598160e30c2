// Ask, judge, ask once more, judge.
#include "runtime/engine/overdue_waits.h"

#include <algorithm>
#include <iterator>
#include <set>

namespace hvd {
namespace {

using namespace std::chrono_literals;

// Of who owes an answer: sooner than who waits gives up being told.
constexpr Clock::duration kSilent = 3s;

}  // namespace

void OverdueWaits::note(Kind kind, int rank, uint64_t what, std::chrono::milliseconds waited) {
  Overdue& one = by_rank_[kind][rank];
  if (one.what != what) one = {what, waited};
}

void OverdueWaits::forget(int rank) {
  for (auto& ranks : by_rank_) ranks.erase(rank);
}

bool OverdueWaits::any() const {
  return std::ranges::any_of(by_rank_, [](const auto& ranks) {
    return std::ranges::any_of(ranks, [](const auto& one) { return one.second.what != 0; });
  });
}

// One question at a time, for all that is to be asked about by then. What one host knows of itself
// is exact.
bool OverdueWaits::asks(const LeaderAnswers& answers, TimePoint now) const {
  if (!is_heard(answers, last_question_)) return false;
  const bool soon = now - asked_at_ < kAskAgain;
  return std::ranges::any_of(by_rank_, [&](const auto& ranks) {
    return std::ranges::any_of(ranks, [&](const auto& entry) {
      const Overdue& one = entry.second;
      return one.what != 0 && one.question == 0 &&
             (!soon || (answers.nobody_to_ask() && !one.suspects.empty()));
    });
  });
}

void OverdueWaits::asked(uint32_t question, TimePoint now) {
  last_question_ = question;
  asked_at_ = now;
  for (auto& ranks : by_rank_)
    for (auto& [rank, one] : ranks)
      if (one.what != 0 && one.question == 0) one.question = question;
}

std::optional<OverdueWaits::Verdict> OverdueWaits::judge(const LeaderAnswers& answers,
                                                         const Find& find) {
  for (size_t kind = 0; kind < by_rank_.size(); ++kind)
    for (auto& [rank, one] : by_rank_[kind]) {
      // Of who waits below a silent leader nothing is known: it may have what it waited for.
      if (one.what == 0 || one.question == 0 || !is_heard(answers, one.question) ||
          !answers.has(rank, one.question))
        continue;
      std::optional<WaitingName> wait = find(static_cast<Kind>(kind), rank, one.what);
      std::vector<int> now, named;
      if (wait) now = missing(answers, one.question, rank, *wait);
      if (wait && wait->round == one.round)
        std::ranges::set_intersection(one.suspects, now, std::back_inserter(named));
      one.question = 0;  // what was heard gets old
      one.round = wait ? wait->round : 0;
      one.suspects = std::move(now);
      if (named.empty()) continue;
      wait->missing = std::move(named);
      return Verdict{rank, one.waited, *std::move(wait)};
    }
  return std::nullopt;
}

// Has everybody answered, or had time enough?
bool OverdueWaits::is_heard(const LeaderAnswers& answers, uint32_t question) {
  return std::ranges::all_of(answers.owing(question),
                             [&](int leader) { return answers.is_silent(leader, kSilent); });
}

// Of a host whose leader does not answer nobody can say who is missing, or that nobody is: it is
// the leader. `rank` does not wait for itself.
std::vector<int> OverdueWaits::missing(const LeaderAnswers& answers, uint32_t question, int rank,
                                       const WaitingName& wait) {
  std::set<int> named;
  for (const int one : wait.missing)
    named.insert(answers.has(one, question) ? one : answers.leader_of(one));
  if (wait.missing.empty())
    for (const int leader : answers.owing(question)) named.insert(leader);
  named.erase(rank);
  return {named.begin(), named.end()};
}

}  // namespace hvd
