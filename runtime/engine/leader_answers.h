// Which hosts' leaders have answered what rank 0 asked all of them, and for how long they are
// silent.
//
// Pure: time is an argument.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "collectives/world_shape.h"
#include "runtime/base/deadline.h"

namespace hvd {

class LeaderAnswers {
 public:
  // Of one host there is nobody to ask: every question is answered at once.
  explicit LeaderAnswers(const WorldShape& shape);

  // The number of a new question to all leaders, from 1.
  uint32_t ask(TimePoint now);
  void answered(int leader, uint32_t question);
  // It answers no more, and nobody waits for that.
  void left(int leader);
  // At least once a second while this process runs: of a machine that stood still others were not
  // silent.
  void look(TimePoint now);

  // Has the leader of that rank's host answered that question? Rank 0's own host knows at once.
  bool has(int rank, uint32_t question) const;
  bool has_all(uint32_t question) const { return owing(question).empty(); }
  std::vector<int> owing(uint32_t question) const;  // leaders that have not answered it
  bool nobody_to_ask() const { return leaders_.empty(); }
  // Is any answer owed to the last question? Cheap.
  bool owed() const { return owing_ > 0; }
  // Has this leader owed an answer, and given none to any question, for so long?
  bool is_silent(int leader, Clock::duration least) const;
  std::vector<int> silent(Clock::duration least) const;

  int leader_of(int rank) const { return shape_.hosts[host_of(rank)].first; }

 private:
  struct Leader {
    uint32_t answered = 0;  // the last one
    Clock::duration silent{};
  };
  size_t host_of(int rank) const { return static_cast<size_t>(shape_.host_of(rank)); }

  const WorldShape shape_;
  std::map<int, Leader> leaders_;  // of hosts but rank 0's, while they answer
  size_t owing_ = 0;               // of them
  uint32_t asked_ = 0;             // the last question
  TimePoint last_look_{};
};

}  // namespace hvd
