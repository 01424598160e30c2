// NCCL's calls that older versions lack: many roots (2.23) and windows (2.27).
#include <string>

#include "tests/collectives/nccl/standin/nccl_group.h"
#include "tests/collectives/nccl/standin/nccl_memory.h"
#include "tests/collectives/nccl/standin/state.h"

using namespace hvd;

namespace {

ncclResult_t register_window(ncclComm* comm, const void* pointer, size_t bytes, ncclWindow_t* made,
                             int flags) {
  count("windows", comm->context->ordinal);
  if (setting("window_hangs", 0) != 0 && is_fault_rank(comm->rank)) {
    wait_until_aborted(comm);
    return ncclInternalError;
  }
  Frame question, reply;
  question.header.kind = Message::kWindow;
  question.header.count = bytes;
  question.header.flags = flags;
  question.header.offset = static_cast<uint64_t>(offset_in_memory(pointer, bytes));
  const ncclResult_t result = ask(comm, question, reply);
  if (result == ncclInvalidArgument)
    violate(std::string(reinterpret_cast<const char*>(reply.body.data()), reply.body.size()));
  if (result != ncclSuccess) return result;
  if (const ncclResult_t lost = check_device(comm); lost != ncclSuccess) return lost;
  if (const ncclResult_t told = injected("window", comm->rank); told != ncclSuccess)
    return fail(comm, told, "a window fails as it was told to");
  const bool symmetric = (flags & NCCL_WIN_COLL_SYMMETRIC) != 0;
  *made = static_cast<ncclWindow_t>(add_registration(comm, pointer, bytes, symmetric));
  return ncclSuccess;
}

// The memory's own registration, which 2.28 calls by the same handle, and 2.27 by one of its own.
ncclResult_t register_alone(const ncclComm* comm, const void* pointer, size_t bytes,
                            ncclWindow_t* made) {
  count("windows", comm->context->ordinal);
  *made = static_cast<ncclWindow_t>(add_registration(comm, pointer, bytes, false));
  return ncclSuccess;
}

long long version() { return setting("nccl_version", NCCL_VERSION_CODE); }

}  // namespace

// NCCL user guide, "Creating a communicator using multiple ncclUniqueIds": all ranks give the same
// ids in the same order. Here all meet at the first, once each has found the one that serves it.
ncclResult_t ncclCommInitRankScalable(ncclComm_t* made, int ranks, int rank, int id_count,
                                      ncclUniqueId* ids, ncclConfig_t* config) {
  return note_in_group(start_communicator(made, ranks, rank, ids, id_count, config));
}

// src/dev_runtime.cc: what is given, without an error, where the communicator has no symmetric
// memory depends on the version; the memory is one of ncclMemAlloc(), from an offset that is a
// multiple of 4096.
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* pointer, size_t bytes,
                                    ncclWindow_t* made, int flags) {
  const Visit visit(comm, "ncclCommWindowRegister");
  if (visit.result != ncclSuccess) return visit.result;
  if (made == nullptr || pointer == nullptr || bytes == 0)
    return fail(comm, ncclInvalidArgument, "invalid pointer or size of a window");
  *made = nullptr;
  const bool symmetric = setting("no_windows", 0) == 0;
  if (!symmetric && version() >= 22902) return ncclSuccess;
  const long long offset = offset_in_memory(pointer, bytes);
  if (offset < 0)
    return fail(comm, ncclInvalidArgument, "a window of memory that is not of ncclMemAlloc");
  if (offset % NCCL_WIN_REQUIRED_ALIGNMENT != 0)
    return fail(comm, ncclInvalidArgument, "Window address must be suitably aligned.");
  const ncclResult_t result =
      submit({comm,
              [=] {
                return symmetric ? register_window(comm, pointer, bytes, made, flags)
                                 : register_alone(comm, pointer, bytes, made);
              },
              {}});
  // The last call is in NCCLCHECK() since 2.28, which drops ncclInProgress (src/include/checks.h).
  return result == ncclInProgress && version() >= 22803 ? ncclSuccess : result;
}

// src/dev_runtime.cc, symWindowDestroy(): its memory is unmapped at once, on a stream that waits
// for none. src/allocator.cc, ncclShadowPoolToHost(): "Device object does not exist in shadow
// pool."
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  const Visit visit(comm, "ncclCommWindowDeregister");
  if (visit.result != ncclSuccess) return visit.result;
  if (window == nullptr) return ncclSuccess;
  if (const ncclResult_t result = check_device(comm); result != ncclSuccess) return result;
  if (is_in_use(comm, window)) {
    violate("ncclCommWindowDeregister of memory that a collective under way touches");
    return fail(comm, ncclInvalidArgument, "ncclCommWindowDeregister under a collective");
  }
  if (remove_registration(comm, window)) return ncclSuccess;
  violate("ncclCommWindowDeregister of what is no window of the communicator");
  return fail(comm, ncclInternalError, "Device object does not exist in shadow pool.");
}
