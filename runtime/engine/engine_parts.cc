// How the parts meet the other ranks, run an operation, and go quiet.
#include "runtime/engine/engine_parts.h"

#include <algorithm>
#include <new>
#include <numeric>

#include "collectives/describe.h"
#include "collectives/memory_proof.h"
#include "runtime/base/error.h"
#include "runtime/base/fault_point.h"
#include "runtime/base/last_words.h"
#include "runtime/engine/outcome.h"
#include "runtime/engine/text_hash.h"

namespace hvd {
namespace {

constexpr auto kTellOfStepAfter = std::chrono::seconds(1);
constexpr int kTriesBeforeLooking = 64;  // a few microseconds: a small operation needs no more

// Takes something that the agent was asked for, once it is there.
class Arrival final : public Feed {
 public:
  explicit Arrival(std::function<bool()> take) : take_(std::move(take)) {}

  bool feed() override {
    if (done) return false;
    try {
      done = take_();
    } catch (...) {
      error = std::current_exception();
      done = true;
    }
    return done;
  }
  bool waiting() const override { return !done; }
  void epoch_over() override { done = true; }

  std::exception_ptr error;
  std::atomic<bool> done{false};

 private:
  const std::function<bool()> take_;
};

ProgressOptions progress_options(const EngineOptions& options) {
  return {.stall_warning = options.stall_warning,
          .stall_shutdown = options.stall_shutdown,
          .warn = options.warn,
          .device_timeout = options.collective_timeout,
          .connect_timeout = options.start_timeout};
}

// As the agents have agreed on it; that ranks of one host share memory is still to be proved.
WorldShape shape_of(Peers& peers) {
  const World& world = peers.world();
  std::vector<HostRanks> hosts;
  for (int rank = 0; rank < world.size; ++rank) {
    const FateWords& words = peers.block().fate(rank);
    hosts.push_back({static_cast<int>(words.host_first), static_cast<int>(words.host_ranks)});
  }
  WorldShape shape = WorldShape::of(hosts);
  if (hosts[static_cast<size_t>(world.rank)] !=
      HostRanks{world.rank - world.local_rank, world.local_size})
    throw Error(ErrorCode::kInternal, "the control block's hosts are not those of this epoch");
  if (!shape.one_host() && !peers.gives_links())
    throw Error(ErrorCode::kUnsupported,
                "these ranks have no links to other hosts; start all on one");
  return shape;
}

uint64_t rounded(uint64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

}  // namespace

void warn_on_standard_error(const std::string& text) {
  write_last_words("hvd: warning: " + text + "\n");
}

Engine::Parts::Parts(std::unique_ptr<Peers> its_peers, const EngineOptions& its_options)
    : options(its_options),
      peers(std::move(its_peers)),
      progress(*peers, progress_options(options)),
      status(peers->status_page()),
      shape(shape_of(*peers)) {
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
    const int me = peers->world().rank;
    const bool by_others = dynamic_cast<const CommFailure*>(&error) != nullptr;
    raise_trouble(*peers, TroubleReason::kEngineError,
                  "rank " + std::to_string(me) + " could not start: " + error.what(),
                  std::span(&me, by_others ? 0 : 1));
    go_quiet();
    progress.stop_engine_thread();
    state = State::kLeft;
    throw;
  }
  status.end();
}

// One segment holds what has to be there before there is a program order: the words of both
// communicators, of the log, and of the proof that ranks of a host share them.
void Engine::Parts::meet() {
  const uint64_t communicator = rounded(world_communicator_bytes(shape, true));
  const uint64_t proof = 2 * communicator + sizeof(LogWords);
  const std::shared_ptr<Segment> segment =
      take_first_segment(rounded(proof + MemoryProof::bytes(peers->world().local_size)));
  if (segment) prove_shared(segment, proof);
  const HostLogWords words(segment, 2 * communicator);
  progress.hold();
  const bool closed = progress.end().closed();
  if (!closed) {
    arena.add(segment);
    program = make_world_communicator(*peers, arena, shape,
                                      {.segment = 0, .offset = 0, .links = use_links(), .seed = 1});
    log = make_world_communicator(
        *peers, arena, shape,
        {.segment = 0, .offset = communicator, .links = use_links(), .seed = 2});
    negotiation = std::make_unique<Negotiation>(progress, *peers, *log, words, shape, links_made++,
                                                status, calls, options.collective_timeout);
    progress.add(*program);
    progress.add(*log);
    progress.add(*negotiation);
  }
  progress.leave();
  Operation everybody;
  everybody.name = "init()";
  if (!closed) run(everybody, options.start_timeout);
  expect_met(everybody.outcome);
  if (!shape.one_host()) {  // the links of the log, and of its communicator
    wait_until([this] { return negotiation->linked(); },
               [this] { return negotiation->missing_links(); });
    expect_met(meet_in(*log, "init()", options.start_timeout));
  }
  met_ = true;
}

Outcome Engine::Parts::meet_in(Communicator& communicator, std::string_view name,
                               std::chrono::milliseconds timeout) {
  Operation everybody;
  everybody.name = name;
  progress.hold();
  communicator.start(everybody);
  Awaited awaited;
  awaited.operation = &everybody;
  awaited.what = [name] { return std::string(name); };
  awaited.missing = [&] { return communicator.missing_ranks(); };
  awaited.timeout = timeout;
  progress.wait_and_leave(awaited);
  return everybody.outcome.load(std::memory_order_acquire);
}

void Engine::Parts::expect_met(Outcome outcome) {
  if (outcome == Outcome::kComplete) return;
  progress.wait_until_over();
  peers->status_page().told.store(1, std::memory_order_relaxed);
  const EpochEnd& end = progress.end();
  if (end.reason_kind() == TroubleReason::kTimeout)
    throw Error(ErrorCode::kTimeout, "init() failed: " + end.reason());
  throw CommFailure("init() failed: " + end.reason(), true);
}

std::shared_ptr<Segment> Engine::Parts::take_first_segment(uint64_t bytes) {
  std::optional<std::vector<UniqueFd>> pieces;
  peers->request_segment(segments_made++, bytes);
  wait_until(
      [&] {
        pieces = peers->take_segment(0);
        return pieces.has_value();
      },
      {});
  if (!pieces) return nullptr;  // the epoch is over already
  return std::make_shared<Segment>(0, std::move(*pieces), bytes, peers->world().local_rank, bytes);
}

// Before anything else lies in that memory: the way out of a broken epoch leads through it, too.
void Engine::Parts::prove_shared(const std::shared_ptr<Segment>& segment, uint64_t offset) {
  MemoryProof proof(*peers, segment, offset);
  wait_until([&] { return proof.complete(); }, [&] { return proof.missing(); });
}

// Until `take` returns true, or the epoch is over. `missing`: the ranks without whom it cannot;
// none: the agent needs nobody to give it.
void Engine::Parts::wait_until(std::function<bool()> take,
                               std::function<std::vector<int>()> missing) {
  Arrival arrival(std::move(take));
  progress.hold();
  progress.add(arrival);
  progress.watch_agent(true);
  Awaited awaited;
  awaited.flag = &arrival.done;
  awaited.what = [] { return std::string("init()"); };
  if (!missing) awaited.otherwise = "its host's agent";
  awaited.missing = std::move(missing);
  awaited.timeout = options.start_timeout;
  progress.wait_and_leave(awaited);
  progress.hold();
  progress.watch_agent(false);
  progress.remove(arrival);
  progress.leave();
  if (arrival.error) std::rethrow_exception(arrival.error);
}

void Engine::Parts::warn(const std::string& text) const { options.warn(text); }

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

std::vector<std::string> Engine::Parts::gather(const std::string& name, const std::string& mine) {
  std::vector<uint64_t> counts;
  std::string all;
  Operation operation;
  operation.kind = OperationKind::kAllgather;
  operation.name = name;
  operation.result.type = DataType::kUint8;
  operation.input = {mine.data(), mine.size(), DataType::kUint8};
  operation.allocate = [&](std::span<const uint64_t> given) {
    counts.assign(given.begin(), given.end());
    all.resize(std::accumulate(given.begin(), given.end(), uint64_t{0}));
    return static_cast<void*>(all.data());
  };
  run_or_throw(operation);
  std::vector<std::string> by_rank;
  size_t at = 0;
  for (const uint64_t count : counts) {
    by_rank.push_back(all.substr(at, count));
    at += count;
  }
  return by_rank;
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
  Awaited awaited;
  awaited.operation = &operation;
  awaited.what = [&operation] { return describe(operation); };
  awaited.missing = [this] { return program->missing_ranks(); };
  awaited.timeout = timeout;
  tell_of_waiting(awaited, operation, 0);
  const bool segment = operation.kind == OperationKind::kSegment;
  if (segment) progress.watch_agent(true);
  progress.wait_and_leave(awaited);
  done_waiting();
  if (!segment) return;
  progress.hold();
  progress.watch_agent(false);
  progress.leave();
}

RankWait Engine::Parts::wait_in(const Operation& operation, uint64_t communicator) const {
  if (communicator == 0)
    return {operation.name.empty() ? 0 : text_hash(operation.name), operation.sequence, steps};
  const uint64_t of_list = mix_hash(communicator, operation.sequence) % LogWords::kInLog;
  return {calls, of_list | LogWords::kOfList, steps};
}

void Engine::Parts::tell_of_waiting(Awaited& awaited, const Operation& operation,
                                    uint64_t communicator) {
  awaited.on_sleep = [this, &awaited, &operation, communicator](TimePoint now) {
    // Of a list's ranks on one host each sees who is missing; what is told is for looks, a second
    // apart, and no step writes it before.
    const bool tells = communicator == 0 || !shape.one_host() ||
                       progress.job_time(now) - awaited.since >= kTellOfStepAfter;
    if (tells && !told_of_waiting_)
      told_of_waiting_ = negotiation->say_waiting(wait_in(operation, communicator), awaited.what());
    status.waiting(now);
  };
  if (!met_ || shape.one_host()) return;
  awaited.told_by_other = [this] { return negotiation->ask_who_is_missing_in_call(); };
  awaited.missing = [this, seen = std::move(awaited.missing)] {
    return negotiation->missing_in_call(seen());
  };
}

void Engine::Parts::done_waiting() {
  if (std::exchange(told_of_waiting_, false)) negotiation->say_done();
}

std::shared_ptr<Segment> Engine::Parts::add_segment(uint64_t bytes, uint64_t populate_bytes,
                                                    uint64_t kept_bytes) {
  Operation add;
  add.kind = OperationKind::kSegment;
  add.segment = segments_made++;
  add.segment_bytes = bytes;
  add.populate_bytes = populate_bytes;
  run_or_throw(add);
  progress.hold();
  const std::shared_ptr<Segment> segment = arena.segment(add.segment);
  progress.leave();
  return {segment.get(), [segment, kept_bytes](Segment*) { segment->give_back(kept_bytes); }};
}

void Engine::Parts::use_device(DeviceBackend& its_device) {
  progress.hold();
  if (!on_device) {
    on_device = its_device.make_communicator(*peers, "hvd", *log);
    negotiation->set_device(*on_device);
    progress.add(*on_device);
    device.store(&its_device, std::memory_order_release);
  }
  progress.leave();
}

// While draining: of a step that was begun here others may know nothing, and wait for this rank in
// something else, which it never calls. What is in the log, however late, they come to by
// themselves.
void Engine::Parts::end_unfinished_step() {
  const int me = peers->world().rank;
  for (const Communicator* one : progress.communicators())
    if (one != log.get() && one != on_device.get() && !one->idle() && !one->not_entered().empty()) {
      raise_trouble(*peers, TroubleReason::kLeft,
                    rank_text(*peers, me) + " called shutdown() in the middle of a step",
                    std::span(&me, 1));
      return;
    }
}

std::vector<int> Engine::Parts::missing_in_unfinished() const {
  for (const Communicator* one : progress.communicators())
    if (!one->idle())
      if (std::vector<int> missing = one->missing_ranks(); !missing.empty()) return missing;
  return {};
}

void Engine::Parts::go_quiet() {
  progress.hold();
  progress.advance();  // what is in the log by now is done before
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
  // Between hosts a communicator has not heard of all who are there, and rank 0 alone tells.
  if (shape.one_host()) {
    drained.missing = [this] { return missing_in_unfinished(); };
  } else if (negotiation) {
    drained.told_by_other = [this] { return negotiation->ask_who_is_missing_in_log(); };
  }
  drained.timeout = options.collective_timeout;
  drained.on_sleep = [this](TimePoint) { end_unfinished_step(); };
  progress.wait_and_leave(drained);
  progress.hold();
  if (negotiation && !progress.end().broken() && peers->block().trouble == 0) negotiation->leave();
  progress.end().close(progress.communicators());
  // A device's communicator is left by all together. Who goes on instead has to hear of it before.
  if (on_device && !progress.end().broken()) progress.end().publish_left();
  Awaited quiet;
  quiet.what = drained.what;
  quiet.when = [this] {
    return progress.end().broken() ? progress.over().load() : progress.end().quiet();
  };
  progress.wait_and_leave(quiet);
  registered.clear();
}

}  // namespace hvd
