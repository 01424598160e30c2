#include "tests/runtime/torch/device/memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
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

std::atomic<int> kept_caches{0};

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

// Of a device that is lost nothing can be had again, and who lets go of a tensor hears no error.
void release(void* context) try {
  auto* block = static_cast<Block*>(context);
  for (const c10::Stream& other : std::exchange(block->others, {})) {
    block->awaited.emplace_back(other.device_type());
    block->awaited.back().record(other);
  }
  const std::lock_guard lock(memory().mutex);
  if (block->awaited.empty()) return make_free(block);
  memory().awaiting.push_back(block);
} catch (const std::exception&) {
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

void free_memory(const Block& block) {
  block.stream.synchronize();
  const CudaDevice::Current current(standin_device(block.stream.device_index()));
  standin_driver().check(cuMemFree(reinterpret_cast<CUdeviceptr>(block.address)), "a block freed");
}

Block* take_free(const c10::Stream& stream, size_t bytes) {
  const std::lock_guard lock(memory().mutex);
  look_at_awaiting();
  auto& free = memory().free[{stream.device_index(), stream.id(), bytes}];
  if (free.empty()) return nullptr;
  Block* block = free.back();
  free.pop_back();
  return block;
}

void empty_all() {
  if (kept_caches.load() != 0) return;
  std::vector<Block*> free;
  {
    const std::lock_guard lock(memory().mutex);
    look_at_awaiting();
    for (auto& [key, blocks] : std::exchange(memory().free, {}))
      free.insert(free.end(), blocks.begin(), blocks.end());
  }
  for (Block* block : free) {
    free_memory(*block);
    delete block;
  }
}

void* take_new(const c10::Stream& stream, size_t bytes) {
  try {
    return allocate_new(stream.device_index(), bytes);
  } catch (const c10::OutOfMemoryError&) {
    empty_all();
  }
  return allocate_new(stream.device_index(), bytes);
}

struct DeviceAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Stream stream =
        current_standin_stream(c10::Device(c10::DeviceType::PrivateUse1));  // of the current device
    if (bytes == 0) return {nullptr, stream.device()};
    const size_t rounded = std::bit_ceil(std::max(bytes, kSmallest));
    Block* block = take_free(stream, rounded);
    if (block == nullptr) block = new Block{take_new(stream, rounded), rounded, stream};
    return {block->address, block, release, stream.device()};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    copy_within(current_standin_stream(c10::Device(c10::DeviceType::PrivateUse1)), to, from, bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return release; }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { empty_all(); }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    record_use(data, stream);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
};

DeviceAllocator allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator)

}  // namespace

KeptCache::KeptCache() { ++kept_caches; }
KeptCache::~KeptCache() { --kept_caches; }

void record_use(const c10::DataPtr& data, const c10::Stream& stream) {
  if (data.get_deleter() != release) return;
  auto* block = static_cast<Block*>(data.get_context());
  if (block == nullptr || stream == block->stream) return;
  const std::lock_guard lock(memory().mutex);
  if (std::ranges::find(block->others, stream) == block->others.end())
    block->others.push_back(stream);
}

}  // namespace hvd
