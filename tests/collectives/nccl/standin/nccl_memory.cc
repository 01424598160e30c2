#include "tests/collectives/nccl/standin/nccl_memory.h"

#include <algorithm>
#include <cstdint>
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

ncclResult_t ncclMemAlloc(void** made, size_t bytes) {
  if (const ncclResult_t result = injected("ncclMemAlloc", -1); result != ncclSuccess)
    return fail(nullptr, result, "ncclMemAlloc fails as it was told to");
  if (made == nullptr || bytes == 0) return fail(nullptr, ncclInvalidArgument, "ncclMemAlloc of 0");
  CUdeviceptr pointer = 0;
  const CUresult result = cuMemAlloc(&pointer, bytes);
  if (result != CUDA_SUCCESS) {
    const char* text = nullptr;
    cuGetErrorString(result, &text);
    return fail(nullptr, ncclUnhandledCudaError, std::string("Cuda failure '") + text + "'");
  }
  *made = reinterpret_cast<void*>(pointer);
  const std::lock_guard lock(memory().mutex);
  memory().allocations[static_cast<uintptr_t>(pointer)] = bytes;
  return ncclSuccess;
}

// NCCL user guide, "User Buffer Registration": deregistered first. src/allocator.cc: the memory is
// unmapped at once, whatever is still to touch it.
ncclResult_t ncclMemFree(void* pointer) {
  if (pointer == nullptr) return ncclSuccess;
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

// src/register/register.cc: what goes wrong is told by the call alone.
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* pointer, size_t bytes, void** made) {
  const Visit visit(comm, "ncclCommRegister");
  if (visit.result != ncclSuccess) return visit.result;
  if (made == nullptr || find_device_bytes(pointer, bytes).context != comm->context)
    return fail(comm, ncclInvalidArgument, "ncclCommRegister of no memory of the device");
  if (setting("registration_fails", 0) != 0 && is_fault_rank(comm->rank))
    return fail(comm, ncclSystemError, "ncclCommRegister fails as it was told to");
  *made = add_registration(comm, pointer, bytes, false);
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* name) {
  const Visit visit(comm, "ncclCommDeregister");
  if (visit.result != ncclSuccess) return visit.result;
  if (remove_registration(comm, name)) return ncclSuccess;
  violate("ncclCommDeregister of what the communicator has not registered");
  return fail(comm, ncclInvalidArgument, "ncclCommDeregister of nothing");
}
