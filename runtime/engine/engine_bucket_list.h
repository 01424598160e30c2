// The BucketList of an Engine: its own communicator in its own segment, fed in layout order.
//
// The segment holds, per rank: the communicator's words, the control words of all ranks, the homes
// of all buckets, their spares. Buckets on a device go through the log instead (device_buckets.h);
// what is left here is the control words.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/process_mark.h"
#include "runtime/engine/bucket_list.h"
#include "runtime/engine/device_buckets.h"
#include "runtime/engine/engine_parts.h"

namespace hvd {

class EngineBucketList final : public BucketList, private Feed {
 public:
  // Collective of the init threads. Throws kInvalidArgument, naming both sides, when the ranks'
  // layouts differ.
  static std::unique_ptr<BucketList> make(const std::shared_ptr<Engine::Parts>& parts,
                                          BucketListSpec spec);
  ~EngineBucketList() override;

  std::byte* memory(int bucket, Home home) const override;
  std::shared_ptr<const void> holder(int bucket, Home home) const override;
  bool ended() const override;
  void check_open() const override;
  bool take_spare(int bucket) override;
  double factor() const override { return on_device_ ? on_device_->factor() : 1; }
  void ready(int bucket, Home home, void* stream) override;
  StepVerdict finish(const StepWord& word) override;
  void join(void* stream) override;
  DeviceBackend* device() const override { return on_device_ ? &on_device_->device() : nullptr; }
  uint64_t step() const override { return step_.load(std::memory_order_relaxed); }
  int finished_buckets() const override;

 private:
  // What one rank says in the control words; 1 byte per parameter, used or not, follows all ranks'.
  // Short: those of few ranks and parameters fit a line.
  struct Word {
    uint32_t step;  // + 1; its low bits
    uint32_t additions;
    uint32_t digest;
    uint32_t poisoned;
  };
  struct Offsets {
    uint64_t words = 0, control = 0, homes = 0, spares = 0, end = 0;
    std::vector<uint64_t> bucket;  // within homes or spares
  };
  struct Bucket {
    Operation operation;
    std::atomic<Home> home{Home::kHome};
    std::atomic<bool> ready{false};
    bool has_spare = false;  // its memory was taken
  };
  class StepStatus;
  static constexpr size_t kPoisonBytes = 512;

  EngineBucketList(std::shared_ptr<Engine::Parts> parts, const BucketListSpec& spec,
                   uint64_t layout_hash, Offsets offsets, std::shared_ptr<Segment> segment);
  static Offsets lay_out(const BucketListSpec& spec, const WorldShape& shape);
  static uint64_t compare_layouts(Engine::Parts& parts, const BucketListSpec& spec);

  void take_device_memory();
  bool feed() override;
  bool waiting() const override { return false; }  // what was issued is in the communicator
  void epoch_over() override {}

  void issue(int bucket);
  void submit_on_device(int bucket, Home home, void* stream);
  void give_up(const std::string& why);
  std::byte* control() const { return segment_->own() + offsets_.control; }
  size_t control_bytes() const;
  void write_control(const StepWord& word);
  StepVerdict read_control(const StepWord& word);
  std::string exchange_poison(int poisoned_rank, const std::string& mine);
  void run(Operation& operation);
  void wait_for_launches();
  void reset_step();
  [[noreturn]] void throw_failure(const Operation& last);
  [[noreturn]] void throw_over() const;

  const std::shared_ptr<Engine::Parts> parts_;
  const BucketListSpec spec_;
  const Offsets offsets_;
  const std::shared_ptr<Segment> segment_;
  const std::unique_ptr<Communicator> communicator_;
  const int rank_, size_;
  std::unique_ptr<Bucket[]> buckets_;
  std::unique_ptr<DeviceBuckets> on_device_;  // null: they lie in the segment
  std::atomic<uint64_t> step_{0};
  std::atomic<bool> gave_up_{false};  // a bucket does not go out: the epoch breaks
  const ProcessMark process_;

  // Guarded by the progress token.
  int issued_ = 0;          // buckets of this step
  bool finishing_ = false;  // the last bucket may go, and `last_words_` behind it
  Operation* last_words_ = nullptr;
};

}  // namespace hvd
