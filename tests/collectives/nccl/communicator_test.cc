// One rank's communicator over the stand-ins, moved by the test itself.
#include "collectives/nccl/nccl_communicator.h"

#include <atomic>
#include <string>
#include <vector>

#include "tests/collectives/nccl/device_ranks.h"
#include "tests/collectives/nccl/standin_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/until.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

class Scene {
 public:
  void start_sum(Operation& operation) {
    operation.kind = OperationKind::kAllreduce;
    operation.result = {memory_.get(), 1000, DataType::kFloat32};
    operation.on_device = true;
    nccl_.start(operation);
  }
  // One step, and after how long another is wanted.
  std::chrono::milliseconds move() {
    nccl_.progress();
    std::vector<pollfd> none;
    return nccl_.watch(none);
  }

 private:
  RankThreads ranks_{1};
  const std::shared_ptr<std::byte> memory_ = standin_backend(0).allocate(4000);
  NcclCommunicator nccl_{*ranks_.rank(0).peers, standin_device(0), standin_nccl(), "a test's",
                         *ranks_.rank(0).communicator};
};

bool is_done(const Operation& operation) {
  return operation.outcome.load(std::memory_order_acquire) == Outcome::kComplete;
}

}  // namespace

TEST_CASE("nccl communicator: a launch is looked at again at once, but not for long") {
  const Settings slow{{"delay_us", "3000"}};
  Scene scene;
  int at_once = 0, later = 0;
  for (int k = 0; k < 30; ++k) {
    Operation sum;
    scene.start_sum(sum);
    bool soon = false, not_soon = false;
    until("the sum", [&] {
      const auto again = scene.move();
      if (!sum.launched) (again == 0ms ? soon : not_soon) = true;
      return is_done(sum);
    });
    at_once += soon;
    later += soon && not_soon;
  }
  CHECK(at_once > 0);
  CHECK(later > 0);
}

}  // namespace hvd
