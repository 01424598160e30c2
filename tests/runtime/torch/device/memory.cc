#include "tests/runtime/torch/device/memory.h"

#include <c10/core/Event.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "tests/collectives/nccl/device_ranks.h"
#include "tests/collectives/nccl/standin.h"
#include "tests/runtime/torch/device/streams.h"

namespace hvd {
namespace {

constexpr int kOverwritten = 0xee;
constexpr size_t kSmallest = 512;

struct Block {
  void* address = nullptr;
  size_t bytes = 0;
  c10::Stream stream;                    // that it was had in
  std::vector<c10::Stream> others = {};  // that use it, too
  std::vector<c10::Event> awaited = {};  // once freed: theirs
};

struct Memory {
  std::mutex mutex;
  std::map<std::tuple<c10::DeviceIndex, c10::StreamId, size_t>, std::vector<Block*>> free;
  std::vector<Block*> awaiting;  // freed, but others' streams use them still
};

Memory& memory() {
  static Memory& only = *new Memory;
  return only;
}

// With the mutex.
void make_free(Block* block) {
  launch(block->stream, {block->address}, [address = block->address, bytes = block->bytes] {
    std::memset(hvd_standin_memory(address), kOverwritten, bytes);
  });
  memory().free[{block->stream.device_index(), block->stream.id(), block->bytes}].push_back(block);
}

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  for (const c10::Stream& other : std::exchange(block->others, {})) {
    block->awaited.emplace_back(other.device_type());
    block->awaited.back().record(other);
  }
  const std::lock_guard lock(memory().mutex);
  if (block->awaited.empty()) return make_free(block);
  memory().awaiting.push_back(block);
}

// With the mutex.
void look_at_awaiting() {
  std::erase_if(memory().awaiting, [](Block* block) {
    if (!std::ranges::all_of(block->awaited, [](auto& event) { return event.query(); }))
      return false;
    block->awaited.clear();
    make_free(block);
    return true;
  });
}

void* allocate_new(c10::DeviceIndex ordinal, size_t bytes) {
  const CudaDevice::Current current(standin_device(ordinal));
  CUdeviceptr pointer = 0;
  const CUresult result = cuMemAlloc(&pointer, bytes);
  TORCH_CHECK_WITH(OutOfMemoryError, result == CUDA_SUCCESS, "device ", int(ordinal),
                   " has no room for ", bytes, " bytes");
  return reinterpret_cast<void*>(pointer);
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Stream stream =
        current_standin_stream(c10::Device(c10::DeviceType::PrivateUse1));  // of the current device
    if (bytes == 0) return {nullptr, stream.device()};
    const size_t rounded = std::bit_ceil(std::max(bytes, kSmallest));
    const std::lock_guard lock(memory().mutex);
    look_at_awaiting();
    auto& free = memory().free[{stream.device_index(), stream.id(), rounded}];
    Block* block = nullptr;
    if (free.empty()) {
      block = new Block{allocate_new(stream.device_index(), rounded), rounded, stream};
    } else {
      block = free.back();
      free.pop_back();
    }
    return {block->address, block, release, stream.device()};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    copy_within(current_standin_stream(c10::Device(c10::DeviceType::PrivateUse1)), to, from, bytes);
  }
};

DeviceAllocator allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator)

}  // namespace

void record_use(const c10::DataPtr& data, const c10::Stream& stream) {
  if (data.get_deleter() != release) return;
  auto* block = static_cast<Block*>(data.get_context());
  if (block == nullptr || stream == block->stream) return;
  const std::lock_guard lock(memory().mutex);
  if (std::ranges::find(block->others, stream) == block->others.end())
    block->others.push_back(stream);
}

}  // namespace hvd
