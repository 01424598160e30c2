// Ranks as threads, each with an Engine of its own over in-process Peers.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "tests/support/in_process_peers.h"

namespace hvd {

// Runs `body` as every rank, each on a thread with its Engine; returns when all have ended. An
// exception that a body lets out is thrown here again. `shut_down`: after the body, unless it
// threw.
void run_engines(int ranks, const std::function<void(int rank, Engine& engine)>& body,
                 EngineOptions options = {}, bool shut_down = true);
// The same on a host of the test's own.
void run_engines(InProcessHost& host, const std::function<void(int rank, Engine& engine)>& body,
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
void barrier(Engine& engine);

// Pages of this memory that are there, for whomever.
size_t resident_pages(const std::byte* data, size_t bytes);

}  // namespace hvd
