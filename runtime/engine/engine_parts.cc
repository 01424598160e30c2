// How the parts meet the other ranks, run an operation, and go quiet.
#include "runtime/engine/engine_parts.h"

#include <algorithm>
#include <cstdio>
#include <new>

#include "collectives/shared_memory/describe.h"
#include "runtime/base/error.h"
#include "runtime/base/fault_point.h"
#include "runtime/engine/outcome.h"

namespace hvd {
namespace {

constexpr int kTriesBeforeLooking = 64;  // a few microseconds: a small operation needs no more

// Takes the first segment, which is there before any communicator, when the agent has made it.
class FirstSegment final : public Feed {
 public:
  explicit FirstSegment(Peers& peers) : peers_(peers) {}

  bool feed() override {
    if (done) return false;
    try {
      pieces = peers_.take_segment(0);
    } catch (...) {
      error = std::current_exception();
    }
    done = pieces || error;
    return done;
  }
  bool waiting() const override { return !done; }
  void epoch_over() override { done = true; }

  std::optional<std::vector<UniqueFd>> pieces;
  std::exception_ptr error;
  std::atomic<bool> done{false};

 private:
  Peers& peers_;
};

void warn_on_standard_error(const std::string& text) {
  std::fprintf(stderr, "hvd: warning: %s\n", text.c_str());
}

ProgressOptions progress_options(const EngineOptions& options) {
  return {options.stall_warning, options.stall_shutdown,
          options.warn ? options.warn : warn_on_standard_error};
}

uint64_t rounded(uint64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

}  // namespace

Engine::Parts::Parts(std::unique_ptr<Peers> its_peers, const EngineOptions& its_options)
    : options(its_options),
      peers(std::move(its_peers)),
      progress(*peers, progress_options(options)),
      status(peers->status_page()) {
  const World& world = peers->world();
  if (world.size != world.local_size)
    throw Error(ErrorCode::kUnsupported,
                "ranks on several hosts are not supported yet; start all on one");
  const ControlBlock& block = peers->block();
  HVD_CHECK(block.magic == ControlBlock::kMagic && block.version == ControlBlock::kVersion,
            "agent and library are not of one version");
}

void Engine::Parts::start() {
  status.set_epoch(peers->world().epoch);
  status.begin(Phase::kInit);
  try {
    progress.start_engine_thread();
    meet();
  } catch (const std::exception& error) {
    const int me = peers->world().local_rank;
    const bool by_others = dynamic_cast<const CommFailure*>(&error) != nullptr;
    raise_trouble(
        *peers, TroubleReason::kEngineError,
        "rank " + std::to_string(peers->world().rank) + " could not start: " + error.what(),
        std::span(&me, by_others ? 0 : 1));
    go_quiet();
    progress.stop_engine_thread();
    state = State::kLeft;
    throw;
  }
  status.end();
}

// One segment holds what has to be there before there is a program order: the words of both
// communicators and of the log.
void Engine::Parts::meet() {
  const uint64_t communicator = rounded(communicator_bytes(true));
  const std::shared_ptr<Segment> segment =
      take_first_segment(2 * communicator + rounded(sizeof(LogWords)));
  progress.hold();
  const bool closed = progress.end().closed();
  if (!closed) {
    arena.add(segment);
    program = make_communicator(*peers, arena, {.segment = 0, .offset = 0, .seed = 1});
    log = make_communicator(*peers, arena, {.segment = 0, .offset = communicator, .seed = 2});
    negotiation = std::make_unique<Negotiation>(progress, *peers, *log, segment, 2 * communicator,
                                                status, options.collective_timeout);
    progress.add(*program);
    progress.add(*log);
    progress.add(*negotiation);
  }
  progress.leave();
  Operation everybody;
  everybody.name = "init()";
  if (!closed) run(everybody, options.start_timeout);
  if (!closed && everybody.outcome == Outcome::kComplete) return;
  progress.wait_until_over();
  peers->status_page().told.store(1, std::memory_order_relaxed);
  const EpochEnd& end = progress.end();
  if (end.reason_kind() == TroubleReason::kTimeout)
    throw Error(ErrorCode::kTimeout, "init() failed: " + end.reason());
  throw CommFailure("init() failed: " + end.reason(), true);
}

std::shared_ptr<Segment> Engine::Parts::take_first_segment(uint64_t bytes) {
  FirstSegment first(*peers);
  peers->request_segment(segments_made++, bytes);
  progress.hold();
  progress.add(first);
  progress.watch_agent(true);
  Awaited awaited;
  awaited.flag = &first.done;
  awaited.what = [] { return std::string("init()"); };
  awaited.timeout = options.start_timeout;
  progress.wait_and_leave(awaited);
  progress.hold();
  progress.watch_agent(false);
  progress.remove(first);
  progress.leave();
  if (first.error) std::rethrow_exception(first.error);
  if (!first.pieces) return nullptr;  // the epoch is over already
  return std::make_shared<Segment>(0, std::move(*first.pieces), bytes, peers->world().local_rank,
                                   bytes);
}

void Engine::Parts::throw_not_running() const {
  if (state == State::kForked) throw_forked();
  throw Error(ErrorCode::kUnavailable, "shutdown() was called; call init() again first");
}

void Engine::Parts::run_or_throw(Operation& operation) {
  run(operation, options.collective_timeout);
  if (operation.outcome.load(std::memory_order_acquire) == Outcome::kComplete) [[likely]]
    return;
  // Some may have asked for a segment, and used its number up.
  if (operation.disagreed && operation.kind != OperationKind::kSegment) ++segments_made;
  tell(error_of(operation, progress.end()), peers->status_page());
}

void Engine::Parts::run(Operation& operation, std::chrono::milliseconds timeout) {
  progress.hold();
  if (progress.end().closed()) [[unlikely]] {
    progress.leave();
    progress.wait_until_over();
    operation.outcome = Outcome::kFailedUntouched;
    return;
  }
  program->start(operation);
  status.begin(Order::kProgram, ++calls, operation, operation.hash);
  const int tries = progress.spins() ? kTriesBeforeLooking : 1;
  for (int i = 0; i < tries; ++i) {
    progress.advance(*program);
    if (operation.outcome.load(std::memory_order_acquire) != Outcome::kPending) {
      progress.leave();
      status.end();
      return;
    }
  }
  wait_for(operation, timeout);
  status.end();
}

void Engine::Parts::wait_for(Operation& operation, std::chrono::milliseconds timeout) {
  bool called = false;
  Awaited awaited;
  awaited.operation = &operation;
  awaited.what = [&operation] { return describe(operation); };
  awaited.missing = [this] { return program->missing_ranks(); };
  awaited.timeout = timeout;
  awaited.on_sleep = [&](TimePoint now) {
    status.waiting(now);
    negotiation->set_calling(operation.name);
    called = true;
  };
  const bool segment = operation.kind == OperationKind::kSegment;
  if (segment) progress.watch_agent(true);
  progress.wait_and_leave(awaited);
  if (called) negotiation->set_calling({});
  if (!segment) return;
  progress.hold();
  progress.watch_agent(false);
  progress.leave();
}

std::shared_ptr<Segment> Engine::Parts::add_segment(uint64_t bytes, uint64_t populate_bytes,
                                                    uint64_t kept_bytes) {
  Operation add;
  add.kind = OperationKind::kSegment;
  add.segment = segments_made++;
  add.segment_bytes = rounded(bytes);
  add.populate_bytes = populate_bytes;
  run_or_throw(add);
  progress.hold();
  const std::shared_ptr<Segment> segment = arena.segment(add.segment);
  progress.leave();
  return {segment.get(), [segment, kept_bytes](Segment*) { segment->give_back(kept_bytes); }};
}

void Engine::Parts::go_quiet() {
  progress.hold();
  if (negotiation)
    negotiation->refuse_waiting(
        "shutdown() was called on this rank before all ranks had submitted it");
  Awaited drained;
  drained.what = [] { return std::string("shutdown()"); };
  drained.when = [this] {
    const auto all = progress.communicators();
    return progress.end().broken() ||
           std::all_of(all.begin(), all.end(), [](Communicator* one) { return one->idle(); });
  };
  progress.wait_and_leave(drained);
  progress.hold();
  progress.end().close(progress.communicators());
  Awaited quiet;
  quiet.what = drained.what;
  quiet.when = [this] {
    return progress.end().broken() ? progress.over().load() : progress.end().quiet();
  };
  progress.wait_and_leave(quiet);
}

}  // namespace hvd
