#include "collectives/nccl/shared_ids.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "collectives/nccl/unique_ids.h"
#include "runtime/base/error.h"
#include "runtime/base/fault_point.h"
#include "runtime/base/start_thread.h"

namespace hvd {
namespace {

// The longest question: nobody waits longer for this to end.
constexpr std::chrono::milliseconds kAskAgain{500};

}  // namespace

SharedIds::SharedIds(Store& store, const std::string& name, int me, int ranks, int ids,
                     const ncclUniqueId& own)
    : store_(store), name_(name), me_(me), all_(static_cast<size_t>(ids)) {
  for (int rank = 0; rank < ranks; ++rank)
    if (makes_unique_id(rank, ranks, ids)) makers_.push_back(rank);
  if (const auto mine = std::ranges::find(makers_, me); mine != makers_.end())
    all_[static_cast<size_t>(mine - makers_.begin())] = own;
  thread_ = start_silent_thread("the one that shares NCCL's unique ids",
                                [this](const std::stop_token& stop) { exchange(stop); });
}

void SharedIds::exchange(const std::stop_token& stop) {
  try {
    fault_point("nccl_share_ids");
    for (size_t k = 0; k < all_.size(); ++k)
      if (makers_[k] == me_) publish(k);
    for (size_t k = 0; k < all_.size(); ++k) {
      if (makers_[k] != me_ && !fetch(k, stop)) return;
      come_.store(k + 1, std::memory_order_relaxed);
    }
    state_.store(State::kHaveCome, std::memory_order_release);
  } catch (const CommFailure&) {  // who makes progress hears of that, too
  } catch (const std::exception&) {
    failure_ = std::current_exception();
    state_.store(State::kFailed, std::memory_order_release);
  }
}

void SharedIds::publish(size_t number) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&all_[number]);
  store_.set(key(number), Bytes(bytes, bytes + sizeof(ncclUniqueId)));
}

// False: nobody wants it any more.
bool SharedIds::fetch(size_t number, const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    try {
      const Bytes bytes = store_.get(key(number), Deadline::in(kAskAgain));
      if (bytes.size() != sizeof(ncclUniqueId))
        throw Error(ErrorCode::kInternal, "\"" + key(number) + "\" in the store is no unique id");
      std::memcpy(&all_[number], bytes.data(), bytes.size());
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kTimeout) throw;
    }
  }
  return false;
}

std::string SharedIds::key(size_t number) const {
  return "nccl/" + name_ + "/" + std::to_string(number);
}

bool SharedIds::have_come() const {
  const State state = state_.load(std::memory_order_acquire);
  if (state == State::kFailed) std::rethrow_exception(failure_);
  return state == State::kHaveCome;
}

std::vector<int> SharedIds::missing() const {
  std::vector<int> ranks(makers_.begin() + static_cast<ptrdiff_t>(come_), makers_.end());
  std::erase(ranks, me_);
  return ranks;
}

}  // namespace hvd
