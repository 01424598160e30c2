// What stands behind hvd::init(): the engine of the current epoch, and the one connection to the
// agent that lasts as long as the process.
//
// init() and shutdown() belong to one thread, the init thread; any thread may use the Context.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "runtime/config.h"
#include "runtime/engine/engine.h"

namespace hvd {

class HVD_API Context {
 public:
  Context(std::unique_ptr<Peers> peers, const Config& config);

  Engine& engine() { return engine_; }
  const World& world() const { return engine_.world(); }
  // Before anything of a tensor on that GPU, numbered among those that this process sees. Any
  // thread. Throws kUnavailable, saying what is missing.
  void use_device(int ordinal);
  bool shares_gpu() const { return share_gpu_; }     // by the user's wish
  bool expects_gpu() const { return expects_gpu_; }  // the same
  const std::optional<std::string>& visible_devices() const { return visible_devices_; }
  // CUDA's own words; empty: it can be used here, or this build has no part for GPUs.
  std::string why_no_cuda() const;
  // Engine::submit(), with a name for what has none: counted once it is submitted, so equal on all
  // ranks that submit in the same order. Where one rank is refused a call that the others made, its
  // next one takes that number, and its place if it is of that kind. Throws kInvalidArgument, too,
  // for what has none on any thread but the init thread, where a count would pair strangers.
  std::shared_ptr<Work> submit(std::unique_ptr<Submission> submission, const char* kind);
  // How many bucket lists were made, by the init thread: ranks make the same ones, in the same
  // order. Counted once it is made: others have none where one rank was refused its list.
  uint64_t lists() const { return lists_; }
  void count_list() { ++lists_; }

 private:
  const DeviceOptions devices_;
  const bool share_gpu_, expects_gpu_;
  const std::optional<std::string> visible_devices_;
  Engine engine_;
  uint64_t unnamed_ = 0, lists_ = 0;
};

// The current Context. Throws kUnavailable before init(), after shutdown(), and in a forked child.
// Whoever keeps it keeps the engine's memory, not its life: after shutdown() every call throws.
HVD_API std::shared_ptr<Context> context();

// The same without a count, for the length of one call: the init thread's own, which only that
// thread takes away; `keep` holds it for any other thread.
Context& context_for_call(std::shared_ptr<Context>& keep);

// The thread that calls it becomes the init thread. Does nothing when there is a Context already.
void start_context();
// The init thread. Does nothing when there is no Context.
void end_context();
bool has_context() noexcept;

}  // namespace hvd
