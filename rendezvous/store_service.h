// The Store's end of an epoch's ranks: its table, and who waits for which key.
//
// Of a world on one host its agent has it, of one on several hvdrun. Called from its owner's loop
// only, with the members' places in `ranks`. Answers go through `reply`, at once or when the key is
// set, the deadline passes, or the epoch breaks. A broken epoch's table does not change any more:
// what is in it is still read, everything else fails, so all survivors see the same.
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
  using Reply = std::function<void(int member, const AgentMessage& answer)>;

  // `ranks`: of the members in the epoch's world, for texts.
  StoreService(uint32_t epoch, std::vector<int> ranks, Reply reply);

  void handle(int member, const AgentMessage& question, TimePoint now);
  // It asks no more; texts call it ended.
  void ended(int member);
  // The epoch is broken, and why: who waits gets CommFailure with this text. Once.
  void broken(const std::string& why);
  std::optional<TimePoint> deadline() const;
  void tick(TimePoint now);

 private:
  struct Waiting {
    int member;
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

  void answer(int member, uint32_t id, int64_t sum, Bytes value);
  void refuse(int member, uint32_t id, int64_t code, const std::string& text);
  void refuse_broken(int member, uint32_t id, const std::string& key);
  void wait(int member, const AgentMessage& question, TimePoint now);
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
