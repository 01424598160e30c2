#include "tests/benchmark/nothing_bucket_list.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "collectives/arena.h"

namespace hvd {
namespace {

constexpr size_t kPageBytes = 4096;

class NothingBucketList final : public BucketList {
 public:
  explicit NothingBucketList(const BucketListSpec& spec) {
    size_t bytes = 0;
    for (const BucketShape& bucket : spec.buckets) {
      offsets_.push_back(bytes);
      bytes += (bucket.count * size_of(bucket.type) + kPageBytes - 1) / kPageBytes * kPageBytes;
    }
    home_bytes_ = bytes;
    const int memory = memfd_create("nothing", MFD_CLOEXEC);
    if (memory < 0 || ftruncate(memory, static_cast<off_t>(2 * bytes)) != 0)
      throw std::system_error(errno, std::generic_category(), "memfd of a bucket list");
    std::vector<UniqueFd> pieces;
    pieces.emplace_back(memory);
    segment_ = std::make_shared<Segment>(0, std::move(pieces), 2 * bytes, 0, bytes);
  }

  std::byte* memory(int bucket, Home home) const override {
    return segment_->own() + offsets_[static_cast<size_t>(bucket)] +
           (home == Home::kSpare ? home_bytes_ : 0);
  }
  std::shared_ptr<const void> holder(int, Home) const override { return segment_; }

  bool ended() const override { return false; }
  void check_open() const override {}
  bool take_spare(int) override { return true; }
  void ready(int, Home, void*) override {}
  StepVerdict finish(const StepWord& word) override {
    ++step_;
    return {.poison = word.poison, .additions = {word.additions}, .used = word.used};
  }

  uint64_t step() const override { return step_; }
  int finished_buckets() const override { return 0; }

 private:
  std::vector<size_t> offsets_;
  size_t home_bytes_ = 0;
  std::shared_ptr<Segment> segment_;
  uint64_t step_ = 0;
};

}  // namespace

std::unique_ptr<BucketList> make_nothing_bucket_list(const BucketListSpec& spec) {
  return std::make_unique<NothingBucketList>(spec);
}

}  // namespace hvd
