#include "tests/collectives/nccl/standin/nccl_memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>

#include "tests/collectives/nccl/standin/cuda_memory.h"
#include "tests/collectives/nccl/standin/state.h"

namespace hvd {
namespace {

struct Registration {
  const ncclComm* comm = nullptr;
  uintptr_t begin = 0;
  size_t bytes = 0;
  bool symmetric = false;
  uint64_t number = 0;
  int references = 1;
};

struct Memory {
  std::mutex mutex;
  std::map<const ncclComm*, uint64_t> made;
  std::map<uintptr_t, size_t> allocations;
  std::map<const void*, Registration> registrations;
  std::deque<std::byte> names;  // whose addresses registrations are called by, each once
};

Memory& memory() {
  static Memory& only = *new Memory;
  return only;
}

uintptr_t address_of(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

bool registers_nothing() {
  const char* variable = std::getenv("NCCL_LOCAL_REGISTER");
  return setting("registers_nothing", 0) != 0 ||
         (variable != nullptr && std::string(variable) == "0");
}

}  // namespace

std::string registrations_of(const ncclComm* comm) {
  const std::lock_guard lock(memory().mutex);
  const auto number = std::count_if(memory().registrations.begin(), memory().registrations.end(),
                                    [&](const auto& each) { return each.second.comm == comm; });
  return number == 0 ? "" : std::to_string(number) + " windows or registrations";
}

void forget_registrations_of(const ncclComm* comm) {
  const std::lock_guard lock(memory().mutex);
  std::erase_if(memory().registrations, [&](const auto& each) { return each.second.comm == comm; });
}

bool is_in_use(const ncclComm* comm, const void* name) {
  uintptr_t begin = 0, end = 0;
  {
    const std::lock_guard lock(memory().mutex);
    const auto found = memory().registrations.find(name);
    if (found == memory().registrations.end() || found->second.references > 1) return false;
    begin = found->second.begin;
    end = begin + found->second.bytes;
  }
  const std::lock_guard lock(world().mutex);
  for (const auto& [number, buffers] : comm->touched)
    for (const auto& buffer : buffers)
      if (address_of(buffer.data()) < end && begin < address_of(buffer.data()) + buffer.size())
        return true;
  return false;
}

long long offset_in_memory(const void* pointer, size_t bytes) {
  const std::lock_guard lock(memory().mutex);
  auto next = memory().allocations.upper_bound(address_of(pointer));
  if (next == memory().allocations.begin()) return -1;
  --next;
  const uintptr_t offset = address_of(pointer) - next->first;
  return offset + bytes <= next->second ? static_cast<long long>(offset) : -1;
}

void* add_registration(const ncclComm* comm, const void* pointer, size_t bytes, bool symmetric) {
  const std::lock_guard lock(memory().mutex);
  for (auto& [name, each] : memory().registrations)
    if (each.comm == comm && each.begin == address_of(pointer) && each.bytes == bytes &&
        !each.symmetric && !symmetric) {
      ++each.references;
      return const_cast<void*>(name);
    }
  std::byte* name = &memory().names.emplace_back();
  memory().registrations[name] = {.comm = comm,
                                  .begin = address_of(pointer),
                                  .bytes = bytes,
                                  .symmetric = symmetric,
                                  .number = ++memory().made[comm]};
  return name;
}

Place find_registration(const ncclComm* comm, const void* pointer, size_t bytes) {
  const uintptr_t begin = address_of(pointer);
  const std::lock_guard lock(memory().mutex);
  for (const auto& [name, each] : memory().registrations)
    if (each.comm == comm && each.begin <= begin && begin + bytes <= each.begin + each.bytes)
      return {each.number, each.symmetric ? begin - each.begin : 0, each.symmetric};
  return {};
}

bool remove_registration(const ncclComm* comm, const void* name) {
  const std::lock_guard lock(memory().mutex);
  const auto found = memory().registrations.find(name);
  if (found == memory().registrations.end() || found->second.comm != comm) return false;
  if (--found->second.references == 0) memory().registrations.erase(found);
  return true;
}

}  // namespace hvd

using namespace hvd;

// src/allocator.cc: ALIGN_SIZE() to what the driver recommends as granularity.
ncclResult_t ncclMemAlloc(void** made, size_t bytes) {
  if (const ncclResult_t result = injected("ncclMemAlloc", -1); result != ncclSuccess)
    return fail(nullptr, result, "ncclMemAlloc fails as it was told to");
  if (made == nullptr || bytes == 0) return fail(nullptr, ncclInvalidArgument, "ncclMemAlloc of 0");
  CUdeviceptr pointer = 0;
  const auto piece = static_cast<size_t>(setting("granularity", 1));
  const CUresult result =
      take_device_bytes(&pointer, bytes, (bytes + piece - 1) / piece * piece, "ncclMemAlloc");
  if (result != CUDA_SUCCESS) return fail(nullptr, result);
  *made = reinterpret_cast<void*>(pointer);
  const std::lock_guard lock(memory().mutex);
  memory().allocations[static_cast<uintptr_t>(pointer)] = bytes;
  return ncclSuccess;
}

// NCCL user guide, "User Buffer Registration": deregistered first. src/allocator.cc: the memory is
// unmapped at once, whatever is still to touch it.
ncclResult_t ncclMemFree(void* pointer) {
  if (frees_too_late("ncclMemFree")) return fail(nullptr, CUDA_ERROR_DEINITIALIZED);
  if (pointer == nullptr) return ncclSuccess;
  CUcontext context = nullptr;
  const CUresult failure = enter_current(context, "ncclMemFree");
  std::string broken;
  {
    const std::lock_guard lock(memory().mutex);
    const auto found = memory().allocations.find(address_of(pointer));
    if (found == memory().allocations.end()) {
      broken = "ncclMemFree of what ncclMemAlloc did not give, or was freed before";
    } else {
      const uintptr_t begin = found->first, end = begin + found->second;
      for (const auto& [name, each] : memory().registrations)
        if (each.begin < end && begin < each.begin + each.bytes)
          broken = "ncclMemFree of memory that a communicator has registered";
    }
  }
  if (broken.empty() && failure != CUDA_SUCCESS) return fail(nullptr, failure);
  if (broken.empty() && device_bytes_held(pointer))
    broken = "ncclMemFree of memory that work under way is to touch";
  if (!broken.empty()) {
    violate(broken);
    return fail(nullptr, ncclInvalidArgument, broken);
  }
  {
    const std::lock_guard lock(memory().mutex);
    memory().allocations.erase(address_of(pointer));
  }
  const CUresult result = free_device_bytes(reinterpret_cast<CUdeviceptr>(pointer));
  return result == CUDA_SUCCESS
             ? ncclSuccess
             : fail(nullptr, ncclUnhandledCudaError, "Cuda failure when memory was freed");
}

// src/register/register.cc: what goes wrong is told by the call alone; with NCCL_LOCAL_REGISTER=0
// there is nothing, without an error.
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* pointer, size_t bytes, void** made) {
  const Visit visit(comm, "ncclCommRegister");
  if (visit.result != ncclSuccess) return visit.result;
  if (const ncclResult_t result = check_device(comm); result != ncclSuccess) return result;
  if (registers_nothing()) {
    *made = nullptr;
    return ncclSuccess;
  }
  if (made == nullptr || find_device_bytes(pointer, bytes).context != comm->context)
    return fail(comm, ncclInvalidArgument, "ncclCommRegister of no memory of the device");
  if (setting("registration_fails", 0) != 0 && is_fault_rank(comm->rank))
    return fail(comm, ncclSystemError, "ncclCommRegister fails as it was told to");
  *made = add_registration(comm, pointer, bytes, false);
  return ncclSuccess;
}

// src/register/register.cc, commDeregister(): "Deregister: Could not find handle"; regCleanup():
// what others' kernels reach it by is unmapped at once.
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* name) {
  const Visit visit(comm, "ncclCommDeregister");
  if (visit.result != ncclSuccess) return visit.result;
  if (name == nullptr) return ncclSuccess;
  if (const ncclResult_t result = check_device(comm); result != ncclSuccess) return result;
  if (is_in_use(comm, name)) {
    violate("ncclCommDeregister of memory that a collective under way touches");
    return fail(comm, ncclInvalidArgument, "ncclCommDeregister under a collective");
  }
  if (remove_registration(comm, name)) return ncclSuccess;
  violate("ncclCommDeregister of what the communicator has not registered");
  return fail(comm, ncclInvalidUsage, "Deregister: Could not find handle");
}
