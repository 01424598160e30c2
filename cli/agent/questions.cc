#include "cli/agent/questions.h"

namespace hvd {

Questions::Questions(int ranks, std::chrono::milliseconds stopped_grace,
                     std::chrono::milliseconds grace)
    : stopped_grace_(stopped_grace), grace_(grace), questions_(static_cast<size_t>(ranks)) {}

bool Questions::answered(int rank, uint32_t seen) const {
  // The count may wrap.
  return static_cast<int32_t>(seen - questions_[static_cast<size_t>(rank)].trouble) >= 0;
}

void Questions::ask(TimePoint now, uint32_t trouble, std::span<const Answer> answers) {
  for (size_t rank = 0; rank < questions_.size(); ++rank) {
    // Who owes an answer keeps its clock: new trouble must not buy it time.
    if (open() && !answered(static_cast<int>(rank), answers[rank].seen)) continue;
    questions_[rank] = {trouble, now};
  }
  if (!open()) next_look_ = now + stopped_grace_;
}

Questions::Verdict Questions::look(TimePoint now, std::span<const Answer> answers) {
  Verdict verdict;
  bool all_gone = true, all_answered = true;
  for (size_t rank = 0; rank < questions_.size(); ++rank) {
    const Answer& answer = answers[rank];
    if (answer.gone) continue;
    all_gone = false;
    if (answered(static_cast<int>(rank), answer.seen)) continue;
    all_answered = false;
    if (answer.held_by_debugger) questions_[rank].since = now;
    const auto waited = now - questions_[rank].since;
    if (waited >= (answer.stopped ? stopped_grace_ : grace_))
      verdict.give_up.push_back(static_cast<int>(rank));
  }
  verdict.ask_again = all_answered && !all_gone;
  if (all_gone)
    next_look_.reset();
  else
    next_look_ = now + stopped_grace_;
  return verdict;
}

void Questions::restart(TimePoint now) {
  for (Question& question : questions_) question.since = now;
  if (open()) next_look_ = now + stopped_grace_;
}

}  // namespace hvd
