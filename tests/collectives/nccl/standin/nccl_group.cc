#include "tests/collectives/nccl/standin/nccl_group.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "tests/collectives/nccl/standin/cuda_memory.h"
#include "tests/collectives/nccl/standin/cuda_stream.h"
#include "tests/collectives/nccl/standin/nccl_memory.h"
#include "tests/collectives/nccl/standin/nccl_reduce.h"
#include "tests/collectives/nccl/standin/state.h"

namespace hvd {
namespace {

thread_local int depth = 0;
thread_local ncclResult_t failed = ncclSuccess;  // of the group's calls
thread_local std::vector<Operation> grouped;

size_t bytes_from(const ncclComm* comm, const Call& call) {
  const bool contributes = call.kind != Collective::kBroadcast || call.root == comm->rank;
  return contributes ? call.count * bytes_of(call.type) : 0;
}

size_t bytes_to(const ncclComm* comm, const Call& call) {
  const auto parts = static_cast<size_t>(call.kind == Collective::kAllGather ? comm->ranks : 1);
  return call.count * bytes_of(call.type) * parts;
}

// Where its buffers lie in what the communicator has registered.
Place place_of(const ncclComm* comm, const void* pointer, size_t bytes) {
  return bytes == 0 ? Place{} : find_registration(comm, pointer, bytes);
}

// src/sym_kernels.cc, ncclSymkImplemented() and ncclSymkMask().
bool has_symmetric_kernel(const Call& call) {
  return call.kind == Collective::kAllReduce && call.op == ncclSum && setting("nodes", 1) == 1 &&
         (call.type == ncclFloat32 || call.type == ncclFloat16 || call.type == ncclBfloat16);
}

// Of both, told to the other ranks; of what is sent only where all send from the same place. The
// parts of an allgather in place do not, and a broadcast has but one that is sent.
uint64_t places_of(const ncclComm* comm, const Call& call) {
  constexpr uint64_t kMixer = 1000003;
  const Place from = place_of(comm, call.from, bytes_from(comm, call)),
              to = place_of(comm, call.to, bytes_to(comm, call));
  uint64_t mixed = to.number * kMixer + to.offset;
  if (call.kind != Collective::kBroadcast) mixed = mixed * kMixer + from.number;
  if (call.kind == Collective::kAllReduce) mixed = mixed * kMixer + from.offset;
  return mixed;
}

Frame question_of(const ncclComm* comm, const Call& call) {
  Frame question;
  question.header.kind = Message::kCollective;
  question.header.collective = static_cast<int32_t>(call.kind);
  question.header.type = call.type;
  question.header.op = call.op;
  question.header.root = call.root;
  question.header.count = call.count;
  question.header.scalar = call.scalar;
  question.header.place = places_of(comm, call);
  const size_t bytes = bytes_from(comm, call);
  if (bytes == 0) return question;
  const std::byte* values = find_device_bytes(call.from, bytes).host;  // held, so it is there
  question.body.assign(values, values + bytes);
  return question;
}

// What it is worth when it was aborted, so that whoever uses it sees.
void spoil(const ncclComm* comm, const Call& call) {
  const size_t bytes = bytes_to(comm, call);
  if (std::byte* values = find_device_bytes(call.to, bytes).host) std::memset(values, 0xdb, bytes);
}

// False: it never ends of its own.
bool exchange(ncclComm* comm, const Call& call, uint64_t number) {
  const long long after = setting("async_error_after", 0);
  if (after > 0 && number + 1 >= static_cast<uint64_t>(after) && is_fault_rank(comm->rank)) {
    const auto result = static_cast<ncclResult_t>(setting("async_error", ncclUnhandledCudaError));
    fail(comm, result, "a collective fails on the device as it was told to");
    const std::lock_guard lock(world().mutex);
    comm->state = result;
    return false;
  }
  std::shared_ptr<Connection> data;
  {
    const std::lock_guard lock(world().mutex);
    data = comm->data;
  }
  Frame reply;
  if (data == nullptr || !data->send(question_of(comm, call)) || !data->receive(reply))
    return false;
  if (reply.header.result != ncclSuccess)
    violate(std::string(reinterpret_cast<const char*>(reply.body.data()), reply.body.size()));
  const size_t bytes = bytes_to(comm, call);
  if (bytes > 0 && reply.body.size() == bytes)
    std::memcpy(find_device_bytes(call.to, bytes).host, reply.body.data(), bytes);
  return true;
}

bool follows_launch_order() {
  if (setting("launch_order_implicit", 0) != 0) return true;
  const char* implicit = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  return implicit != nullptr && std::string(implicit) == "1";
}

// Its kernels for windows look at no abort before 2.29.7 (src/include/nccl_device/impl, the waits
// of lsa_barrier__funcs.h and ll_a2a__funcs.h), and ncclCommAbort() waits for what was launched.
bool outlasts_abort(const ncclComm* comm, const Call& call) {
  constexpr long long kAbortable = 22907;
  return has_symmetric_kernel(call) && setting("nccl_version", NCCL_VERSION_CODE) < kAbortable &&
         place_of(comm, call.from, bytes_from(comm, call)).symmetric &&
         place_of(comm, call.to, bytes_to(comm, call)).symmetric;
}

// On the device. NCCL user guide, "Using multiple NCCL communicators concurrently": without one
// order for all of a device's communicators "deadlocks could ensue". A collective has a slot for as
// long as it runs; it takes it when the stream comes to it, or with NCCL_LAUNCH_ORDER_IMPLICIT in
// the order of the launches.
void perform(ncclComm* comm, const Call& call, uint64_t number, uint64_t ticket) {
  std::unique_lock lock(world().mutex);
  Slots& slots = world().slots[comm->context->ordinal];
  world().changed.wait(lock, [&] {
    return comm->aborted || (comm->performed == number && slots.taken < setting("slots", 1) &&
                             (!follows_launch_order() || *slots.tickets.begin() == ticket));
  });
  slots.tickets.erase(ticket);
  world().changed.notify_all();
  const bool begins = !comm->aborted;
  if (begins) {
    ++slots.taken;
    ++slots.waiting;
    lock.unlock();
    const bool endless = outlasts_abort(comm, call);
    const bool ended = exchange(comm, call, number);
    if (!ended && endless)
      violate("a sum in windows that no abort ends, of NCCL older than 2.29.7");
    lock.lock();
    if (!ended) world().changed.wait(lock, [&] { return comm->aborted; });
    world().changed.wait_for(lock, std::chrono::microseconds(setting("slow_us", 0)),
                             [&] { return comm->aborted; });
    --slots.waiting;
    --slots.taken;
  }
  if (comm->aborted) spoil(comm, call);
  ++comm->performed;
  comm->touched.erase(number);
  world().changed.notify_all();
}

std::vector<std::span<const std::byte>> touched_by(const ncclComm* comm, const Call& call) {
  return {{static_cast<const std::byte*>(call.from), bytes_from(comm, call)},
          {static_cast<const std::byte*>(call.to), bytes_to(comm, call)}};
}

void launch(ncclComm* comm, const Call& call) {
  uint64_t number = 0, ticket = 0;
  {
    const std::lock_guard lock(world().mutex);
    Slots& slots = world().slots[comm->context->ordinal];
    number = comm->launched++;
    ticket = slots.next_ticket++;
    slots.tickets.insert(ticket);
    comm->touched[number] = touched_by(comm, call);
  }
  count("collectives", comm->context->ordinal);
  const Place from = place_of(comm, call.from, bytes_from(comm, call)),
              to = place_of(comm, call.to, bytes_to(comm, call));
  if (from.symmetric && to.symmetric) {
    count("symmetric_collectives", comm->context->ordinal);
    if (has_symmetric_kernel(call)) count("symmetric_sums", comm->context->ordinal);
  }
  if (from.number != 0 && to.number != 0) count("registered_collectives", comm->context->ordinal);
  hold_device_bytes(call.from);
  hold_device_bytes(call.to);
  enqueue(call.stream, [comm, call, number, ticket] {
    perform(comm, call, number, ticket);
    let_go_of_device_bytes(call.from);
    let_go_of_device_bytes(call.to);
  });
}

// What other ranks must join, all at once: one thread may have several communicators in a group.
ncclResult_t run_jobs(const std::vector<Operation>& operations) {
  const auto results = std::make_shared<std::vector<ncclResult_t>>();
  size_t jobs = 0;
  for (const Operation& operation : operations) {
    if (!operation.job) continue;
    ++jobs;
    run_in_background([job = operation.job, results] {
      const ncclResult_t result = job();
      const std::lock_guard lock(world().mutex);
      results->push_back(result);
      world().changed.notify_all();
    });
  }
  std::unique_lock lock(world().mutex);
  world().changed.wait(lock, [&] { return results->size() == jobs; });
  for (const ncclResult_t result : *results)
    if (result != ncclSuccess) return result;
  return ncclSuccess;
}

ncclResult_t run(const std::vector<Operation>& operations,
                 const std::vector<ncclComm*>& communicators) {
  ncclResult_t result = run_jobs(operations);
  for (const Operation& operation : operations)
    if (result == ncclSuccess && operation.call) result = check_device(operation.comm);
  std::set<const ncclComm*> launched;
  for (const Operation& operation : operations) {
    if (result != ncclSuccess || !operation.call) continue;
    launch(operation.comm, *operation.call);
    launched.insert(operation.comm);
  }
  for (const ncclComm* comm : launched) count("collective_launches", comm->context->ordinal);
  const std::lock_guard lock(world().mutex);
  for (ncclComm* comm : communicators) {
    if (comm->state == ncclInProgress || comm->state == ncclSuccess) comm->state = result;
    --comm->jobs;
  }
  world().changed.notify_all();
  return result;
}

}  // namespace

ncclResult_t note_in_group(ncclResult_t result) {
  if (depth > 0 && result != ncclSuccess && result != ncclInProgress) failed = result;
  return result;
}

ncclResult_t submit(Operation operation) {
  grouped.push_back(std::move(operation));
  if (depth > 0) return ncclSuccess;
  ++depth;
  return end_group();
}

void begin_group() { ++depth; }

// src/group.cc, groupLaunch(): "Connect channels at runtime if cumem is supported", for which a
// communicator's first collective waits for all ranks before it is launched. And: "Blocking and
// nonblocking communicators are not allowed in the same group."
ncclResult_t end_group() {
  if (depth == 0) return fail(nullptr, ncclInvalidUsage, "ncclGroupEnd: not in a group call");
  if (--depth > 0) return ncclSuccess;
  std::vector<Operation> operations = std::move(grouped);
  grouped.clear();
  if (const ncclResult_t result = std::exchange(failed, ncclSuccess); result != ncclSuccess) {
    const std::lock_guard lock(world().mutex);
    for (const Operation& operation : operations)
      if (!operation.comm->blocking) operation.comm->state = result;
    return result;
  }
  if (operations.empty()) return ncclSuccess;
  std::vector<ncclComm*> communicators;
  bool has_jobs = false, blocking = operations[0].comm->blocking;
  for (const Operation& operation : operations) {
    if (operation.comm->blocking != blocking)
      return fail(nullptr, ncclInvalidArgument,
                  "Blocking and nonblocking communicators are not allowed in the same group.");
    has_jobs |= operation.job != nullptr;
    if (std::find(communicators.begin(), communicators.end(), operation.comm) ==
        communicators.end())
      communicators.push_back(operation.comm);
  }
  for (ncclComm* comm : communicators) {
    const bool launches = std::any_of(operations.begin(), operations.end(), [&](const auto& each) {
      return each.comm == comm && each.call;
    });
    if (!launches || !must_prepare_launch(comm)) continue;
    has_jobs = true;
    operations.push_back({comm, [comm] { return prepare_launch(comm); }, {}});
  }
  const bool in_progress =
      !blocking && (has_jobs || random_below(100) < setting("in_progress_percent", 100));
  {
    const std::lock_guard lock(world().mutex);
    for (ncclComm* comm : communicators) {
      ++comm->jobs;
      if (in_progress) comm->state = ncclInProgress;
      comm->unsettled = in_progress;
    }
  }
  if (!in_progress) return run(operations, communicators);
  run_in_background([operations = std::move(operations), communicators] {
    pass_time(random_below(setting("delay_us", 100) + 1));
    run(operations, communicators);
  });
  return ncclInProgress;
}

}  // namespace hvd
