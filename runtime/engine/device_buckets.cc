#include "runtime/engine/device_buckets.h"

#include <algorithm>

#include "hvd/error.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"

namespace hvd {

DeviceBuckets::DeviceBuckets(DeviceBackend& device, const std::shared_ptr<Negotiation>& negotiation,
                             const BucketListSpec& spec, uint32_t number)
    : device_(device),
      negotiation_(negotiation),
      spec_(spec),
      number_(number),
      buckets_(spec.buckets.size()) {
  for (size_t i = 0; i < buckets_.size(); ++i)
    buckets_[i].memory[0] = allocate(static_cast<int>(i));
}

std::shared_ptr<std::byte> DeviceBuckets::allocate(int bucket) const {
  const BucketShape& shape = spec_.buckets[static_cast<size_t>(bucket)];
  try {
    return device_.allocate(std::max<size_t>(shape.count * size_of(shape.type), 1));
  } catch (const Error& error) {
    throw Error(error.code(),
                "bucket " + std::to_string(bucket) + " of \"" + spec_.name + "\": " + error.what());
  }
}

// In the log, where names have a longest length.
std::string DeviceBuckets::name_of(int bucket) const {
  const std::string own = ".list." + std::to_string(number_) + ".bucket." + std::to_string(bucket);
  return std::string(head_of(spec_.name, LogWords::kNameBytes - 1 - own.size())) + own;
}

void DeviceBuckets::take_spare(int bucket) {
  auto& spare = buckets_[static_cast<size_t>(bucket)].memory[1];
  if (!spare) spare = allocate(bucket);
}

void DeviceBuckets::submit(int bucket, Home home, void* stream) {
  const auto negotiation = negotiation_.lock();
  if (!negotiation) return;
  Bucket& one = buckets_[static_cast<size_t>(bucket)];
  const BucketShape& shape = spec_.buckets[static_cast<size_t>(bucket)];
  one.events = std::make_shared<DeviceEvents>(device_);
  one.events->begin_behind(stream);
  auto submission = std::make_unique<Submission>();
  submission->name = name_of(bucket);
  submission->keep_alive = std::make_shared<InFlight>(InFlight{one.events, of(bucket, home)});
  Operation& operation = submission->operation;
  operation.kind = OperationKind::kAllreduce;
  operation.result = {memory(bucket, home), shape.count, shape.type};
  operation.reduction = spec_.reduction;
  one.events->give_to(operation);
  one.work = negotiation->submit(std::move(submission), negotiation);
}

void DeviceBuckets::wait() const {
  for (const Bucket& one : buckets_)
    if (one.work) one.work->wait();
}

void DeviceBuckets::join(void* stream) const {
  for (const Bucket& one : buckets_)
    if (one.events) one.events->join(stream);
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
