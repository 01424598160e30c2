// Who of a broken epoch is asked, who has answered, and who is given up: rule 9 of "Waiting, death,
// giving up".
//
// Pure: facts and the time come in as arguments. The question to a rank is the count in `trouble`;
// its answer is `seen` at or above it, written from inside its progress. A rank that answers is
// never given up, however long the others of its operations take.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/deadline.h"

namespace hvd {

class Questions {
 public:
  struct Answer {
    bool gone = false;  // dead, quiet or left: nothing to ask
    uint32_t seen = 0;
    bool stopped = false;           // by a signal
    bool held_by_debugger = false;  // asked once it is let go
  };
  struct Verdict {
    std::vector<int> give_up;  // no answer within the grace
    bool ask_again = false;    // all who live have answered and not all are quiet: raise `trouble`,
                               // then call ask()
  };

  Questions(int ranks, std::chrono::milliseconds stopped_grace, std::chrono::milliseconds grace);

  // The epoch is broken, `trouble` as given. Renews the question to those who have answered theirs.
  void ask(TimePoint now, uint32_t trouble, std::span<const Answer> answers);
  bool open() const { return next_look_.has_value(); }
  bool answered(int rank, uint32_t seen) const;
  // When look() wants to be called; nothing while nobody is asked.
  std::optional<TimePoint> next_look() const { return next_look_; }
  // One answer per rank. Closes when all are gone.
  Verdict look(TimePoint now, std::span<const Answer> answers);
  // The clocks have stood until now.
  void restart(TimePoint now);

 private:
  struct Question {
    uint32_t trouble = 0;
    TimePoint since{};
  };

  const std::chrono::milliseconds stopped_grace_;
  const std::chrono::milliseconds grace_;
  std::vector<Question> questions_;  // by rank
  std::optional<TimePoint> next_look_;
};

}  // namespace hvd
