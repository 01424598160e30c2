// NCCL's calls that make, divide, watch and end communicators, and its groups.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "tests/collectives/nccl/standin/nccl_group.h"
#include "tests/collectives/nccl/standin/nccl_hub.h"
#include "tests/collectives/nccl/standin/nccl_memory.h"
#include "tests/collectives/nccl/standin/state.h"

#pragma GCC visibility push(default)
#include "tests/collectives/nccl/standin.h"
#pragma GCC visibility pop

using namespace hvd;

namespace {

// In a unique id: where the hub is, and which communicator.
struct Id {
  char hub[NCCL_UNIQUE_ID_BYTES - sizeof(uint64_t)] = {};
  uint64_t group = 0;
};
static_assert(sizeof(Id) == sizeof(ncclUniqueId));

// Unique ids come through the authenticated Store only (NCCL user guide, NCCL_COMM_ID: it names an
// address that every rank trusts).
void check_environment() {
  if (std::getenv("NCCL_COMM_ID") != nullptr)
    violate("NCCL_COMM_ID is set, so that unique ids are taken from an address");
}

// src/misc/param.cc: what its file names is set where it is not yet.
void read_configuration() {
  static const bool once [[maybe_unused]] = [] {
    const std::string line = setting("conf");
    if (const size_t equals = line.find('='); equals != std::string::npos)
      setenv(line.substr(0, equals).c_str(), line.c_str() + equals + 1, 0);
    return true;
  }();
}

// src/init.cc, envConfigOverride(): the environment wins.
bool is_blocking(const ncclConfig_t* config) {
  const char* variable = std::getenv("NCCL_COMM_BLOCKING");
  const std::string value = variable == nullptr ? "" : variable;
  if (value == "0" || value == "1") return value == "1";
  return config == nullptr || config->blocking != 0;
}

ncclComm* add_communicator(const ncclConfig_t* config) {
  auto* comm = new ncclComm;
  comm->context = current_context();
  comm->blocking = is_blocking(config);
  const std::lock_guard lock(world().mutex);
  world().communicators.insert(comm);
  return comm;
}

Id read_id(const ncclUniqueId& from) {
  Id id;
  std::memcpy(static_cast<void*>(&id), &from, sizeof id);
  return id;
}

// src/bootstrap.cc, rootIdFromRank(): whose root a rank meets first.
int root_of(int rank, int ranks, int roots) {
  const int rest = ranks % roots, each = ranks / roots, larger = rest * (each + 1);
  return rank < larger ? rank / (each + 1) : (rank - larger) / each + rest;
}

ncclResult_t check_config(const ncclConfig_t* config) {
  if (config == nullptr || config->magic == 0xcafebeef) return ncclSuccess;
  return fail(nullptr, ncclInvalidArgument,
              "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
}

ncclResult_t split(ncclComm* comm, int color, int key, ncclComm_t* made, ncclComm* child) {
  Frame question, reply;
  question.header.kind = Message::kSplit;
  question.header.color = color;
  question.header.key = key;
  const ncclResult_t result = ask(comm, question, reply);
  if (result != ncclSuccess || child == nullptr) return result;
  child->rank = reply.header.rank;
  child->ranks = reply.header.ranks;
  child->group = reply.header.group;
  const ncclResult_t connected = connect(child);
  const std::lock_guard lock(world().mutex);
  comm->child = nullptr;
  if (connected == ncclSuccess) *made = child;
  return connected;
}

}  // namespace

namespace hvd {

ncclResult_t start_communicator(ncclComm_t* made, int ranks, int rank, const ncclUniqueId* ids,
                                int id_count, const ncclConfig_t* config) {
  check_environment();
  read_configuration();
  if (made == nullptr || ranks < 1 || rank < 0 || rank >= ranks || id_count < 1 || id_count > ranks)
    return fail(nullptr, ncclInvalidArgument, "invalid rank or number of ranks or of unique ids");
  if (const ncclResult_t result = check_config(config); result != ncclSuccess) return result;
  CUcontext context = nullptr;
  if (const CUresult result = enter_current(context, "ncclCommInitRankConfig");
      result != CUDA_SUCCESS)
    return fail(nullptr, result);
  if (const ncclResult_t result = injected("ncclCommInitRankConfig", rank); result != ncclSuccess)
    return fail(nullptr, result, "making a communicator fails as it was told to");
  const Id id = read_id(ids[0]), own = read_id(ids[root_of(rank, ranks, id_count)]);
  ncclComm* comm = add_communicator(config);
  comm->rank = rank;
  comm->ranks = ranks;
  comm->hub = id.hub;
  comm->root = own.hub;
  comm->group = id.group;
  comm->ids_hash = std::hash<std::string>()(std::string(
      reinterpret_cast<const char*>(ids), static_cast<size_t>(id_count) * sizeof(ncclUniqueId)));
  *made = comm;
  count("communicators", comm->context->ordinal);
  count("unique_ids", comm->context->ordinal, id_count);
  const ncclResult_t result = submit({comm, [comm] { return connect(comm); }, {}});
  if (result != ncclSuccess && result != ncclInProgress) *made = nullptr;
  return result;
}

}  // namespace hvd

ncclResult_t ncclGetVersion(int* version) {
  *version = static_cast<int>(setting("nccl_version", NCCL_VERSION_CODE));
  return ncclSuccess;
}

// As NCCL 2.28's src/init.cc has them.
const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

// The communicator's, or the last of all; it stays until the thread asks again.
const char* ncclGetLastError(ncclComm_t comm) {
  thread_local std::string text;
  const std::lock_guard lock(world().mutex);
  const bool known = comm != nullptr && world().communicators.contains(comm);
  text = known && !comm->error.empty() ? comm->error : world().error;
  return text.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* made) {
  check_environment();
  if (const ncclResult_t result = injected("ncclGetUniqueId", -1); result != ncclSuccess)
    return fail(nullptr, result, "ncclGetUniqueId fails as it was told to");
  read_configuration();
  const std::string& hub = hub_name();
  Id id;
  if (hub.empty() || hub.size() >= sizeof id.hub)
    return fail(nullptr, ncclSystemError, "the unique id's socket cannot be made");
  std::copy(hub.begin(), hub.end(), id.hub);
  std::random_device random;
  id.group = static_cast<uint64_t>(random()) << 32 | random();
  std::memcpy(made, static_cast<const void*>(&id), sizeof id);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return note_in_group(start_communicator(made, ranks, rank, &id, 1, config));
}

// NCCL user guide, ncclCommSplit: all ranks of the parent call it, those that go nowhere with
// NCCL_SPLIT_NOCOLOR; "there should not be any outstanding NCCL operations on the comm". The new
// one is null until all of it is complete (src/init.cc, ncclCommInitChildComm).
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made,
                           ncclConfig_t* config) {
  const Visit visit(comm, "ncclCommSplit");
  if (visit.result != ncclSuccess) return note_in_group(visit.result);
  if (made == nullptr || (color < 0 && color != NCCL_SPLIT_NOCOLOR))
    return note_in_group(fail(comm, ncclInvalidArgument, "ncclCommSplit with a color below zero"));
  if (const ncclResult_t result = check_config(config); result != ncclSuccess)
    return note_in_group(result);
  bool outstanding = false;
  {
    const std::lock_guard lock(world().mutex);
    outstanding = comm->launched != comm->performed;
  }
  if (outstanding) violate("ncclCommSplit of a communicator with collectives under way");
  *made = nullptr;
  ncclComm* child = nullptr;
  if (color != NCCL_SPLIT_NOCOLOR) {
    child = add_communicator(config);
    child->context = comm->context;
    child->hub = child->root = comm->hub;
    if (config == nullptr) child->blocking = comm->blocking;
    const std::lock_guard lock(world().mutex);
    comm->child = child;
  }
  return submit({comm, [=] { return split(comm, color, key, made, child); }, {}});
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const Visit visit(comm, "ncclCommGetAsyncError", true);
  if (visit.result != ncclSuccess) return visit.result;
  bool died = false;
  {
    const std::lock_guard lock(world().mutex);
    died = (comm->state == ncclSuccess || comm->state == ncclInProgress) && !comm->finalized &&
           comm->control != nullptr && comm->control->look() == Message::kPeerDied &&
           setting("peer_death_error", 0) != 0;
    if (died) comm->state = ncclRemoteError;
    *state = comm->state;
    if (comm->state != ncclInProgress) comm->unsettled = false;
  }
  if (died) fail(comm, ncclRemoteError, "a rank of the communicator is gone");
  if (*state != ncclSuccess && *state != ncclInProgress)
    count("errors_told", comm->context->ordinal);
  return ncclSuccess;
}

// Waits for what is under way, and for all ranks.
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const Visit visit(comm, "ncclCommFinalize");
  if (visit.result != ncclSuccess) return note_in_group(visit.result);
  return submit({comm, [comm] { return finalize(comm); }, {}});
}

// NCCL's docs/examples/04_user_buffer_registration: buffers are deregistered, then the communicator
// is destroyed, then they are freed. src/init.cc, commReclaim(): what was not finalized is now.
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  const Visit visit(comm, "ncclCommDestroy");
  if (visit.result != ncclSuccess) return visit.result;
  if (const std::string left = registrations_of(comm); !left.empty())
    violate("ncclCommDestroy of a communicator with " + left);
  bool finalized = false;
  {
    const std::lock_guard lock(world().mutex);
    finalized = comm->finalized;
  }
  if (!finalized) {
    count("host_waits", comm->context->ordinal);
    finalize(comm);
  }
  const std::lock_guard lock(world().mutex);
  comm->destroyed = true;
  comm->control = comm->data = nullptr;
  return ncclSuccess;
}

// Comes beside whatever is under way on NCCL's own threads and the device, and beside no call (NCCL
// user guide, "Fault Tolerance": other threads have left the communicator before). The communicator
// is freed (src/init.cc, commFree()): once more is a use after that. NCCL goes back to the CUDA
// runtime's device of the thread (src/group.cc), which is 0 where none is current: that makes a
// context there.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  std::string broken;
  {
    const std::lock_guard lock(world().mutex);
    if (!world().communicators.contains(comm) || comm->destroyed || comm->aborted)
      broken = "ncclCommAbort of a communicator that was never made, or is gone";
    else if (comm->caller != std::thread::id())
      broken = "ncclCommAbort beside a call of another thread";
  }
  if (broken.empty() && current_context() == nullptr)
    broken = "ncclCommAbort by a thread without a current device, which makes a context on GPU 0";
  if (!broken.empty()) {
    violate(broken);
    return fail(nullptr, ncclInvalidArgument, broken);
  }
  count("aborts", comm->context->ordinal);
  enter(comm->context, "ncclCommAbort");
  hvd::abort(comm);
  forget_registrations_of(comm);
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  begin_group();
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() { return end_group(); }

int hvd_standin_waiting(int device) {
  const std::lock_guard lock(world().mutex);
  return world().slots[device].waiting;
}
