// The agent's end of the Store: one table per epoch, and the ranks that wait for keys.
//
// Called from the agent's loop only. Answers go through `reply`, at once or when the key is set,
// the deadline passes, or the epoch breaks. A broken epoch's table does not change any more: what
// is in it is still read, everything else fails, so all survivors see the same.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/agent_socket.h"
#include "rendezvous/memory_store.h"
#include "runtime/base/deadline.h"
#include "runtime/base/error.h"

namespace hvd {

class StoreService {
 public:
  using Reply = std::function<void(int local_rank, const AgentMessage& answer)>;

  // `ranks`: the rank in the job by local rank, for texts.
  StoreService(uint32_t epoch, std::vector<int> ranks, Reply reply);

  void handle(int local_rank, const AgentMessage& question, TimePoint now);
  // It asks no more; texts call it ended.
  void ended(int local_rank);
  // The epoch is broken, and why: who waits gets CommFailure with this text. Once.
  void broken(const std::string& why);
  std::optional<TimePoint> deadline() const;
  void tick(TimePoint now);

 private:
  struct Waiting {
    int local_rank;
    uint32_t id;
    std::string key;
    bool wants_value;
    TimePoint since;
    Deadline deadline;
  };
  struct Member {
    int rank;
    bool ended = false;
    std::optional<TimePoint> reached;  // the last time it asked for anything
  };

  void answer(int local_rank, uint32_t id, int64_t sum, Bytes value);
  void refuse(int local_rank, uint32_t id, int64_t code, const std::string& text);
  void refuse_broken(int local_rank, uint32_t id, const std::string& key);
  void wait(int local_rank, const AgentMessage& question, TimePoint now);
  void answer_waiting(const std::string& key);
  std::string timeout_text(const Waiting& waiting, TimePoint now) const;

  const uint32_t epoch_;
  const Reply reply_;
  StoreTable table_;
  std::vector<Member> members_;
  std::vector<Waiting> waiting_;
  std::string broken_;  // why; empty: it is not
};

}  // namespace hvd
