// What an Engine is made of; shared with its bucket lists, which may outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/arena.h"
#include "collectives/backends.h"
#include "runtime/base/this_thread.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/negotiation.h"
#include "runtime/engine/progress.h"
#include "runtime/engine/registered_memory.h"
#include "runtime/engine/status_writer.h"

namespace hvd {

struct Engine::Parts {
  enum class State : uint8_t { kRunning, kLeft, kForked };

  Parts(std::unique_ptr<Peers> its_peers, const EngineOptions& its_options);

  // Meets the other ranks. Throws kTimeout, naming who is missing, or what else went wrong.
  void start();
  // Throws kUnavailable after shutdown() and in a forked child.
  void check_running() const {
    if (state.load(std::memory_order_relaxed) != State::kRunning) [[unlikely]]
      throw_not_running();
  }
  // Starts on the program communicator and waits; what went wrong is in the outcome.
  void run(Operation& operation, std::chrono::milliseconds timeout);
  // The same, and throws it.
  void run_or_throw(Operation& operation);
  // The bytes of every rank, in program order.
  std::vector<std::string> gather(const std::string& name, const std::string& mine);
  // A barrier of a new communicator: afterwards its links are there on all ranks. Otherwise the
  // epoch is over.
  Outcome meet_in(Communicator& communicator, std::string_view name,
                  std::chrono::milliseconds timeout);
  // For an Awaited of the init thread: while it sleeps, its wait for this operation of that
  // communicator (0: the program's) is known to others. Afterwards done_waiting().
  void tell_of_waiting(Awaited& awaited, const Operation& operation, uint64_t communicator);
  void done_waiting();
  // When its last user lets go, the own piece's pages but the first `kept_bytes` go back to the
  // machine. Peers touch them only in operations that this rank entered with them, and those are
  // over by then; addresses stay until the epoch's end, since peers may use theirs.
  std::shared_ptr<Segment> add_segment(uint64_t bytes, uint64_t populate_bytes,
                                       uint64_t kept_bytes);
  void use_device(DeviceBackend& its_device);
  // Numbers for the links of the next communicator of all ranks: the first one.
  uint32_t use_links() {
    return std::exchange(links_made, links_made + world_communicator_links(shape));
  }
  // Closes, does its part, goes quiet; on a broken epoch returns once it is over.
  void go_quiet();
  // A line for the user, any thread.
  void warn(const std::string& text) const;
  bool on_init_thread() const { return this_thread_number() == init_thread; }

  const EngineOptions options;
  const std::unique_ptr<Peers> peers;
  const uint64_t init_thread = this_thread_number();
  std::atomic<State> state{State::kRunning};
  Arena arena;  // guarded by the progress token
  Progress progress;
  StatusWriter status;  // the init thread's
  WorldShape shape;     // once this rank has met the others
  std::unique_ptr<Communicator> program, log;
  RegisteredMemory registered;              // with `on_device`, so after it
  std::unique_ptr<Communicator> on_device;  // in the log's order, too; after `log`, which it uses
  std::atomic<DeviceBackend*> device{nullptr};
  std::unique_ptr<Negotiation> negotiation;
  uint64_t calls = 0;                          // of run()
  uint32_t steps = 0;                          // the init thread's, of all bucket lists
  uint32_t segments_made = 0, links_made = 0;  // numbers used up

 private:
  [[noreturn]] void throw_not_running() const;
  bool met_ = false, told_of_waiting_ = false;  // the init thread's

  void wait_for(Operation& operation, std::chrono::milliseconds timeout);
  RankWait wait_in(const Operation& operation, uint64_t communicator) const;
  void end_unfinished_step();
  std::vector<int> missing_in_unfinished() const;
  void meet();
  void expect_met(Outcome outcome);
  std::shared_ptr<Segment> take_first_segment(uint64_t bytes);
  void prove_shared(const std::shared_ptr<Segment>& segment, uint64_t offset);
  void wait_until(std::function<bool()> take, std::function<std::vector<int>()> missing);
};

}  // namespace hvd
