// The last answer of each leader, and the time since.
#include "runtime/engine/leader_answers.h"

#include <algorithm>

namespace hvd {
namespace {

// Of the time between two looks: for longer this process itself was stopped.
constexpr Clock::duration kBetweenLooks = std::chrono::milliseconds(1500);

}  // namespace

LeaderAnswers::LeaderAnswers(const WorldShape& shape) : shape_(shape) {
  for (size_t host = 1; host < shape_.hosts.size(); ++host) leaders_[shape_.hosts[host].first];
}

uint32_t LeaderAnswers::ask(TimePoint now) {
  look(now);
  owing_ = leaders_.size();
  return ++asked_;
}

void LeaderAnswers::answered(int leader, uint32_t question) {
  const auto found = leaders_.find(leader);
  if (found == leaders_.end()) return;
  auto& [last, silent] = found->second;
  silent = {};
  question = std::min(question, asked_);
  if (question == asked_ && last != asked_) --owing_;
  last = std::max(last, question);
}

void LeaderAnswers::left(int leader) {
  const auto found = leaders_.find(leader);
  if (found == leaders_.end()) return;
  if (found->second.answered != asked_) --owing_;
  leaders_.erase(found);
}

void LeaderAnswers::look(TimePoint now) {
  const auto step = std::min(now - last_look_, kBetweenLooks);
  last_look_ = now;
  if (owing_ == 0) return;
  for (auto& [rank, leader] : leaders_)
    if (leader.answered != asked_) leader.silent += step;
}

bool LeaderAnswers::has(int rank, uint32_t question) const {
  const auto found = leaders_.find(leader_of(rank));
  return found == leaders_.end() || found->second.answered >= question;
}

std::vector<int> LeaderAnswers::owing(uint32_t question) const {
  std::vector<int> ranks;
  for (const auto& [rank, leader] : leaders_)
    if (leader.answered < question) ranks.push_back(rank);
  return ranks;
}

bool LeaderAnswers::is_silent(int leader, Clock::duration least) const {
  const auto found = leaders_.find(leader);
  return found != leaders_.end() && found->second.answered != asked_ &&
         found->second.silent >= least;
}

std::vector<int> LeaderAnswers::silent(Clock::duration least) const {
  std::vector<int> ranks = owing(asked_);
  std::erase_if(ranks, [=, this](int leader) { return !is_silent(leader, least); });
  return ranks;
}

}  // namespace hvd
