#include "tests/collectives/nccl/standin/cuda_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "tests/collectives/nccl/standin/cuda_stream.h"

#pragma GCC visibility push(default)
#include "tests/collectives/nccl/standin.h"
#pragma GCC visibility pop

namespace hvd {
namespace {

constexpr size_t kCanary = 64;
constexpr auto kCanaryByte = std::byte{0xc5}, kFreshByte = std::byte{0xfb};

// The device's address is a range that no access is allowed to; the bytes lie elsewhere. The range
// stays when the memory is freed, so that no other allocation is taken for it.
struct Allocation {
  CUcontext context = nullptr;
  size_t bytes = 0, room = 0;
  std::unique_ptr<std::byte[]> host;  // null: freed
  int held = 0;
};

struct Memory {
  std::mutex mutex;
  std::map<uintptr_t, Allocation> allocations;
  std::map<CUcontext, size_t> used, taken;  // bytes that are not freed; room that is not free
};

Memory& memory() {
  static Memory& only = *new Memory;
  return only;
}

// Of the allocation that holds the byte, with the mutex held; null: none.
std::pair<const uintptr_t, Allocation>* owner_of(uintptr_t address) {
  auto next = memory().allocations.upper_bound(address);
  if (next == memory().allocations.begin()) return nullptr;
  auto& found = *--next;
  return address - found.first < std::max<size_t>(found.second.bytes, 1) ? &found : nullptr;
}

size_t total_bytes() { return static_cast<size_t>(setting("device_bytes", 8LL << 30)); }

// A pointer of a copy: the device's or the host's. False: of memory that was freed, or beyond its
// end.
bool is_usable(uintptr_t address, size_t bytes) {
  const std::lock_guard lock(memory().mutex);
  const auto* found = owner_of(address);
  if (found == nullptr) return true;  // the host's
  return found->second.host != nullptr && found->second.bytes - (address - found->first) >= bytes;
}

const char* kind_of_copy(bool from_device, bool to_device) {
  if (from_device && to_device) return "within";
  if (from_device) return "out";
  return to_device ? "in" : "on_host";
}

const void* pointer_of(CUdeviceptr address) { return reinterpret_cast<const void*>(address); }

// Of a copy: the device's are held for it.
std::byte* bytes_at(const void* pointer, size_t bytes, bool on_device) {
  return on_device ? find_device_bytes(pointer, bytes).host
                   : static_cast<std::byte*>(const_cast<void*>(pointer));
}

}  // namespace

DeviceBytes find_device_bytes(const void* pointer, size_t bytes) {
  const std::lock_guard lock(memory().mutex);
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  auto* found = owner_of(address);
  if (found == nullptr || found->second.host == nullptr) return {};
  const size_t offset = address - found->first;
  if (found->second.bytes - offset < bytes) return {};
  return {found->second.host.get() + offset, found->second.context};
}

void hold_device_bytes(const void* pointer) {
  const std::lock_guard lock(memory().mutex);
  if (auto* found = owner_of(reinterpret_cast<uintptr_t>(pointer))) ++found->second.held;
}

void let_go_of_device_bytes(const void* pointer) {
  const std::lock_guard lock(memory().mutex);
  if (auto* found = owner_of(reinterpret_cast<uintptr_t>(pointer))) --found->second.held;
}

bool device_bytes_held(const void* pointer) {
  const std::lock_guard lock(memory().mutex);
  auto* found = owner_of(reinterpret_cast<uintptr_t>(pointer));
  return found != nullptr && found->second.held > 0;
}

// "…must have been returned by a previous call to one of the following memory allocation APIs"
// (CUDA Driver API, cuMemFree). What is written behind the end is what compute-sanitizer's memcheck
// finds.
CUresult free_device_bytes(CUdeviceptr pointer) {
  std::unique_ptr<std::byte[]> host;
  size_t bytes = 0;
  {
    const std::lock_guard lock(memory().mutex);
    const auto found = memory().allocations.find(static_cast<uintptr_t>(pointer));
    if (found != memory().allocations.end() && found->second.host != nullptr) {
      host = std::move(found->second.host);
      bytes = found->second.bytes;
      memory().used[found->second.context] -= bytes;
      memory().taken[found->second.context] -= found->second.room;
    }
  }
  if (host == nullptr) {
    violate("cuMemFree of what is no device memory, or was freed before");
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (std::any_of(host.get() + bytes, host.get() + bytes + kCanary,
                  [](std::byte b) { return b != kCanaryByte; }))
    violate("device memory was written behind the end of an allocation of " +
            std::to_string(bytes) + " bytes");
  return CUDA_SUCCESS;
}

void forget_memory_of(CUcontext context) {
  const std::lock_guard lock(memory().mutex);
  for (auto& [address, owned] : memory().allocations) {
    if (owned.context != context || owned.host == nullptr || owned.held > 0) continue;
    owned.host.reset();
    memory().taken[context] -= owned.room;
  }
}

// The driver has ended and freed all: CUDA_ERROR_DEINITIALIZED, or worse where it is being unloaded
// (CUDA C++ Programming Guide, "Initialization": calls "after main … undefined behavior").
bool frees_too_late(const char* call) {
  if (!process_ends()) return false;
  violate(std::string(call) + " while the process ends, after the driver");
  return true;
}

}  // namespace hvd

using namespace hvd;

void* hvd_standin_memory(const void* device_pointer) {
  return find_device_bytes(device_pointer, 0).host;
}

size_t hvd_standin_used(int device) {
  const std::lock_guard lock(memory().mutex);
  for (const auto& [context, bytes] : memory().used)
    if (context->ordinal == device) return bytes;
  return 0;
}

namespace hvd {

CUresult take_device_bytes(CUdeviceptr* pointer, size_t bytes, size_t room, const char* call) {
  CUcontext context = nullptr;
  if (const CUresult result = check_no_capture(); result != CUDA_SUCCESS) return result;
  if (const CUresult result = enter_current(context, call); result != CUDA_SUCCESS) return result;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const size_t total = total_bytes();
  const std::lock_guard lock(memory().mutex);
  size_t& taken = memory().taken[context];
  if (room > total || taken > total - room) return CUDA_ERROR_OUT_OF_MEMORY;
  void* range = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  Allocation made;
  made.context = context;
  made.bytes = bytes;
  made.room = room;
  made.host.reset(new std::byte[bytes + kCanary]);
  std::memset(made.host.get(), static_cast<int>(kFreshByte), bytes);
  std::memset(made.host.get() + bytes, static_cast<int>(kCanaryByte), kCanary);
  memory().used[context] += bytes;
  taken += room;
  *pointer = reinterpret_cast<CUdeviceptr>(range);
  memory().allocations[static_cast<uintptr_t>(*pointer)] = std::move(made);
  return CUDA_SUCCESS;
}

}  // namespace hvd

CUresult cuMemAlloc(CUdeviceptr* pointer, size_t bytes) {
  return take_device_bytes(pointer, bytes, bytes, "cuMemAlloc");
}

// Waits for the device's work first, as cuMemFree() does with memory of cuMemAlloc().
CUresult cuMemFree(CUdeviceptr pointer) {
  CUcontext context = nullptr;
  if (frees_too_late("cuMemFree")) return CUDA_ERROR_DEINITIALIZED;
  if (const CUresult result = check_no_capture(); result != CUDA_SUCCESS) return result;
  if (const CUresult result = enter_current(context, "cuMemFree"); result != CUDA_SUCCESS)
    return result;
  if (pointer == 0) return CUDA_SUCCESS;
  if (const CUcontext owner = find_device_bytes(pointer_of(pointer), 0).context) {
    count("host_waits", owner->ordinal);
    if (const CUresult result = synchronize(owner); result != CUDA_SUCCESS) return result;
  }
  return free_device_bytes(pointer);
}

// Pinned memory is the host's as any other: all copies are asynchronous here.
CUresult cuMemHostAlloc(void** made, size_t bytes, unsigned) {
  CUcontext context = nullptr;
  if (const CUresult result = enter_current(context, "cuMemHostAlloc"); result != CUDA_SUCCESS)
    return result;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  *made = std::malloc(bytes);
  return *made == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void* pointer) {
  CUcontext context = nullptr;
  if (const CUresult result = enter_current(context, "cuMemFreeHost"); result != CUDA_SUCCESS)
    return result;
  std::free(pointer);
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(size_t* available, size_t* total) {
  CUcontext context = nullptr;
  if (const CUresult result = enter_current(context, "cuMemGetInfo"); result != CUDA_SUCCESS)
    return result;
  *total = total_bytes();
  const std::lock_guard lock(memory().mutex);
  *available = *total - std::min(*total, memory().taken[context]);
  return CUDA_SUCCESS;
}

// From and to the host's memory, or the device's, as the addresses say. The host's is read and
// written when the copy is run, as with memory that is pinned.
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  if (const CUresult result = find_stream_for_work(stream, "cuMemcpyAsync"); result != CUDA_SUCCESS)
    return result;
  if (bytes == 0) return CUDA_SUCCESS;
  if (!is_usable(static_cast<uintptr_t>(to), bytes) ||
      !is_usable(static_cast<uintptr_t>(from), bytes))
    return CUDA_ERROR_INVALID_VALUE;
  const void *target = pointer_of(to), *source = pointer_of(from);
  const bool to_device = find_device_bytes(target, bytes).host != nullptr;
  const bool from_device = find_device_bytes(source, bytes).host != nullptr;
  const std::string kind = kind_of_copy(from_device, to_device);
  count("copies_" + kind, context_of(stream)->ordinal);
  count("bytes_" + kind, context_of(stream)->ordinal, static_cast<long long>(bytes));
  hold_device_bytes(target);
  hold_device_bytes(source);
  enqueue(stream, [=] {
    std::memmove(bytes_at(target, bytes, to_device), bytes_at(source, bytes, from_device), bytes);
    let_go_of_device_bytes(target);
    let_go_of_device_bytes(source);
  });
  return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
  if (const CUresult result = find_stream_for_work(stream, "cuMemsetD8Async");
      result != CUDA_SUCCESS)
    return result;
  if (bytes == 0) return CUDA_SUCCESS;
  const void* target = pointer_of(to);
  if (find_device_bytes(target, bytes).host == nullptr) return CUDA_ERROR_INVALID_VALUE;
  count("memsets", context_of(stream)->ordinal);
  hold_device_bytes(target);
  enqueue(stream, [=] {
    std::memset(bytes_at(target, bytes, true), value, bytes);
    let_go_of_device_bytes(target);
  });
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  CUcontext current = nullptr;
  if (const CUresult result = enter_current(current, "cuPointerGetAttribute");
      result != CUDA_SUCCESS)
    return result;
  const std::lock_guard lock(memory().mutex);
  const auto* found = owner_of(static_cast<uintptr_t>(pointer));
  if (found == nullptr || found->second.host == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Allocation& owner = found->second;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(value) = owner.context;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(value) = CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(value) = owner.context->ordinal;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(value) = static_cast<CUdeviceptr>(found->first);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<size_t*>(value) = owner.bytes;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}
