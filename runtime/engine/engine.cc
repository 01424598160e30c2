// The Engine's calls, each a few steps over its parts.
#include "runtime/engine/engine.h"

#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/fault_point.h"
#include "runtime/engine/engine_bucket_list.h"
#include "runtime/engine/engine_parts.h"
#include "runtime/engine/operation_name.h"

namespace hvd {

Engine::Engine(std::unique_ptr<Peers> peers, const EngineOptions& options)
    : parts_(std::make_shared<Parts>(std::move(peers), options)) {
  parts_->start();
}

Engine::~Engine() {
  Parts& parts = *parts_;
  if (parts.state == Parts::State::kForked) {
    // Nothing of it may run here. Without memory the child may as well end.
    // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new)
    new std::shared_ptr<Parts>(std::move(parts_));
    return;
  }
  if (parts.state != Parts::State::kRunning) return;
  abort("ended without shutdown()");
  parts.go_quiet();
  parts.progress.stop_engine_thread();
  parts.state = Parts::State::kLeft;
}

const World& Engine::world() const { return parts_->peers->world(); }

Peers& Engine::peers() { return *parts_->peers; }

bool Engine::on_init_thread() const { return parts_->on_init_thread(); }

void Engine::run(Operation& operation) {
  parts_->check_running();
  HVD_CHECK(on_init_thread(), "program order is the init thread's");
  if (!operation.name.empty()) check_operation_name(operation.name);
  if (operation.kind == OperationKind::kAllreduce)
    check_reduction(operation.reduction, operation.result.type);
  parts_->run_or_throw(operation);
}

std::shared_ptr<Work> Engine::submit(std::unique_ptr<Submission> submission) {
  parts_->check_running();
  const Operation& operation = submission->operation;
  if (operation.kind == OperationKind::kAllreduce)
    check_reduction(operation.reduction, operation.result.type);
  if (operation.on_device && device() == nullptr)
    throw Error(ErrorCode::kUnavailable, "no GPU is used here, so tensors on one cannot be sent");
  return parts_->negotiation->submit(
      std::move(submission), std::shared_ptr<Negotiation>(parts_, parts_->negotiation.get()));
}

std::shared_ptr<Segment> Engine::add_segment(uint64_t bytes) {
  parts_->check_running();
  return parts_->add_segment(bytes, bytes, 0);
}

std::unique_ptr<BucketList> Engine::make_bucket_list(const BucketListSpec& spec) {
  parts_->check_running();
  return EngineBucketList::make(parts_, spec);
}

void Engine::use_device(DeviceBackend& device) {
  parts_->check_running();
  parts_->use_device(device);
}

DeviceBackend* Engine::device() const { return parts_->device.load(std::memory_order_acquire); }

void Engine::shutdown() {
  Parts& parts = *parts_;
  if (parts.state != Parts::State::kRunning) return;
  fault_point("engine_shutdown");
  parts.status.begin(Phase::kShutdown);
  parts.go_quiet();
  parts.progress.hold();
  parts.progress.end().publish_left();
  parts.progress.leave();
  parts.progress.stop_engine_thread();
  parts.state = Parts::State::kLeft;
  parts.status.begin(Phase::kLeft);
}

void Engine::abort(const std::string& reason) noexcept {
  if (parts_->state != Parts::State::kRunning) return;
  raise_trouble(*parts_->peers, TroubleReason::kAbort,
                "rank " + std::to_string(world().rank) + ": " + reason);
}

void Engine::forget_in_child() noexcept {
  parts_->state = Parts::State::kForked;
  if (parts_->negotiation) parts_->negotiation->forget_in_child();
}

}  // namespace hvd
