#include "runtime/context.h"

#include <unistd.h>

#include "runtime/agent_above.h"
#include "runtime/agent_connection.h"
#include "runtime/agent_peers.h"
#include "runtime/base/error.h"
#include "runtime/base/mutex.h"
#include "runtime/base/private_fd.h"
#include "runtime/devices.h"
#include "runtime/engine/unnamed.h"
#include "runtime/solo_peers.h"

namespace hvd {
namespace {

struct Globals {
  Mutex starting;  // held for the whole of init() and shutdown()
  std::shared_ptr<AgentConnection> connection GUARDED_BY(starting);
  uint32_t solo_epochs GUARDED_BY(starting) = 0;

  Mutex mutex;
  std::shared_ptr<Context> context GUARDED_BY(mutex);

  // For the fork handler, which may take no lock.
  std::atomic<Context*> current{nullptr};
  std::atomic<AgentConnection*> agent{nullptr};
  std::atomic<bool> forked{false};
};

Globals& globals() {
  static Globals* const instance = new Globals;  // threads and tensors may outlive every static
  return *instance;
}

thread_local Context* own_context = nullptr;  // on the init thread

// Runs in a forked child: it is not the rank, and must neither hold its descriptors nor speak.
void forget_rank() {
  Globals& all = globals();
  // Its children's, too: what it has closed may be files of its own by then.
  if (all.forked.exchange(true, std::memory_order_relaxed)) return;
  own_context = nullptr;
  PrivateFd::close_all_in_child();
  if (AgentConnection* agent = all.agent.load(std::memory_order_acquire)) agent->close_in_child();
  Context* current = all.current.load(std::memory_order_acquire);
  if (current == nullptr) return;
  current->engine().forget_in_child();
}

void handle_forks() {
  [[maybe_unused]] static const bool handled = (call_in_forked_children(forget_rank), true);
}

void note_phase(StatusPage& page, Phase phase) {
  const uint32_t lock = page.lock.load(std::memory_order_relaxed) | 1;
  page.lock.store(lock, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  const auto now = Clock::now().time_since_epoch();
  page.since_ns.store(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count(),
                      std::memory_order_release);
  page.phase.store(static_cast<uint32_t>(phase), std::memory_order_release);
  page.lock.store(lock + 1, std::memory_order_release);
}

std::shared_ptr<Context> join(Globals& all, const Config& config) REQUIRES(all.starting) {
  if (!config.agent) {
    const std::string warning =
        all.solo_epochs == 0 ? lost_environment_warning(agent_above(getpid())) : "";
    if (!warning.empty()) config.engine.warn(warning);
    return std::make_shared<Context>(std::make_unique<SoloPeers>(++all.solo_epochs), config);
  }
  // One claim for the life of the process; a connection that was lost cannot come back.
  if (!all.connection) all.connection = std::make_shared<AgentConnection>(*config.agent);
  all.agent.store(all.connection.get(), std::memory_order_release);
  all.connection->status_page().told.store(0, std::memory_order_relaxed);  // of the last epoch
  note_phase(all.connection->status_page(), Phase::kInit);
  try {
    return std::make_shared<Context>(std::make_unique<AgentPeers>(all.connection), config);
  } catch (...) {
    note_phase(all.connection->status_page(), Phase::kInitFailed);
    throw;
  }
}

}  // namespace

Context::Context(std::unique_ptr<Peers> peers, const Config& config)
    : devices_(config.devices),
      share_gpu_(config.share_gpu),
      expects_gpu_(config.expect_gpu),
      visible_devices_(config.visible_devices),
      engine_(std::move(peers), config.engine) {}

// What this rank cannot enter the others wait for, so they are told.
void Context::use_device(int ordinal) {
  if (const DeviceBackend* used = engine_.device(); used != nullptr && used->ordinal() == ordinal)
    return;
  DeviceOptions options = devices_;
  options.ordinal = ordinal;
  try {
    engine_.use_device(open_device(options));
  } catch (const Error& error) {
    if (engine_.world().size > 1) engine_.abort(error.what());
    throw;
  }
}

std::string Context::why_no_cuda() const { return hvd::why_no_cuda(devices_.cuda_library); }

std::shared_ptr<Work> Context::submit(std::unique_ptr<Submission> submission, const char* kind) {
  if (!submission->name.empty()) return engine_.submit(std::move(submission));
  if (!engine_.on_init_thread()) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(kind) +
                    " without a name outside the thread that called init() cannot be matched with "
                    "that of other ranks; give it a name");
  }
  submission->name = unnamed(kind, unnamed_ + 1);
  auto work = engine_.submit(std::move(submission));
  ++unnamed_;
  return work;
}

std::shared_ptr<Context> context() {
  Globals& all = globals();
  if (all.forked.load(std::memory_order_relaxed)) throw_forked();
  MutexLock lock(all.mutex);
  if (!all.context)
    throw Error(ErrorCode::kUnavailable, "hvd is not initialized; call hvd::init() first");
  return all.context;
}

Context& context_for_call(std::shared_ptr<Context>& keep) {
  if (own_context != nullptr) [[likely]]
    return *own_context;
  keep = context();
  return *keep;
}

void start_context() {
  Globals& all = globals();
  if (all.forked.load(std::memory_order_relaxed)) throw_forked();
  MutexLock starting(all.starting);
  if (all.current.load(std::memory_order_relaxed) != nullptr) return;
  handle_forks();
  const Config config = Config::from_environment();
  std::shared_ptr<Context> made = join(all, config);
  MutexLock lock(all.mutex);
  all.current.store(made.get(), std::memory_order_release);
  own_context = made.get();
  all.context = std::move(made);
}

void end_context() {
  Globals& all = globals();
  if (all.forked.load(std::memory_order_relaxed)) return;  // the child's end is not the rank's
  MutexLock starting(all.starting);
  if (all.current.load(std::memory_order_relaxed) == nullptr) return;
  if (own_context == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "hvd::shutdown() belongs to the thread that called hvd::init()");
  }
  own_context->engine().shutdown();
  std::shared_ptr<Context> ended;  // let go of without the lock: it joins the engine thread
  {
    MutexLock lock(all.mutex);
    ended.swap(all.context);
    all.current.store(nullptr, std::memory_order_release);
  }
  own_context = nullptr;
}

bool has_context() noexcept {
  const Globals& all = globals();
  return all.current.load(std::memory_order_acquire) != nullptr &&
         !all.forked.load(std::memory_order_relaxed);
}

}  // namespace hvd
