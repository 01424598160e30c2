#include "tests/collectives/nccl/standin/nccl_communicator.h"

#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <utility>

#include "tests/collectives/nccl/standin/state.h"

namespace hvd {
namespace {

std::string text_of(const ncclComm* comm) {
  return "rank " + std::to_string(comm->rank) + " of " + std::to_string(comm->ranks);
}

// Each rule's text, empty where it is kept. With the world's mutex held.
//
// NCCL user guide, "Thread Safety": "it is not allowed to issue NCCL operations to a single
// communicator in parallel with multiple threads". "Fault Tolerance": applications that abort make
// sure that no thread is in a call of the communicator.
// NCCL's src/init.cc, ncclCommEnsureReady(): "Attempt to use communicator before the previous
// operation returned ncclSuccess".
std::string broken_rule(const ncclComm* comm, const std::string& call, bool even_unsettled) {
  if (!world().communicators.contains(comm)) return call + " of a communicator that was never made";
  const std::string of = " of " + text_of(comm);
  if (comm->aborted) return call + of + " after ncclCommAbort, or beside it";
  if (comm->destroyed) return call + of + " after ncclCommDestroy";
  if (comm->caller != std::thread::id() && comm->caller != std::this_thread::get_id())
    return call + of + " beside a call of another thread";
  if (comm->unsettled && !even_unsettled)
    return call + of + " before ncclCommGetAsyncError told that the last call has ended";
  return "";
}

// Where two ranks must not share a device: src/misc/utils.cc, getHostHash(), once in a process, and
// the bus id. NCCL_MULTI_RANK_GPU_ENABLE: since 2.30.3.
std::string place_of(const ncclComm* comm) {
  static const std::string& host = *new std::string([] {
    if (const char* id = std::getenv("NCCL_HOSTID")) return std::string(id);
    char name[HOST_NAME_MAX + 1] = {};
    ::gethostname(name, sizeof name - 1);
    return std::string(name);
  }());
  const char* shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  const bool may_share = setting("nccl_version", NCCL_VERSION_CODE) >= 23003 && shared != nullptr &&
                         std::string(shared) == "1";
  return host + (may_share ? "/" + std::to_string(comm->rank) : "") + " " + comm->context->pci;
}

void wake_waiters(const std::string&) {
  const std::lock_guard lock(world().mutex);
  world().changed.notify_all();
}
const bool listens [[maybe_unused]] = (listen_to_changes(wake_waiters), true);

bool hangs_in_launch(const ncclComm* comm) {
  const long long from = setting("launch_hangs", 0);
  return from > 0 && is_fault_rank(comm->rank) && comm->launched + 1 >= static_cast<uint64_t>(from);
}

ncclResult_t lose(ncclComm* comm) {
  if (setting("peer_death_error", 0) == 0) wait_until_aborted(comm);
  return fail(comm, ncclRemoteError, "a rank of the communicator of " + text_of(comm) + " is gone");
}

}  // namespace

World& world() {
  static World& only = *new World;
  return only;
}

bool is_fault_rank(int rank) {
  const long long chosen = setting("fault_rank", -1);
  return chosen < 0 || chosen == rank;
}

void wait_until_aborted(const ncclComm* comm) {
  std::unique_lock lock(world().mutex);
  world().changed.wait(lock, [&] { return comm->aborted; });
}

ncclResult_t injected(const char* call, int rank) {
  static std::mutex mutex;
  static std::string& known = *new std::string;
  static long long calls = 0;
  const std::string fault = setting("fail_call");
  const std::string name = fault.substr(0, fault.find(':'));
  const std::lock_guard lock(mutex);
  if (std::exchange(known, fault) != fault) calls = 0;
  if (name != call || !is_fault_rank(rank)) return ncclSuccess;
  const std::string numbers = fault.substr(name.size() + 1);
  if (++calls != std::stoll(numbers)) return ncclSuccess;
  return static_cast<ncclResult_t>(std::stoi(numbers.substr(numbers.find(':') + 1)));
}

Visit::Visit(ncclComm* comm, const char* call, bool even_unsettled) {
  if (comm == nullptr) {
    result = fail(nullptr, ncclInvalidArgument, std::string(call) + " of no communicator");
    return;
  }
  std::string broken;
  {
    const std::lock_guard lock(world().mutex);
    broken = broken_rule(comm, call, even_unsettled);
    if (broken.empty() && comm->caller == std::thread::id()) {
      comm->caller = std::this_thread::get_id();
      comm_ = comm;
    }
  }
  if (!broken.empty()) {
    violate(broken);
    result = fail(nullptr, ncclInvalidArgument, broken);
    return;
  }
  enter(comm->context, call);
  result = injected(call, comm->rank);
  if (result != ncclSuccess) fail(comm, result, std::string(call) + " fails as it was told to");
  if (even_unsettled) return;
  const std::lock_guard lock(world().mutex);
  if (result != ncclSuccess && !comm->blocking) comm->state = result;
  if (result == ncclSuccess) result = comm->state;
}

Visit::~Visit() {
  if (comm_ == nullptr) return;
  const std::lock_guard lock(world().mutex);
  comm_->caller = {};
}

ncclResult_t fail(ncclComm* comm, ncclResult_t result, const std::string& text) {
  const std::lock_guard lock(world().mutex);
  world().error = text;
  if (comm != nullptr) comm->error = text;
  return result;
}

ncclResult_t fail(ncclComm* comm, CUresult failure) {
  const char* text = nullptr;
  cuGetErrorString(failure, &text);
  return fail(comm, ncclUnhandledCudaError,
              std::string("Cuda failure '") + (text == nullptr ? "?" : text) + "'");
}

ncclResult_t check_device(ncclComm* comm) {
  const CUresult failure = failure_of(comm->context);
  return failure == CUDA_SUCCESS ? ncclSuccess : fail(comm, failure);
}

ncclResult_t connect(ncclComm* comm) {
  if (const ncclResult_t result = check_device(comm); result != ncclSuccess) return result;
  if (is_fault_rank(comm->rank)) {
    const auto result = static_cast<ncclResult_t>(setting("init_result_nccl", 0));
    if (result != ncclSuccess)
      return fail(comm, result, "making a communicator fails as it was told to");
    if (setting("init_hangs", 0) != 0) {
      wait_until_aborted(comm);
      return ncclInternalError;
    }
  }
  const std::shared_ptr<Connection> control = Connection::open(comm->hub),
                                    data = Connection::open(comm->hub);
  const bool is_rooted = comm->root == comm->hub || Connection::open(comm->root) != nullptr;
  if (control == nullptr || data == nullptr || !is_rooted)
    return fail(comm, ncclSystemError, "the process that made the unique id does not answer");
  {
    const std::lock_guard lock(world().mutex);
    if (comm->aborted) return ncclInternalError;
    comm->control = control;
    comm->data = data;
  }
  Frame hello, reply;
  hello.header.kind = Message::kHello;
  hello.header.rank = comm->rank;
  hello.header.ranks = comm->ranks;
  hello.header.group = comm->group;
  hello.header.count = comm->ids_hash;
  if (!data->send(hello)) return lose(comm);
  hello.header.channel = 1;
  const std::string place = place_of(comm);
  const auto* bytes = reinterpret_cast<const std::byte*>(place.data());
  hello.body.assign(bytes, bytes + place.size());
  return ask(comm, hello, reply);
}

ncclResult_t ask(ncclComm* comm, const Frame& question, Frame& reply) {
  std::shared_ptr<Connection> control;
  {
    const std::lock_guard lock(world().mutex);
    control = comm->control;
  }
  if (!control->send(question) || !control->receive(reply) ||
      reply.header.kind == Message::kPeerDied)
    return lose(comm);
  const auto result = static_cast<ncclResult_t>(reply.header.result);
  if (result == ncclSuccess) return ncclSuccess;
  return fail(comm, result,
              std::string(reinterpret_cast<const char*>(reply.body.data()), reply.body.size()));
}

bool must_prepare_launch(const ncclComm* comm) {
  const std::lock_guard lock(world().mutex);
  return hangs_in_launch(comm) ||
         (!comm->connected && setting("first_collective_connects", 0) != 0);
}

ncclResult_t prepare_launch(ncclComm* comm) {
  bool hangs = false;
  {
    const std::lock_guard lock(world().mutex);
    hangs = hangs_in_launch(comm);
  }
  if (hangs) {
    wait_until_aborted(comm);
    return ncclInternalError;
  }
  Frame question, reply;
  question.header.kind = Message::kConnect;
  const ncclResult_t result = ask(comm, question, reply);
  const std::lock_guard lock(world().mutex);
  comm->connected = result == ncclSuccess;
  return result;
}

ncclResult_t finalize(ncclComm* comm) {
  if (setting("finalize_hangs", 0) != 0 && is_fault_rank(comm->rank)) wait_until_aborted(comm);
  {
    std::unique_lock lock(world().mutex);
    world().changed.wait(lock, [&] {
      return comm->aborted || comm->performed == comm->launched ||
             failure_of(comm->context) != CUDA_SUCCESS;
    });
    if (comm->aborted) return ncclInternalError;
  }
  if (const ncclResult_t result = check_device(comm); result != ncclSuccess) return result;
  Frame question, reply;
  question.header.kind = Message::kFinalize;
  const ncclResult_t result = ask(comm, question, reply);
  const std::lock_guard lock(world().mutex);
  comm->finalized = result == ncclSuccess;
  return result;
}

// What was launched is waited for, behind what is before it in its stream (src/init.cc,
// commDestroySync), as long as the device lives; its errors are none of the abort's (commReclaim).
//
// A child that is being made ends with its parent (src/init.cc, childAbortFlag): nobody else knows
// of it yet.
void abort(ncclComm* comm) {
  std::unique_lock lock(world().mutex);
  for (ncclComm* ended = comm; ended != nullptr; ended = ended->child) {
    ended->aborted = true;
    if (ended->control != nullptr) ended->control->close();
    if (ended->data != nullptr) ended->data->close();
  }
  world().changed.notify_all();
  if (setting("abort_hangs", 0) != 0 && is_fault_rank(comm->rank))
    world().changed.wait(lock, [] { return false; });
  world().changed.wait(lock, [&] {
    return comm->jobs == 0 &&
           (comm->performed == comm->launched || failure_of(comm->context) != CUDA_SUCCESS);
  });
  comm->control = comm->data = nullptr;
}

}  // namespace hvd
