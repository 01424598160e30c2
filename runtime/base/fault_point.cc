#include "runtime/base/fault_point.h"

#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/base/deadline.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"
#include "runtime/base/mutex.h"

namespace hvd::fault {

std::atomic<bool> armed{false};

namespace {

// Every fault point there is, by the file that passes it.
// clang-format off: one a line, so that two branches can each add theirs
constexpr const char* kFaultPoints[] = {
    "*",
    // runtime/engine/
    "engine_submit", "engine_announce", "engine_log", "engine_start", "engine_seen",
    "engine_close", "engine_quiet", "engine_shutdown", "engine_left", "bucket_issue",
    "bucket_finish", "log_send", "log_message",
    // collectives/
    "segment_map", "segment_populate", "segment_request", "proof_store", "proof_show", "proof_found",
    "collective_entry", "collective_line",
    "collective_payload", "collective_entered", "collective_slice", "collective_sum",
    "collective_stage", "collective_copy", "collective_done", "collective_told",
    "collective_closed", "nccl_share_ids", "nccl_connect", "nccl_launched", "nccl_abort", "link_post", "link_header", "link_piece",
    "keeper_before_fork",     // cli/agent/keeper
    "keeper_started",         // cli/agent/keeper
    "keeper_lease_lost",      // cli/agent/keeper
    "keeper_finish",          // cli/agent/keeper
    "agent_started",          // cli/agent/agent
    "agent_bootstrap",        // cli/agent/agent
    "agent_spawn",            // cli/agent/workers
    "agent_spawned",          // cli/agent/workers
    "agent_rank_ended",       // cli/agent/agent
    "agent_begin_end",        // cli/agent/agent
    "agent_lease_lost",       // cli/agent/agent
    "agent_finish",           // cli/agent/agent
    "hvdrun_agent_started",   // cli/supervisor
    "hvdrun_bootstrap_sent",  // cli/supervisor
    "hvdrun_agent_ended",     // cli/supervisor
    "hvdrun_finish",          // cli/supervisor
    // runtime/
    "agent_connect",
    "agent_claim",
    "epoch_want",
    "epoch_wait",
    "block_map",
    "store_ask",
    "store_wait",
    "segment_ask",
};
// clang-format on

std::atomic<bool> acts{false};        // some point is to do something, or all are counted
std::atomic<uint64_t> delay_seed{0};  // 0: no delays
std::atomic<uint64_t> delayed_threads{0};

struct State {
  Mutex mutex;
  std::string name GUARDED_BY(mutex);
  std::string action GUARDED_BY(mutex);
  std::string count_file GUARDED_BY(mutex);
  long remaining GUARDED_BY(mutex) = 0;
  std::map<std::string, long> counts GUARDED_BY(mutex);
  std::optional<std::thread::id> only GUARDED_BY(mutex);
};

State& state() {
  static State* const instance =
      new State;  // never destroyed: points are passed until the process ends
  return *instance;
}

void write_counts() {
  State& s = state();
  MutexLock lock(s.mutex);
  std::FILE* file = std::fopen(s.count_file.c_str(), "a");
  if (file == nullptr) return;
  for (const auto& [name, count] : s.counts) std::fprintf(file, "%s %ld\n", name.c_str(), count);
  std::fclose(file);
}

void act(const std::string& action, const char* name) {
  if (action == "kill") kill(getpid(), SIGKILL);
  if (action == "stop") raise(SIGSTOP);  // this thread at once, here; the others soon
  if (action.rfind("exit=", 0) == 0) _exit(std::atoi(action.c_str() + 5));
  if (action == "throw") throw Error(ErrorCode::kInternal, std::string("fault point ") + name);
}

// Before main(), where nobody would catch an exception.
struct ArmFromEnvironment {
  ArmFromEnvironment() {
    const auto text = env::get("HVD_FAULT_POINT");
    if (!text) return;
    try {
      arm(text->c_str());
    } catch (const Error& error) {
      std::fprintf(stderr, "HVD_FAULT_POINT: %s\n", error.what());
      _exit(2);
    }
  }
} const arm_from_environment;

bool is_listed(std::string_view name) {
  return std::find(std::begin(kFaultPoints), std::end(kFaultPoints), name) !=
         std::end(kFaultPoints);
}

// The whole of `text` as a number in [least, most]; -1 when it is none.
long number_in(std::string_view text, long least, long most) {
  long value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  return whole && value >= least && value <= most ? value : -1;
}

bool is_action(std::string_view action) {
  if (action.starts_with("exit=")) return number_in(action.substr(5), 0, 255) >= 0;
  return action == "kill" || action == "stop" || action == "throw";
}

struct Specification {
  std::string name{}, action{}, count_file{};
  long passings = 0;
};

Specification parse(const std::string& text) {
  if (text.starts_with("count:") && text.size() > 6) return {.count_file = text.substr(6)};
  const size_t first = text.find(':'), second = text.find(':', first + 1);
  if (first == text.npos || second == text.npos)
    throw Error(ErrorCode::kInvalidArgument,
                "\"" + text + "\" is neither NAME:K:ACTION nor count:FILE nor delay:SEED");
  const std::string name = text.substr(0, first), action = text.substr(second + 1);
  const long passings =
      number_in(std::string_view(text).substr(first + 1, second - first - 1), 1, LONG_MAX);
  if (!is_listed(name))
    throw Error(ErrorCode::kInvalidArgument,
                "no fault point is called \"" + name + "\"; fault_point.cc lists them");
  if (passings < 0)
    throw Error(ErrorCode::kInvalidArgument,
                "\"" + text + "\" does not say at which passing; give a number from 1 on");
  if (!is_action(action))
    throw Error(ErrorCode::kInvalidArgument,
                "no action is called \"" + action + "\"; give kill, stop, throw or exit=N");
  return {.name = name, .action = action, .passings = passings};
}

// Of every 128 points one, for up to 60 µs. Only relaxed words: nobody is ordered by it.
void delay(uint64_t seed) {
  constexpr uint64_t kOneOf = 128, kLongest = 60;
  thread_local uint64_t random =
      seed * 0x9e3779b97f4a7c15 + delayed_threads.fetch_add(1, std::memory_order_relaxed) + 1;
  random ^= random << 13;
  random ^= random >> 7;
  random ^= random << 17;
  if (random % kOneOf != 0) return;
  const Deadline until = Deadline::in(std::chrono::microseconds(random / kOneOf % kLongest));
  while (!until.passed()) sched_yield();
}

// In one go: no other thread may pass before it is known who counts.
void arm_for(std::optional<std::thread::id> only, const char* specification) {
  if (specification == nullptr) {  // what was counted so far is still written at exit
    acts = false;
    armed = delay_seed != 0;
    return;
  }
  const std::string_view text = specification;
  if (text.starts_with("delay:")) {
    const long seed = number_in(text.substr(6), 0, LONG_MAX);
    if (seed < 0)
      throw Error(ErrorCode::kInvalidArgument,
                  "\"" + std::string(text) + "\" has no seed; give a number, 0 for no delays");
    delay_seed = static_cast<uint64_t>(seed);
    armed = seed != 0 || acts;
    return;
  }
  Specification wanted = parse(specification);
  State& s = state();
  MutexLock lock(s.mutex);
  acts = armed = true;
  s.only = only;
  s.name = std::move(wanted.name);
  s.remaining = wanted.passings;
  s.action = std::move(wanted.action);
  s.count_file = std::move(wanted.count_file);
  if (!s.count_file.empty()) std::atexit(write_counts);
}

}  // namespace

void arm(const char* specification) { arm_for(std::nullopt, specification); }

void arm_here(const char* specification) { arm_for(std::this_thread::get_id(), specification); }

void pass(const char* name) {
  const uint64_t seed = delay_seed.load(std::memory_order_relaxed);
  if (seed != 0) delay(seed);
  if (!acts.load(std::memory_order_relaxed)) return;
  State& s = state();
  std::string action;
  {
    MutexLock lock(s.mutex);
    HVD_CHECK(is_listed(name), name);
    if (!s.count_file.empty()) {
      ++s.counts[name];
      return;
    }
    if (s.only && *s.only != std::this_thread::get_id()) return;
    if (s.name != "*" && s.name != name) return;
    if (--s.remaining != 0) return;
    action = s.action;
  }
  act(action, name);
}

std::span<const char* const> names() { return kFaultPoints; }

}  // namespace hvd::fault
