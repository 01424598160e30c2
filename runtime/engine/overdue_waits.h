// What ranks have waited for too long, on rank 0: whom each of them waits for is known once
// everybody was asked.
//
// Pure: time is an argument. What hosts say at different moments does not fit together: a wait that
// has just ended elsewhere looks like one for whoever has ended it here. So who is named was
// missing after two questions, some time apart. A leader that owes an answer for long stands for
// all of its host.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/engine/coordinator.h"
#include "runtime/engine/leader_answers.h"
#include "runtime/engine/log_words.h"

namespace hvd {

class OverdueWaits {
 public:
  using Kind = LogWords::OverdueKind;
  // Between two questions: for who has what he waited for, and has not said so yet.
  static constexpr std::chrono::milliseconds kAskAgain{200};
  struct Verdict {
    int rank;  // waited for so long, for those missing in `wait`
    std::chrono::milliseconds waited;
    WaitingName wait;
  };
  // What that rank waits for, and who is missing in it as far as it is known; nothing: it is over.
  using Find = std::function<std::optional<WaitingName>(Kind kind, int rank, uint64_t what)>;

  // That rank's word of this kind; 0: nothing.
  void note(Kind kind, int rank, uint64_t what, std::chrono::milliseconds waited);
  void forget(int rank);
  bool any() const;

  // Is everybody to be asked now? Then the caller says what number the question has.
  bool asks(const LeaderAnswers& answers, TimePoint now) const;
  void asked(uint32_t question, TimePoint now);
  // The first wait that has somebody to be named.
  std::optional<Verdict> judge(const LeaderAnswers& answers, const Find& find);

 private:
  struct Overdue {
    uint64_t what = 0;
    std::chrono::milliseconds waited{};
    uint32_t question = 0;  // asked since then and not judged by; 0: none
    uint64_t round = 0;     // in which they were missing when it was last judged
    std::vector<int> suspects = {};
  };

  static bool is_heard(const LeaderAnswers& answers, uint32_t question);
  static std::vector<int> missing(const LeaderAnswers& answers, uint32_t question, int rank,
                                  const WaitingName& wait);

  std::array<std::map<int, Overdue>, LogWords::kOverdueKinds> by_rank_;  // by kind
  uint32_t last_question_ = 0;
  TimePoint asked_at_{};
};

}  // namespace hvd
