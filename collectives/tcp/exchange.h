// How all who take part hear of each other in a few steps (cube.h), in each a message out, a
// message in: has everybody called the same, and is a link far?
//
// Short data ride along, so that a small allreduce takes no step more than its sums need. Nothing
// is stored into a result before the last swap's header has come: it says that all agree. Until
// then sums go to buffers of the exchange. Data of who called something else are read and dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "collectives/tcp/cube.h"
#include "collectives/tcp/frame.h"
#include "collectives/tcp/links.h"
#include "collectives/tcp/sides.h"
#include "collectives/types.h"

namespace hvd {

// What rides on the messages.
enum class Rider : uint8_t {
  kNobody,
  kTensor,  // allreduce: sums so far, whole
  kHalf,    // allreduce: sums so far, the half that the other one keeps
  kRooted,  // broadcast: from those who have it
  kCounts,  // allgather: of all ranks heard of
  kSides,   // of a refusal
};

struct ExchangeTask {
  Rider rider = Rider::kNobody;
  FrameHeader header = {};  // of every message: epoch, sequence, hash, from
  bool differs = false;     // known before: somebody called something else, or is unable
  // kTensor, kHalf: what is summed; kRooted: what the root has.
  const std::byte* data = nullptr;
  std::byte* result = nullptr;  // may be the same
  size_t count = 0;
  DataType type = DataType::kFloat32;
  Reduction reduction = {};
  int inputs = 1;         // of the whole reduction
  bool are_sums = false;  // `data` everywhere
  int root = 0;           // its place
};

inline constexpr uint64_t kUnknownCount = ~uint64_t{0};

class Exchange {
 public:
  enum class Step : uint8_t { kWait, kMoved, kDone };

  // `members`: ranks of the job, by place; `place` is this one's.
  Exchange(int place, std::vector<int> members);
  int places() const { return static_cast<int>(members_.size()); }
  // Ranks that links are needed to.
  std::vector<int> neighbours() const;

  // counts() and sides(), if they ride, are filled in before.
  void begin(const ExchangeTask& task);
  // Wrong messages and goodbyes break the epoch, through `links`.
  Step advance(Links& links);

  bool differs() const { return differs_; }
  bool far() const { return far_; }  // a link of anybody's
  Rider rider() const { return task_.rider; }
  // By rank of the job, kUnknownCount of who was not heard of.
  std::vector<uint64_t>& counts() { return counts_; }
  std::vector<Side>& sides() { return sides_; }

  // By place: has this one heard of it in operation `sequence`? By what has come in, if it is
  // `under_way`, and by what waits on the links.
  std::vector<bool> heard(const Links& links, uint64_t sequence, bool under_way) const;
  // By place: of whom is heard once `steps` of the steps are over?
  std::vector<bool> heard_after(size_t steps) const;
  size_t steps_over() const { return at_; }

 private:
  void begin_step(const CubeStep& step, Link& link);
  void set_out(const CubeStep& step);
  bool pull(const CubeStep& step, Links& links, Link& link);
  bool pull_bytes(const CubeStep& step, Link& link);
  bool is_in(const CubeStep& step) const;
  bool sums(const CubeStep& step) const;
  bool take_header(const CubeStep& step, Links& links, Link& link);
  bool brings_root(const CubeStep& step) const;
  bool fits(const CubeStep& step, const FrameHeader& got) const;
  void prepare_sums(const CubeStep& step);
  bool sum_piece(const CubeStep& step, Link& link);
  void add_piece(const CubeStep& step, const std::byte* piece, size_t bytes);
  void end_step(const CubeStep& step, Links& links);
  void finish();
  void hear(const CubeStep& step, std::vector<bool>& heard) const;
  Slice kept(int place, int swaps) const {
    return kept_after(place, swaps, task_.count, task_.type);
  }
  static bool knows_all(const CubeStep& step) { return step.last_swap || step.part == kResultPart; }
  static int swap_of(const CubeStep& step) { return static_cast<int>(step.part) - kSwapPart; }
  unsigned part_of(const CubeStep& step) const {
    return step.part + (task_.rider == Rider::kSides ? kTellPart : 0);
  }
  size_t tensor_bytes() const { return task_.count * size_of(task_.type); }
  int member(int place) const { return members_[static_cast<size_t>(place)]; }

  // Constant after construction.
  const int place_;
  const std::vector<int> members_;
  const std::vector<CubeStep> steps_;

  ExchangeTask task_;
  size_t at_ = 0;  // the step under way
  bool begun_ = false, has_header_ = false;
  bool differs_ = false, far_ = false;
  bool discards_ = false;  // what comes in is of no use
  const std::byte* out_ = nullptr;
  size_t out_bytes_ = 0, sent_ = 0;
  size_t in_bytes_ = 0, received_ = 0, taken_ = 0;
  const std::byte* own_ = nullptr;  // kTensor, kHalf: this one's sums so far
  std::byte* into_ = nullptr;       // and those of this step
  bool are_sums_ = false;
  bool is_there_ = false;  // kRooted: this one has the data
  // Filled anew for each operation, kept to be filled again.
  std::vector<std::byte> incoming_, sums_[2], told_;
  std::vector<uint64_t> counts_;
  std::vector<Side> sides_;
};

}  // namespace hvd
