// NCCL's collectives and reduction operations, as they are called.
#include <cstring>
#include <string>

#include "tests/collectives/nccl/standin/cuda_memory.h"
#include "tests/collectives/nccl/standin/cuda_stream.h"
#include "tests/collectives/nccl/standin/nccl_group.h"
#include "tests/collectives/nccl/standin/nccl_reduce.h"

using namespace hvd;

namespace {

constexpr int kFirstOwnOp = ncclNumOps;

// Memory of the communicator's device, as src/misc/argcheck.cc asks with NCCL_CHECK_POINTERS.
bool is_on_device(const ncclComm* comm, const void* pointer, size_t bytes) {
  return bytes == 0 || find_device_bytes(pointer, bytes).context == comm->context;
}

// Puts kPreMulSum and the scalar in place of an operation that the communicator has made.
ncclResult_t resolve_op(ncclComm* comm, Call& call) {
  if (call.op >= 0 && call.op < kFirstOwnOp) return ncclSuccess;
  {
    const std::lock_guard lock(world().mutex);
    const auto found = comm->scalars.find(call.op);
    if (found != comm->scalars.end() && comm->scalar_types[call.op] == call.type) {
      call.scalar = found->second;
      call.op = kPreMulSum;
      return ncclSuccess;
    }
  }
  return fail(comm, ncclInvalidArgument,
              "an operation that the communicator does not have for this type");
}

// What src/misc/argcheck.cc does, and more.
ncclResult_t check(ncclComm* comm, const char* name, Call& call) {
  if (const ncclResult_t result = check_device(comm); result != ncclSuccess) return result;
  const size_t size = bytes_of(call.type);
  if (size == 0) return fail(comm, ncclInvalidArgument, std::string(name) + " of an unknown type");
  if (call.root < 0 || call.root >= comm->ranks)
    return fail(comm, ncclInvalidArgument, std::string(name) + " with a root that is no rank");
  if (const ncclResult_t result = resolve_op(comm, call); result != ncclSuccess) return result;
  const bool gathers = call.kind == Collective::kAllGather;
  const bool contributes = call.kind != Collective::kBroadcast || call.root == comm->rank;
  const size_t bytes = call.count * size;
  if ((contributes && !is_on_device(comm, call.from, bytes)) ||
      !is_on_device(comm, call.to, gathers ? bytes * static_cast<size_t>(comm->ranks) : bytes))
    return fail(comm, ncclInvalidArgument,
                std::string(name) + " with memory that is not the device's");
  if (find_stream(call.stream, name) != CUDA_SUCCESS || context_of(call.stream) != comm->context)
    return fail(comm, ncclUnhandledCudaError, "Cuda failure 'invalid resource handle'");
  return ncclSuccess;
}

// A non-blocking communicator whose call was refused tells that error from then on, and is good for
// an abort only (src/enqueue.cc, ncclEnqueueCheck).
ncclResult_t start_collective(ncclComm* comm, const char* name, Call call) {
  const Visit visit(comm, name);
  if (visit.result != ncclSuccess) return note_in_group(visit.result);
  const ncclResult_t result = check(comm, name, call);
  if (result == ncclSuccess) return submit({comm, {}, call});
  const std::lock_guard lock(world().mutex);
  if (!comm->blocking) comm->state = result;
  return note_in_group(result);
}

}  // namespace

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  Call call;
  call.from = from;
  call.to = to;
  call.count = count;
  call.type = type;
  call.op = op;
  call.stream = stream;
  return start_collective(comm, "ncclAllReduce", call);
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  Call call;
  call.kind = Collective::kBroadcast;
  call.from = from;
  call.to = to;
  call.count = count;
  call.type = type;
  call.root = root;
  call.stream = stream;
  return start_collective(comm, "ncclBroadcast", call);
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  Call call;
  call.kind = Collective::kAllGather;
  call.from = from;
  call.to = to;
  call.count = count;
  call.type = type;
  call.stream = stream;
  return start_collective(comm, "ncclAllGather", call);
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* made, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  const Visit visit(comm, "ncclRedOpCreatePreMulSum");
  if (visit.result != ncclSuccess) return visit.result;
  const size_t bytes = bytes_of(type);
  const void* from = scalar;
  if (residence == ncclScalarDevice) from = find_device_bytes(scalar, bytes).host;
  if (made == nullptr || from == nullptr || bytes == 0)
    return fail(comm, ncclInvalidArgument, "ncclRedOpCreatePreMulSum without a scalar");
  const std::lock_guard lock(world().mutex);
  const int op = comm->scalars.empty() ? kFirstOwnOp
                                       : std::max(kFirstOwnOp, comm->scalars.rbegin()->first + 1);
  std::memcpy(&comm->scalars[op], from, bytes);
  comm->scalar_types[op] = type;
  *made = static_cast<ncclRedOp_t>(op);
  return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  const Visit visit(comm, "ncclRedOpDestroy");
  if (visit.result != ncclSuccess) return visit.result;
  {
    const std::lock_guard lock(world().mutex);
    if (comm->scalars.erase(op) == 1) return ncclSuccess;
  }
  return fail(comm, ncclInvalidArgument,
              op < kFirstOwnOp ? "ncclRedOpDestroy of an operation that is NCCL's own"
                               : "ncclRedOpDestroy of an operation that is not there");
}
