// The calls of <hvd/hvd.h>: checked, made into operations, and handed to the engine.
#include <algorithm>

#include "hvd/hvd.h"
#include "runtime/base/error.h"
#include "runtime/context.h"
#include "runtime/devices.h"

namespace hvd {
namespace {

// Describes one operation; called with the one on the caller's stack or that of a submission.
using Describe = std::function<void(Operation&)>;

std::shared_ptr<Work> submit(Context& context, const char* kind, const std::string& name,
                             const Describe& describe, std::shared_ptr<void> keep) {
  auto submission = std::make_unique<Submission>();
  submission->name = name;
  describe(submission->operation);
  submission->keep_alive = std::move(keep);
  return context.submit(std::move(submission), kind);
}

// Program order on the init thread; on any other one a named submission and a wait.
template <class Description>
void run(const char* kind, const std::string& name, const Description& describe) {
  std::shared_ptr<Context> keep;
  Context& context = context_for_call(keep);
  if (context.engine().on_init_thread()) [[likely]] {
    Operation operation;
    describe(operation);
    operation.name = name;
    context.engine().run(operation);
    return;
  }
  submit(context, kind, name, describe, nullptr)->wait();
}

void check_root(const Context& context, int root) {
  if (root >= 0 && root < context.world().size) return;
  throw Error(ErrorCode::kInvalidArgument, "root " + std::to_string(root) +
                                               " is no rank of this world; use 0 to " +
                                               std::to_string(context.world().size - 1));
}

void check_root(int root) {
  std::shared_ptr<Context> keep;
  check_root(context_for_call(keep), root);
}

void describe_allreduce(Operation& operation, const detail::Part& part,
                        const AllreduceOptions& options) {
  operation.kind = OperationKind::kAllreduce;
  operation.result = {part.data, part.count, part.type};
  operation.reduction = {options.op, options.prescale, options.postscale};
}

void describe_broadcast(Operation& operation, const detail::Part& part, int root) {
  operation.kind = OperationKind::kBroadcast;
  operation.result = {part.data, part.count, part.type};
  operation.root = root;
}

void describe_allgather(Operation& operation, const detail::ConstPart& part,
                        const detail::Allocate& allocate) {
  operation.kind = OperationKind::kAllgather;
  operation.input = {part.data, part.count, part.type};
  operation.result.type = part.type;
  operation.allocate = allocate;
}

int of_world(int World::* member) {
  std::shared_ptr<Context> keep;
  return context_for_call(keep).world().*member;
}

}  // namespace

void init() { start_context(); }
void shutdown() { end_context(); }
bool is_initialized() noexcept { return has_context(); }

int rank() { return of_world(&World::rank); }
int size() { return of_world(&World::size); }
int local_rank() { return of_world(&World::local_rank); }
int local_size() { return of_world(&World::local_size); }
int cross_rank() { return of_world(&World::cross_rank); }
int cross_size() { return of_world(&World::cross_size); }

// Of other libraries NCCL alone is taken, where its plug-in was built.
bool mpi_built() noexcept { return false; }
bool mpi_enabled() noexcept { return false; }
bool mpi_threads_supported() noexcept { return false; }
bool gloo_built() noexcept { return false; }
bool gloo_enabled() noexcept { return false; }
int nccl_built() noexcept { return device_plug_in_version(); }
bool cuda_built() noexcept { return device_plug_in_version() != 0; }
bool rocm_built() noexcept { return false; }
bool ccl_built() noexcept { return false; }
bool ddl_built() noexcept { return false; }

// Without a name in program order: a rank may wait there and, in another thread, in the log's.
void barrier() {
  std::shared_ptr<Context> keep;
  run("barrier", context_for_call(keep).engine().on_init_thread() ? "" : "barrier",
      [](Operation& operation) { operation.kind = OperationKind::kBarrier; });
}

namespace detail {

void allreduce(Part part, const AllreduceOptions& options) {
  run("allreduce", options.name,
      [&](Operation& operation) { describe_allreduce(operation, part, options); });
}

void broadcast(Part part, int root, const BroadcastOptions& options) {
  check_root(root);
  run("broadcast", options.name,
      [&](Operation& operation) { describe_broadcast(operation, part, root); });
}

void allgather(ConstPart part, Allocate allocate, const AllgatherOptions& options) {
  run("allgather", options.name,
      [&](Operation& operation) { describe_allgather(operation, part, allocate); });
}

std::shared_ptr<Work> allreduce_async(Part part, const AllreduceOptions& options, Keep keep) {
  return submit(
      *context(), "allreduce", options.name,
      [&](Operation& operation) { describe_allreduce(operation, part, options); }, std::move(keep));
}

std::shared_ptr<Work> broadcast_async(Part part, int root, const BroadcastOptions& options,
                                      Keep keep) {
  check_root(root);
  return submit(
      *context(), "broadcast", options.name,
      [&](Operation& operation) { describe_broadcast(operation, part, root); }, std::move(keep));
}

std::shared_ptr<Work> allgather_async(ConstPart part, Allocate allocate,
                                      const AllgatherOptions& options, Keep keep) {
  return submit(
      *context(), "allgather", options.name,
      [&](Operation& operation) { describe_allgather(operation, part, allocate); },
      std::move(keep));
}

std::shared_ptr<void> arena_memory(size_t count, size_t element_bytes, void** data) {
  std::shared_ptr<Context> keep;
  Engine& engine = context_for_call(keep).engine();
  if (!engine.on_init_thread()) {
    throw Error(ErrorCode::kInvalidArgument,
                "hvd::arena_buffer() is a collective of the thread that called hvd::init()");
  }
  constexpr uint64_t kBytesMax = uint64_t{1} << 62;  // of any address space
  if (count > kBytesMax / element_bytes)
    throw Error(ErrorCode::kUnavailable, "hvd::arena_buffer() of " + std::to_string(count) +
                                             " elements of " + std::to_string(element_bytes) +
                                             " bytes is more than any memory holds");
  // A segment of no bytes is none; a buffer of no elements is one all the same.
  const std::shared_ptr<Segment> segment =
      engine.add_segment(std::max(count * element_bytes, size_t{1}));
  *data = segment->own();
  return segment;
}

}  // namespace detail

std::vector<std::byte> broadcast_bytes(std::span<const std::byte> bytes, int root,
                                       const BroadcastOptions& options) {
  const auto part_name = [&](const char* part) {
    return options.name.empty() ? "" : options.name + part;
  };
  uint8_t nothing[1] = {};
  broadcast_(nothing, root, {.name = part_name(".root")});  // that all name the same
  // Of a gathered result who has no room for it is told alone, and nobody waits for that one.
  const size_t part = rank() == root ? bytes.size() : 0;
  std::vector<std::byte> result;
  detail::allgather({bytes.data(), part, DataType::kUint8}, detail::into(result),
                    {.name = part_name(".bytes")});
  return result;
}

std::vector<std::vector<std::byte>> allgather_bytes(std::span<const std::byte> bytes,
                                                    const AllgatherOptions& options) {
  std::vector<std::byte> all;
  std::vector<uint64_t> counts;
  const auto allocate = [&](std::span<const uint64_t> by_rank) -> void* {
    counts.assign(by_rank.begin(), by_rank.end());
    return detail::into(all)(by_rank);
  };
  detail::allgather({bytes.data(), bytes.size(), DataType::kUint8}, allocate, options);
  std::vector<std::vector<std::byte>> parts;
  auto at = all.cbegin();
  for (const uint64_t count : counts) {
    const auto end = at + static_cast<std::ptrdiff_t>(count);
    parts.emplace_back(at, end);
    at = end;
  }
  return parts;
}

}  // namespace hvd
