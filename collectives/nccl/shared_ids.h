// NCCL's unique ids, from the ranks that make them to all others: through the Store alone, which
// only the job's ranks can ask. Whoever has one can connect to them as a rank.
//
// A rank publishes what it makes before it asks for anything, so none waits for one that waits. It
// is asked on a thread of its own, since the Store blocks, for as long as this lives: how long that
// may be its owner says, and whom it waits for missing(). Everything else is the owner's thread's.
#pragma once

#include <nccl.h>

#include <atomic>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/store.h"

namespace hvd {

class SharedIds {
 public:
  // Of a communicator of `ranks`, among which this one is `me`; none else in the Store has this
  // name. `own` is looked at by ranks that make one (makes_unique_id). `store` outlives it.
  SharedIds(Store& store, const std::string& name, int me, int ranks, int ids,
            const ncclUniqueId& own);
  ~SharedIds() = default;
  SharedIds(const SharedIds&) = delete;
  SharedIds& operator=(const SharedIds&) = delete;

  // Throws what the Store says; but when the epoch is broken they just never come.
  bool have_come() const;
  // Once they have.
  std::vector<ncclUniqueId>& all() { return all_; }
  // Ranks whose ids have not come.
  std::vector<int> missing() const;

 private:
  void exchange(const std::stop_token& stop);
  void publish(size_t number);
  bool fetch(size_t number, const std::stop_token& stop);
  std::string key(size_t number) const;

  Store& store_;
  const std::string name_;
  const int me_;
  std::vector<int> makers_;        // by id
  std::vector<ncclUniqueId> all_;  // the thread's, until they have come
  std::exception_ptr failure_;     // the same

  enum class State : uint8_t { kUnderWay, kHaveCome, kFailed };
  std::atomic<State> state_{State::kUnderWay};
  std::atomic<size_t> come_{0};  // so many, from the first on
  std::jthread thread_;
};

}  // namespace hvd
