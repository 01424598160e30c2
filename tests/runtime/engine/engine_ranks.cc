// Threads as ranks.
#include "tests/runtime/engine/engine_ranks.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>

namespace hvd {

void run_engines(int ranks, const std::function<void(int, Engine&)>& body, EngineOptions options,
                 bool shut_down) {
  run_engines(Hosts{ranks}, body, std::move(options), shut_down);
}

void run_engines(const Hosts& hosts, const std::function<void(int, Engine&)>& body,
                 EngineOptions options, bool shut_down) {
  InProcessWorld world(hosts);
  run_engines(world, body, std::move(options), shut_down);
}

void run_engines(InProcessWorld& world, const std::function<void(int, Engine&)>& body,
                 EngineOptions options, bool shut_down) {
  std::vector<std::exception_ptr> errors(static_cast<size_t>(world.size()));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < world.size(); ++rank)
      threads.emplace_back([&, rank] {
        try {
          Engine engine(world.peers(rank), options);
          body(rank, engine);
          if (shut_down) engine.shutdown();
        } catch (...) {
          errors[static_cast<size_t>(rank)] = std::current_exception();
        }
      });
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

namespace {

void describe_sum(Operation& operation, std::span<float> data) {
  operation.kind = OperationKind::kAllreduce;
  operation.result = {data.data(), data.size(), DataType::kFloat32};
  operation.reduction.op = ReduceOp::kSum;
}

}  // namespace

void sum(Engine& engine, std::span<float> data, const std::string& name) {
  Operation operation;
  describe_sum(operation, data);
  operation.name = name;
  engine.run(operation);
}

std::shared_ptr<Work> sum_async(Engine& engine, std::span<float> data, const std::string& name) {
  auto submission = std::make_unique<Submission>();
  describe_sum(submission->operation, data);
  submission->name = name;
  return engine.submit(std::move(submission));
}

std::shared_ptr<Work> broadcast_async(Engine& engine, std::span<float> data,
                                      const std::string& name) {
  auto submission = std::make_unique<Submission>();
  submission->operation.kind = OperationKind::kBroadcast;
  submission->operation.result = {data.data(), data.size(), DataType::kFloat32};
  submission->name = name;
  return engine.submit(std::move(submission));
}

std::shared_ptr<Work> allgather_async(Engine& engine, std::span<const float> part,
                                      std::function<void*(std::span<const uint64_t>)> allocate,
                                      const std::string& name) {
  auto submission = std::make_unique<Submission>();
  Operation& operation = submission->operation;
  operation.kind = OperationKind::kAllgather;
  operation.input = {part.data(), part.size(), DataType::kFloat32};
  operation.result.type = DataType::kFloat32;
  operation.allocate = std::move(allocate);
  submission->name = name;
  return engine.submit(std::move(submission));
}

void broadcast(Engine& engine, std::span<float> data, int root) {
  Operation operation;
  operation.kind = OperationKind::kBroadcast;
  operation.result = {data.data(), data.size(), DataType::kFloat32};
  operation.root = root;
  engine.run(operation);
}

void allgather(Engine& engine, std::span<const float> part, std::span<float> all) {
  Operation operation;
  operation.kind = OperationKind::kAllgather;
  operation.input = {part.data(), part.size(), DataType::kFloat32};
  operation.result.type = DataType::kFloat32;
  operation.allocate = [all](std::span<const uint64_t>) { return all.data(); };
  engine.run(operation);
}

void barrier(Engine& engine) {
  Operation operation;
  engine.run(operation);
}

size_t resident_pages(const std::byte* data, size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> there((bytes + page - 1) / page);
  if (mincore(const_cast<std::byte*>(data), bytes, there.data()) != 0) return SIZE_MAX;
  return static_cast<size_t>(
      std::count_if(there.begin(), there.end(), [](int x) { return (x & 1) != 0; }));
}

}  // namespace hvd
