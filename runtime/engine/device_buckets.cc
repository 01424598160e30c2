#include "runtime/engine/device_buckets.h"

#include <algorithm>

#include "hvd/error.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "runtime/engine/engine_parts.h"

namespace hvd {
namespace {

constexpr size_t kAlignment = 256;  // as all of a device's memory begins

double factor_of(const Reduction& reduction, int ranks) {
  return reduction.prescale * reduction.postscale /
         (reduction.op == ReduceOp::kAverage ? ranks : 1);
}

}  // namespace

DeviceBuckets::DeviceBuckets(DeviceBackend& device, const std::shared_ptr<Negotiation>& negotiation,
                             const BucketListSpec& spec, uint32_t number, int ranks)
    : device_(device),
      negotiation_(negotiation),
      spec_(spec),
      number_(number),
      factor_(factor_of(spec.reduction, ranks)),
      buckets_(spec.buckets.size()) {
  std::vector<size_t> offsets;
  for (int i = 0; i < static_cast<int>(buckets_.size()); ++i) {
    offsets.push_back(homes_bytes_);
    homes_bytes_ += (bytes_of(i) + kAlignment - 1) / kAlignment * kAlignment;
  }
  if (buckets_.empty()) return;
  homes_ = named_of(0, buckets_.size(), [&] { return device_.allocate(homes_bytes_); });
  for (size_t i = 0; i < buckets_.size(); ++i) {
    buckets_[i].name = name_of(static_cast<int>(i));
    buckets_[i].memory[0] = {homes_, homes_.get() + offsets[i]};
  }
}

size_t DeviceBuckets::bytes_of(int bucket) const {
  const BucketShape& shape = spec_.buckets[static_cast<size_t>(bucket)];
  return std::max<size_t>(shape.count * size_of(shape.type), 1);
}

template <class Allocate>
std::shared_ptr<std::byte> DeviceBuckets::with_room(const Allocate& allocate) const {
  try {
    return allocate();
  } catch (const Error&) {
    if (!spec_.make_room) throw;
  }
  spec_.make_room();
  return allocate();
}

// What went wrong, with the buckets that it was for.
template <class Allocate>
std::shared_ptr<std::byte> DeviceBuckets::named_of(size_t first, size_t count,
                                                   const Allocate& allocate) const {
  try {
    return with_room(allocate);
  } catch (const Error& error) {
    const std::string which = count == 1 ? "bucket " + std::to_string(first)
                                         : "buckets " + std::to_string(first) + " to " +
                                               std::to_string(first + count - 1);
    throw Error(error.code(), which + " of \"" + spec_.name + "\": " + error.what());
  }
}

// In the log, where names have a longest length.
std::string DeviceBuckets::name_of(int bucket) const {
  const std::string own = ".list." + std::to_string(number_) + ".bucket." + std::to_string(bucket);
  return std::string(head_of(spec_.name, LogWords::kNameBytes - 1 - own.size())) + own;
}

void DeviceBuckets::take_spare(int bucket) {
  auto& spare = buckets_[static_cast<size_t>(bucket)].memory[1];
  if (!spare)
    spare = named_of(static_cast<size_t>(bucket), 1,
                     [&] { return device_.allocate_plain(bytes_of(bucket)); });
}

void DeviceBuckets::register_homes(const std::shared_ptr<Engine::Parts>& parts) {
  if (buckets_.empty()) return;
  size_t largest = 0;
  for (int i = 0; i < static_cast<int>(buckets_.size()); ++i)
    largest = std::max(largest, bytes_of(i));
  std::shared_ptr<std::byte> aside;
  std::string unwilling;
  try {
    aside = with_room([&] { return device_.allocate_plain(largest); });
  } catch (const Error& error) {
    unwilling = error.what();
  }
  if (parts->registered.add(parts, spec_.name, number_, {homes_, homes_bytes_}, unwilling))
    aside_ = std::move(aside);
}

std::unique_ptr<Submission> DeviceBuckets::describe(int bucket, Home home,
                                                    const std::shared_ptr<Held>& held) const {
  const BucketShape& shape = spec_.buckets[static_cast<size_t>(bucket)];
  auto submission = std::make_unique<Submission>();
  submission->name = buckets_[static_cast<size_t>(bucket)].name;
  submission->keep_alive = held;
  submission->repeats = true;
  Operation& operation = submission->operation;
  operation.kind = OperationKind::kAllreduce;
  operation.result = {memory(bucket, home), shape.count, shape.type};
  operation.reduction.op = ReduceOp::kSum;
  operation.apart = aside_ != nullptr && home == Home::kSpare;
  if (home == Home::kHome) operation.aside = aside_.get();
  held->events.give_to(operation);
  return submission;
}

void DeviceBuckets::submit(int bucket, Home home, void* stream) {
  const auto negotiation = negotiation_.lock();
  if (!negotiation) return;
  Bucket& one = buckets_[static_cast<size_t>(bucket)];
  auto& made = one.made[static_cast<size_t>(home)];
  const auto free = std::ranges::find_if(made, [](const Made& it) { return it.work->is_free(); });
  if (free != made.end()) {
    free->held->events.begin_behind(stream);
    negotiation->submit_again(free->work);
    one.last = *free;
  } else {
    const auto held = std::make_shared<Held>(device_, of(bucket, home), aside_);
    held->events.begin_behind(stream);
    one.last = {held, negotiation->submit(describe(bucket, home, held), negotiation)};
    made.push_back(one.last);
  }
  one.work = one.last.work;
}

void DeviceBuckets::wait() const {
  for (const Bucket& one : buckets_)
    if (one.work) one.work->wait();
}

void DeviceBuckets::join(void* stream) const {
  for (const Bucket& one : buckets_)
    if (one.last.held) one.last.held->events.join(stream);
}

int DeviceBuckets::done() const {
  int count = 0;
  for (const Bucket& one : buckets_) {
    if (!one.work || !one.work->done()) break;
    ++count;
  }
  return count;
}

void DeviceBuckets::reset() {
  for (Bucket& one : buckets_) one.work.reset();
}

}  // namespace hvd
