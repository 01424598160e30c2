// A job without hvdrun: ranks as processes below the agent's HostMemory, driven by the test.
//
// hvdrun would end the survivors of a death; here they go on, which is what is to be judged. The
// test's own thread is the agent's loop.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/agent/host_memory.h"
#include "cli/loop.h"
#include "runtime/base/deadline.h"
#include "runtime/base/unique_fd.h"

namespace hvd {

// What a rank tells the test, in memory that outlives it.
struct RankBoard {
  static constexpr int kNumbers = 64;
  std::atomic<int64_t> numbers[kNumbers];
  char text[1024];

  void write(const std::string& what);
};
// Inside a rank: its own board, by the slot in HVD_AGENT.
RankBoard& rank_board();

struct HostJobOptions {
  int ranks = 2;
  std::string program{};  // name of a RankProgram of this binary
  Loop* loop = nullptr;   // the test's, which several jobs share; nullptr: one of its own
  bool whole =
      false;  // an epoch needs all ranks: when one has ended, init() is refused to the rest
  std::vector<std::string> environment{};  // NAME=value, for all
  std::map<int, std::vector<std::string>> rank_environment{};
  HostMemoryOptions memory{};
  // nullptr: whenever all living ranks wait, they start an epoch together.
  std::function<void(const std::vector<int>& slots, bool all)> epoch_wanted{};
  std::function<void(const LinksWanted& wanted)> links_wanted{};  // nullptr: refused
  std::function<void(HostMemoryEvents& events)> add_events{};     // what else a test hears
};

class HostJob {
 public:
  struct Rank {
    pid_t pid = 0;
    UniqueFd pidfd;
    std::optional<int> status;  // exit code, or 128 + signal
    std::optional<TimePoint> dead, reaped;
    std::string given_up;
  };

  explicit HostJob(HostJobOptions options);
  ~HostJob();  // kills and reaps whoever is left
  HostJob(const HostJob&) = delete;
  HostJob& operator=(const HostJob&) = delete;

  // Turns the loop until all ranks have ended; false: the deadline passed first.
  bool run(std::chrono::milliseconds limit = std::chrono::seconds(60));
  bool run_until(const std::function<bool()>& done,
                 std::chrono::milliseconds limit = std::chrono::seconds(60));
  void signal(int rank, int signal);
  // As if the agent were killed: its sockets close, and nobody answers or tells of deaths.
  void lose_agent() { memory_.reset(); }
  // Starts these slots in the next epoch, in this order.
  void start_epoch(const std::vector<int>& slots);

  Loop& loop() { return loop_; }
  HostMemory& memory() { return *memory_; }
  RankFacts facts(int slot) const { return memory_->facts(slot); }
  Rank& rank(int slot) { return ranks_[static_cast<size_t>(slot)]; }
  RankBoard& board(int slot) { return boards_[slot]; }
  uint32_t epochs() const { return epochs_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  std::string describe();  // all statuses and texts, for a failed check

 private:
  void spawn(int slot);
  void reap(int slot);

  const HostJobOptions options_;
  Loop own_loop_;
  Loop& loop_;
  UniqueFd board_memory_;
  RankBoard* boards_ = nullptr;
  std::vector<Rank> ranks_;
  std::vector<std::string> warnings_;
  uint32_t epochs_ = 0;
  std::unique_ptr<HostMemory> memory_;
};

// "NAME COUNT" lines of HVD_FAULT_POINT=count:FILE, summed.
long count_fault_points(const std::string& file);

}  // namespace hvd
