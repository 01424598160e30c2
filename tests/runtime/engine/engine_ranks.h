// Ranks as threads, each with an Engine of its own over in-process Peers.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hvd/error.h"
#include "runtime/engine/engine.h"
#include "tests/support/in_process_world.h"

namespace hvd {

using Hosts = std::vector<int>;  // how many ranks each has

// Runs `body` as every rank, each on a thread with its Engine; returns when all have ended. An
// exception that a body lets out is thrown here again. `shut_down`: after the body, unless it
// threw.
void run_engines(int ranks, const std::function<void(int rank, Engine& engine)>& body,
                 EngineOptions options = {}, bool shut_down = true);
// The same on several hosts.
void run_engines(const Hosts& hosts, const std::function<void(int rank, Engine& engine)>& body,
                 EngineOptions options = {}, bool shut_down = true);
// The same in a world of the test's own.
void run_engines(InProcessWorld& world, const std::function<void(int rank, Engine& engine)>& body,
                 EngineOptions options = {}, bool shut_down = true);

// A Sum over all ranks in program order.
void sum(Engine& engine, std::span<float> data, const std::string& name = {});
// The same, asynchronous. `data` lives until it is done.
std::shared_ptr<Work> sum_async(Engine& engine, std::span<float> data, const std::string& name);
// From rank 0.
std::shared_ptr<Work> broadcast_async(Engine& engine, std::span<float> data,
                                      const std::string& name);
void broadcast(Engine& engine, std::span<float> data, int root);
// `all` has room for every rank's part.
void allgather(Engine& engine, std::span<const float> part, std::span<float> all);
// The same, asynchronous; `allocate` says where it goes, and may hold the operation up.
std::shared_ptr<Work> allgather_async(Engine& engine, std::span<const float> part,
                                      std::function<void*(std::span<const uint64_t>)> allocate,
                                      const std::string& name);
void barrier(Engine& engine);

// What it threw: "CommFailure: …", "Error: …"; empty: nothing.
template <typename Function>
std::string error_of(Function&& function) {
  try {
    function();
  } catch (const CommFailure& error) {
    return std::string("CommFailure: ") + error.what();
  } catch (const Error& error) {
    return std::string("Error: ") + error.what();
  }
  return "";
}

// Pages of this memory that are there, for whomever.
size_t resident_pages(const std::byte* data, size_t bytes);

}  // namespace hvd
