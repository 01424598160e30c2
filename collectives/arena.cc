#include "collectives/arena.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "collectives/memory_limit.h"
#include "runtime/base/error.h"
#include "runtime/base/fault_point.h"
#include "runtime/base/mutex.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1
#endif

namespace hvd {

namespace {

// Where memory is in pieces the kernel moves others' pages for each huge one: 10 to 40 ms were
// seen, and 0.15 ms elsewhere. Small pages take about 1 ms for as much, with one peer.
constexpr std::chrono::milliseconds kSlowAtFirst{10}, kHugePageWorth{2};

// Of this thread.
std::chrono::nanoseconds cpu_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

size_t page_bytes() {
  static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// Of a huge page, a power of two; 0: the kernel has none.
size_t huge_page_bytes() {
  static const size_t bytes = [] {
    size_t found = 0;
    std::ifstream("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size") >> found;
    return std::has_single_bit(found) ? found : 0;
  }();
  return bytes;
}

// Where huge pages fit into it, on the border of one: address and file have to be so by the same
// distance. MAP_FAILED as mmap().
void* map_shared(int memory, size_t bytes) {
  constexpr int kAccess = PROT_READ | PROT_WRITE;
  const size_t huge = huge_page_bytes();
  const auto map_anywhere = [&] { return mmap(nullptr, bytes, kAccess, MAP_SHARED, memory, 0); };
  if (huge == 0 || bytes < huge) return map_anywhere();
  const size_t length = (bytes + page_bytes() - 1) / page_bytes() * page_bytes(),
               room = length + huge;
  void* const place = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) return map_anywhere();
  const auto from = reinterpret_cast<uintptr_t>(place), at = (from + huge - 1) / huge * huge;
  void* const found =
      mmap(reinterpret_cast<void*>(at), bytes, kAccess, MAP_SHARED | MAP_FIXED, memory, 0);
  if (found == MAP_FAILED) {
    munmap(place, room);
    return map_anywhere();
  }
  if (at > from) munmap(place, at - from);
  if (at + length < from + room)
    munmap(reinterpret_cast<void*>(at + length), from + room - at - length);
  return found;
}

}  // namespace

// One mapping of one memory. Ranks that are threads of one process share it, so that what they
// share is one address: for ThreadSanitizer, and for anybody who debugs.
class Mapping {
 public:
  using Key = std::pair<dev_t, ino_t>;

  static std::shared_ptr<Mapping> of(const UniqueFd& memory, size_t bytes);

  Mapping(Key key, std::byte* address, size_t bytes)
      : key_(key), address_(address), bytes_(bytes) {}
  ~Mapping() {
    if (process_.in_child()) return;  // a forked child has other things there, if anything
    munmap(address_, bytes_);
    MutexLock lock(registry().mutex);
    if (auto it = registry().mappings.find(key_);
        it != registry().mappings.end() && it->second.expired())
      registry().mappings.erase(it);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* address() const { return address_; }

 private:
  struct Registry {
    Mutex mutex;
    std::map<Key, std::weak_ptr<Mapping>> mappings GUARDED_BY(mutex);
  };
  static Registry& registry() {
    static Registry* const instance = new Registry;  // a tensor may end after every static
    return *instance;
  }

  const Key key_;
  std::byte* const address_;
  const size_t bytes_;
  const ProcessMark process_;
};

namespace {

[[noreturn]] void fail(const std::string& what, size_t bytes, int error) {
  // The kernel has one word for both. Each segment is a mapping for every rank of the host.
  const char* advice =
      error == ENOMEM ? "; either memory or mappings (sysctl vm.max_map_count) are used up: keep "
                        "fewer arena buffers, which stay mapped until shutdown()"
                      : "";
  throw Error(ErrorCode::kUnavailable, what + " " + std::to_string(bytes) +
                                           " bytes of shared memory: " + strerror(error) + advice);
}

}  // namespace

std::shared_ptr<Mapping> Mapping::of(const UniqueFd& memory, size_t bytes) {
  struct stat status;
  if (fstat(memory.get(), &status) != 0) fail("cannot map", bytes, errno);
  if (static_cast<uint64_t>(status.st_size) < bytes)
    throw Error(ErrorCode::kInternal, "a segment of " + std::to_string(bytes) +
                                          " bytes was asked for and one of " +
                                          std::to_string(status.st_size) + " came");
  const Key key{status.st_dev, status.st_ino};
  MutexLock lock(registry().mutex);
  std::weak_ptr<Mapping>& known = registry().mappings[key];
  if (std::shared_ptr<Mapping> mapping = known.lock(); mapping && mapping->bytes_ >= bytes)
    return mapping;
  void* address = map_shared(memory.get(), bytes);
  if (address == MAP_FAILED) fail("cannot map", bytes, errno);
  // A forked data loader must not be able to write what peers read.
  madvise(address, bytes, MADV_DONTFORK);
  auto mapping = std::make_shared<Mapping>(key, static_cast<std::byte*>(address), bytes);
  known = mapping;
  return mapping;
}

Segment::Segment(uint32_t id, std::vector<UniqueFd> pieces, size_t bytes, int local_rank,
                 size_t populate_bytes)
    : id_(id), bytes_(bytes), local_rank_(local_rank) {
  HVD_CHECK(bytes > 0 && static_cast<size_t>(local_rank) < pieces.size(),
            "a segment has bytes and a piece per local rank");
  for (const UniqueFd& piece : pieces) {
    fault_point("segment_map");
    mappings_.push_back(Mapping::of(piece, bytes));
    addresses_.push_back(mappings_.back()->address());
  }
  if (populate_bytes == 0) return;
  check_headroom(populate_bytes);
  populate(local_rank, 0, populate_bytes);
}

Segment::~Segment() = default;

void Segment::check_headroom(size_t bytes, const std::string& proc, const std::string& cgroups) {
  const std::optional<MemoryLimit> limit = tightest_memory_limit(bytes, proc, cgroups);
  if (!limit) return;
  throw Error(ErrorCode::kUnavailable,
              "cannot take " + std::to_string(bytes) + " bytes of shared memory: of the " +
                  std::to_string(limit->limit_bytes) + " bytes of " + limit->where + " " +
                  std::to_string(limit->used_bytes) +
                  " are in use; ask for less, or start fewer ranks on this host");
}

// A huge page is one entry of the tables where small ones are 512, for the owner and for who maps
// it after that: it is there sooner, and what runs through many misses fewer of them. The kernel
// makes one of a memory that has a page of it also where it makes none by itself (shmem_enabled:
// never).
bool Segment::take_huge_page(size_t offset) {
  std::byte* const at = own() + offset;
  const auto began = cpu_time();
  if (madvise(at, page_bytes(), MADV_POPULATE_WRITE) != 0 ||
      madvise(at, huge_page_bytes(), MADV_COLLAPSE) != 0)
    return false;
  huge_pages_took_ += cpu_time() - began;
  return huge_pages_took_ < kSlowAtFirst + kHugePageWorth * ++huge_pages_;
}

void Segment::populate(int local_rank, size_t offset, size_t bytes) {
  const size_t page = page_bytes(), huge = huge_page_bytes();
  const size_t begin = offset / page * page;
  const size_t end = std::min(bytes_, offset + bytes);
  if (begin >= end) return;
  fault_point("segment_populate");
  if (local_rank == local_rank_ && huge != 0)
    for (size_t at = (begin + huge - 1) / huge * huge; tries_huge_pages_ && at + huge <= end;
         at += huge)
      tries_huge_pages_ = take_huge_page(at);
  std::byte* const base = at(local_rank);
  if (madvise(base + begin, end - begin, MADV_POPULATE_WRITE) == 0) return;
  if (errno != EINVAL) fail("cannot populate", end - begin, errno);
  // An older kernel: a store per page that changes nothing, whoever else is using it already.
  for (size_t at = begin; at < end; at += page)
    reinterpret_cast<std::atomic<uint8_t>*>(base + at)->fetch_or(0, std::memory_order_relaxed);
}

void Segment::give_back(size_t offset) noexcept {
  const size_t page = page_bytes();
  const size_t begin = (offset + page - 1) / page * page;
  if (begin < bytes_ && !process_.in_child())
    madvise(own() + begin, bytes_ - begin, MADV_REMOVE);  // refused (locked memory): it stays
}

void Segment::release_peers() {
  for (size_t k = 0; k < addresses_.size(); ++k) {
    if (static_cast<int>(k) == local_rank_) continue;
    mappings_[k].reset();
    addresses_[k] = nullptr;
  }
}

Arena::~Arena() {
  for (const std::shared_ptr<Segment>& segment : segments_)
    if (segment != nullptr) segment->release_peers();
}

void Arena::add(std::shared_ptr<Segment> segment) {
  const uint32_t id = segment->id();
  if (segments_.size() <= id) segments_.resize(id + 1);
  HVD_CHECK(segments_[id] == nullptr, "a segment is added once");
  by_address_.emplace(reinterpret_cast<uintptr_t>(segment->own()), segment.get());
  segments_[id] = std::move(segment);
}

void Arena::remove(uint32_t id) {
  by_address_.erase(reinterpret_cast<uintptr_t>(segments_[id]->own()));
  segments_[id].reset();
}

std::optional<ArenaAddress> Arena::find(const void* data, size_t bytes) const {
  const auto at = reinterpret_cast<uintptr_t>(data);
  const auto after = by_address_.upper_bound(at);
  if (after == by_address_.begin()) return std::nullopt;
  const auto& [own, segment] = *std::prev(after);
  const size_t offset = at - own;
  if (offset > segment->bytes() || bytes > segment->bytes() - offset) return std::nullopt;
  return ArenaAddress{segment->id(), offset};
}

}  // namespace hvd
