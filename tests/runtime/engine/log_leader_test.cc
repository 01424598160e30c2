// A leader's words, by which the other ranks of its host see that it works.
#include "runtime/engine/log_leader.h"

#include <memory>
#include <vector>

#include "runtime/base/sealed_memory.h"
#include "runtime/engine/negotiation.h"
#include "tests/support/catch.h"
#include "tests/support/in_process_world.h"

using namespace hvd;

namespace {

// Something moves in each of so many rounds, until its operation is complete.
class MovingCommunicator final : public Communicator {
 public:
  explicit MovingCommunicator(int rounds) : rounds_(rounds) {}

  int rank() const override { return 0; }
  int size() const override { return 2; }
  void start(Operation& operation) override { operation_ = &operation; }
  bool progress() override {
    if (--rounds_ == 0) std::exchange(operation_, nullptr)->outcome = Outcome::kComplete;
    return true;
  }
  bool idle() const override { return operation_ == nullptr; }
  void close() override {}
  bool drained() const override { return true; }
  void fail_rest() override {}
  void abort() noexcept override {}
  std::vector<int> missing_ranks() const override { return {}; }
  uint64_t entered() const override { return 0; }

 private:
  int rounds_;
  Operation* operation_ = nullptr;
};

}  // namespace

// It never sleeps, and nothing in the log waits.
TEST_CASE("log leader: rounds count what moves in a synchronous call, too") {
  constexpr int kRounds = 1000;
  InProcessWorld world({1, 1});
  const std::unique_ptr<Peers> peers = world.peers(1);
  std::vector<UniqueFd> memory;
  memory.push_back(make_sealed_memory("log-words", sizeof(LogWords)));
  const HostLogWords words(
      std::make_shared<Segment>(0, std::move(memory), sizeof(LogWords), 0, sizeof(LogWords)), 0);
  StatusWriter status(peers->status_page());
  const uint64_t calls = 1;
  Progress progress(*peers, {});
  MovingCommunicator program(kRounds), log(0);
  Negotiation negotiation(progress, *peers, log, words, {{{0, 1}, {1, 1}}}, 0, status, calls, {});
  progress.hold();
  progress.add(program);
  progress.add(negotiation);
  Operation call;
  program.start(call);
  Awaited awaited;
  awaited.operation = &call;
  awaited.what = [] { return std::string("a call"); };
  progress.wait_and_leave(awaited);
  CHECK(words.of(0).rounds >= kRounds);
  progress.remove(negotiation);
}
