// One rank's communicator over the stand-ins, moved by the test itself.
#include "collectives/nccl/nccl_communicator.h"

#include <pthread.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <utility>

#include "tests/collectives/nccl/engine_devices.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/until.h"

namespace hvd {
namespace {

// The threads that have called NCCL.
class Callers {
 public:
  static void note() {
    const std::lock_guard lock(mutex());
    all().insert(pthread_self());
  }
  static std::set<pthread_t> take() {
    const std::lock_guard lock(mutex());
    return std::exchange(all(), {});
  }

 private:
  static std::mutex& mutex() {
    static std::mutex only;
    return only;
  }
  static std::set<pthread_t>& all() {
    static std::set<pthread_t> only;
    return only;
  }
};

// The stand-in's, with some of its calls noted.
NcclLibrary noted_nccl() {
  NcclLibrary nccl = NcclLibrary::load("");
  nccl.ncclGetUniqueId = [](ncclUniqueId* id) {
    Callers::note();
    return standin_nccl().ncclGetUniqueId(id);
  };
  nccl.ncclCommInitRankConfig = [](ncclComm_t* made, int ranks, ncclUniqueId id, int rank,
                                   ncclConfig_t* config) {
    Callers::note();
    return standin_nccl().ncclCommInitRankConfig(made, ranks, id, rank, config);
  };
  nccl.ncclCommGetAsyncError = [](ncclComm_t communicator, ncclResult_t* state) {
    Callers::note();
    return standin_nccl().ncclCommGetAsyncError(communicator, state);
  };
  nccl.ncclAllReduce = [](const void* from, void* to, size_t count, ncclDataType_t type,
                          ncclRedOp_t op, ncclComm_t communicator, cudaStream_t stream) {
    Callers::note();
    return standin_nccl().ncclAllReduce(from, to, count, type, op, communicator, stream);
  };
  nccl.ncclCommFinalize = [](ncclComm_t communicator) {
    Callers::note();
    return standin_nccl().ncclCommFinalize(communicator);
  };
  nccl.ncclCommDestroy = [](ncclComm_t communicator) {
    Callers::note();
    return standin_nccl().ncclCommDestroy(communicator);
  };
  nccl.ncclCommAbort = [](ncclComm_t communicator) {
    Callers::note();
    return standin_nccl().ncclCommAbort(communicator);
  };
  return nccl;
}

class Scene {
 public:
  void start_sum(Operation& operation) {
    operation.kind = OperationKind::kAllreduce;
    operation.result = {memory_.get(), 1000, DataType::kFloat32};
    operation.on_device = true;
    communicator_.start(operation);
  }
  void move_until(const char* what, const std::function<bool()>& done) {
    until(what, [&] {
      communicator_.progress();
      return done();
    });
  }
  NcclCommunicator& communicator() { return communicator_; }

 private:
  RankThreads ranks_{1};
  const std::shared_ptr<std::byte> memory_ = standin_backend(0).allocate(4000);
  const NcclLibrary nccl_ = noted_nccl();
  NcclCommunicator communicator_{*ranks_.rank(0).peers, standin_device(0), nccl_, "a test's",
                                 *ranks_.rank(0).communicator};
};

bool is_done(const Operation& operation) {
  return operation.outcome.load(std::memory_order_acquire) == Outcome::kComplete;
}

}  // namespace

TEST_CASE("nccl communicator: one thread, and not the holder's, makes all calls to the end") {
  const bool leaves = GENERATE(true, false);
  CAPTURE(leaves);
  Callers::take();
  {
    Scene scene;
    for (int k = 0; k < 3; ++k) {
      Operation sum;
      scene.start_sum(sum);
      scene.move_until("the sum", [&] { return is_done(sum); });
    }
    if (leaves) {
      scene.communicator().close();
      scene.move_until("the end", [&] { return scene.communicator().drained(); });
    }
  }
  const std::set<pthread_t> callers = Callers::take();
  CHECK(callers.size() == 1);
  CHECK(!callers.contains(pthread_self()));
}

// What a stream has no room for would be waited for in the driver, by NCCL's thread.
TEST_CASE("nccl communicator: so many operations are launched at once, and the others after them") {
  constexpr size_t kAll = 300, kMost = 128;
  Scene scene;
  {
    Operation first;  // by which they connect
    scene.start_sum(first);
    scene.move_until("the sum", [&] { return is_done(first); });
  }
  std::deque<Operation> sums(kAll);
  const auto launched = [&] {
    return static_cast<size_t>(std::ranges::count_if(
        sums, [](const Operation& one) { return one.launched.load(std::memory_order_acquire); }));
  };
  {
    Hold hold;
    hold.launch(0, standin_device(0).stream());
    for (Operation& one : sums) scene.start_sum(one);
    scene.move_until("as many as there is room for", [&] { return launched() == kMost; });
    // NCCL's thread has looked several times since: each look of its takes a millisecond at most.
    const uint64_t called = scene.communicator().entered();
    const Deadline later = Deadline::in(std::chrono::milliseconds(50));
    until("no more", [&] { return later.passed(); });
    CHECK(scene.communicator().entered() == called);
    CHECK(launched() == kMost);
  }
  scene.move_until("all sums", [&] { return is_done(sums.back()); });
}

}  // namespace hvd
