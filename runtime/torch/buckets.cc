// What happens to a gradient between its hook and the end of the step.
#include "runtime/torch/buckets.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/exact_text.h"
#include "runtime/torch/compression.h"
#include "runtime/torch/device_stream.h"
#include "runtime/torch/element_type.h"
#include "runtime/torch/plain_memory.h"
#include "runtime/torch/result_digest.h"

namespace hvd {
namespace {

// On CPUs a sum costs little beyond its bytes, and what the caches hold is summed faster; on GPUs
// each is a launch, for which DDP's 25 MiB are the measure.
constexpr size_t kBucketBytes = size_t{2} << 20, kDeviceBucketBytes = size_t{25} << 20;

std::string settings_of(const DistributedOptimizerOptions& options, c10::Device device) {
  return std::string("op ") + name_of(options.op) + ", predivide " +
         exact_text(options.gradient_predivide_factor) + ", compression " +
         name_of(options.compression) + ", bucket_bytes " + std::to_string(options.bucket_bytes) +
         (device.is_cpu() ? ", on CPUs" : ", on a GPU");
}

BucketListSpec make_spec(std::string_view name, std::span<const GradientShape> shapes,
                         const Layout& layout, const DistributedOptimizerOptions& options,
                         c10::Device device) {
  BucketListSpec spec;
  spec.name = name;
  if (!shapes.empty()) spec.about = " of " + shapes.front().name + " …";
  spec.buckets = layout.buckets;
  spec.parameters = static_cast<int>(shapes.size());
  spec.layout = describe_layout(shapes, settings_of(options, device));
  // Of all passes together: later accumulation passes add unscaled gradients. See factor().
  spec.reduction = {.op = options.op,
                    .prescale = 1 / options.gradient_predivide_factor,
                    .postscale = options.gradient_predivide_factor};
  return spec;
}

// Of a set of gradients that is larger than what the caches keep from one step to the next.
// Measured on Sapphire Rapids, two ranks, in `scripts/benchmark step`'s pattern of copy, sum and
// update: at 10 MB streaming takes twice as long, at 40 MB the same, from 62 to 400 MB a tenth
// less.
constexpr size_t kStreamedBytes = size_t{64} << 20;

Home other(Home home) { return home == Home::kHome ? Home::kSpare : Home::kHome; }

size_t bytes_of(const Layout& layout) {
  size_t bytes = 0;
  for (const BucketShape& bucket : layout.buckets) bytes += bucket.count * size_of(bucket.type);
  return bytes;
}

}  // namespace

void Buckets::check_parameter(const std::string& name, const at::Tensor& parameter) {
  if (!parameter.is_leaf() || !parameter.requires_grad()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "\"" + name + "\" is no leaf that requires a gradient; pass parameters of a module");
  }
  check_device(parameter, "parameter \"" + name + "\"");
  check_plain(parameter, "parameter \"" + name + "\"");
  if (!at::isFloatingType(parameter.scalar_type())) {
    throw Error(ErrorCode::kUnsupported, "parameter \"" + name + "\" is " + describe(parameter) +
                                             "; gradients are exchanged in floating types only");
  }
  data_type_of(parameter.scalar_type(),
               "parameter \"" + name + "\"");  // throws for those that nobody sums
  if (GradientHook::is_in_use(parameter)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "parameter \"" + name +
            "\" already belongs to a DistributedOptimizer; give each parameter to one only");
  }
}

Buckets::Buckets(std::string_view name, const NamedTensors& parameters,
                 DistributedOptimizerOptions options, const MakeBucketList& make)
    : device_(parameters.empty() ? c10::Device(c10::kCPU) : parameters[0].second.device()),
      passes_per_step_(options.backward_passes_per_step) {
  if (options.bucket_bytes == 0)
    options.bucket_bytes = device_.is_cpu() ? kBucketBytes : kDeviceBucketBytes;
  std::vector<GradientShape> shapes;
  // Before anything collective, so that a mistake on every rank hangs none.
  for (const auto& [label, tensor] : parameters) {
    check_parameter(label, tensor);
    if (tensor.device() != device_)
      throw Error(ErrorCode::kUnsupported,
                  "parameter \"" + label + "\" is on " + tensor.device().str() + ", and \"" +
                      parameters[0].first + "\" on " + device_.str() +
                      "; all parameters of an optimizer have to be on one device");
    shapes.push_back({label, tensor.sizes().vec(),
                      data_type_of(exchanged_type(tensor.scalar_type(), options.compression),
                                   "parameter \"" + label + "\""),
                      gradient_strides(tensor)});
  }
  const Layout layout = plan_buckets(shapes, options.bucket_bytes);
  BucketListSpec spec = make_spec(name, shapes, layout, options, device_);
  if (!device_.is_cpu()) {
    spec.device = device_.index();
    spec.make_room = [device = device_] { empty_cache(device); };
  }
  list_ = make(spec);
  add_parameters(parameters, options.compression, layout);
}

void Buckets::add_parameters(const NamedTensors& parameters, Compression compression,
                             const Layout& layout) {
  MutexLock lock(mutex_);
  buckets_.resize(layout.buckets.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& [label, tensor] = parameters[i];
    const auto [bucket, offset] = layout.placements[i];
    const size_t bytes = offset * size_of(layout.buckets[static_cast<size_t>(bucket)].type);
    auto slot = std::make_unique<GradientSlot>(
        label, tensor, exchanged_type(tensor.scalar_type(), compression),
        GradientSlot::Memory{list_->memory(bucket, Home::kHome) + bytes,
                             list_->holder(bucket, Home::kHome)},
        bytes_of(layout) >= kStreamedBytes);
    const DataType type = layout.buckets[static_cast<size_t>(bucket)].type;
    parameters_.push_back(
        {std::move(slot), bucket, bytes, static_cast<size_t>(tensor.numel()) * size_of(type)});
    buckets_[static_cast<size_t>(bucket)].members.push_back(i);
    hooks_.push_back(std::make_unique<GradientHook>(
        tensor, label, [this, i] { on_gradient(i); }, [this] { return !list_->ended(); }));
  }
  begin_step();
}

Buckets::~Buckets() = default;

// Of whoever holds several only one at a time: the buckets' mutex is held.
class Buckets::HeldGradients {
 public:
  HeldGradients(std::span<const size_t> members, const std::vector<Parameter>& parameters)
      : members_(members), parameters_(parameters) {
    for (const size_t i : members_) parameters_[i].slot->mutex().lock();
  }
  ~HeldGradients() {
    for (const size_t i : members_) parameters_[i].slot->mutex().unlock();
  }
  HeldGradients(const HeldGradients&) = delete;
  HeldGradients& operator=(const HeldGradients&) = delete;

 private:
  const std::span<const size_t> members_;
  const std::vector<Parameter>& parameters_;
};

bool Buckets::in_flight() const {
  MutexLock lock(mutex_);
  return any_gradient_;
}

void Buckets::set_passes_per_step(int passes) {
  MutexLock lock(mutex_);
  passes_per_step_ = passes;
}

void Buckets::on_gradient(size_t index) {
  // Before the lock, too: it may have been held when this process was forked.
  list_->check_open();
  MutexLock lock(mutex_);
  try {
    accept_gradient(index);
  } catch (const std::exception& error) {
    if (word_.poison.empty()) word_.poison = error.what();
    throw;  // out of backward()
  }
}

void Buckets::accept_gradient(size_t index) {
  Parameter& p = parameters_[index];
  any_gradient_ = true;
  follow_stream();
  p.stream = stream_;
  Bucket& bucket = buckets_[static_cast<size_t>(p.bucket)];
  if (p.passes >= passes_per_step_ || bucket.ready) {
    throw Error(ErrorCode::kInvalidArgument,
                "the gradient of \"" + p.slot->name() + "\" came " + std::to_string(p.passes + 1) +
                    " times before step(); raise backward_passes_per_step (now " +
                    std::to_string(passes_per_step_) + ") or call step() after each backward()");
  }
  {
    const HeldGradients held(std::span(&index, 1), parameters_);
    p.slot->check_gradient();
    // A slot that somebody else sees is left alone: complete() moves the bucket to its spare then.
    if (!waits(p) && p.slot->can_use(Home::kHome)) put(std::span(&index, 1), Home::kHome, 1);
  }
  if (++p.passes < passes_per_step_) return;
  if (--bucket.missing == 0) complete(p.bucket);
}

// All gradients are there, or none is to come any more: everything into one home, and out. An error
// must not keep the bucket back, the other ranks wait for it: the control word tells them.
void Buckets::complete(int index) {
  Bucket& bucket = buckets_[static_cast<size_t>(index)];
  bucket.ready = true;
  Home home = other(bucket.home);  // a void step overwrites no kept gradients either
  try {
    const HeldGradients held(bucket.members, parameters_);
    home = choose_home(bucket);
    if (home == Home::kSpare && !take_spare(index)) return;  // the epoch ends
    gather(bucket, home);
    for (const size_t i : bucket.members) parameters_[i].slot->note_sent();
  } catch (const std::exception& error) {
    if (word_.poison.empty()) word_.poison = error.what();
  }
  if (home == Home::kSpare && !take_spare(index)) return;  // whatever chose it
  bucket.home = home;
  list_->ready(index, home, stream_ ? stream_->native_handle() : nullptr);
}

bool Buckets::take_spare(int index) {
  Bucket& bucket = buckets_[static_cast<size_t>(index)];
  if (bucket.has_spare) return true;
  if (!list_->take_spare(index)) return false;
  bucket.has_spare = true;
  for (const size_t i : bucket.members) {
    Parameter& p = parameters_[i];
    p.slot->set_spare(
        {list_->memory(index, Home::kSpare) + p.offset, list_->holder(index, Home::kSpare)});
  }
  return true;
}

// Threads of backward may each queue in a stream of their own.
void Buckets::follow_stream() {
  if (device_.is_cpu()) return;
  const c10::Stream now = current_stream(device_);
  if (stream_ && *stream_ != now) queue_behind(now, *stream_);
  stream_ = now;
}

// For its bucket's last one. On a device the copies of a bucket are one launch then; but where more
// passes are to come all gradients would stay beside the buckets until the last.
bool Buckets::waits(const Parameter& parameter) const {
  return parameter.slot->is_cast() || (!device_.is_cpu() && passes_per_step_ == 1);
}

// `copies` holds what .grad was until it is read by what is in the stream, in whose order the
// allocator gives it out again. In the order of its own stream, that is: if the gradient came in
// another one, it is told.
void Buckets::put(std::span<const size_t> members, Home home, double factor) {
  std::vector<TensorCopy> copies;
  for (const size_t i : members) {
    const size_t before = copies.size();
    parameters_[i].slot->put(home, copies, factor != 1);
    const auto& stream = parameters_[i].stream;
    if (copies.size() != before && stream && stream != stream_)
      record_stream(copies.back().from, *stream_);
  }
  make_copies(std::move(copies), list_->device(), factor);
}

void Buckets::gather(const Bucket& bucket, Home home) {
  for (const size_t i : bucket.members) {
    GradientSlot& slot = *parameters_[i].slot;
    if (slot.has_gradient()) {
      slot.check_gradient();  // autograd may have had no part in it: users set .grad, too
      word_.used[i / 64] |= uint64_t{1} << (i % 64);
    }
  }
  put(bucket.members, home, list_->factor());
}

Home Buckets::choose_home(const Bucket& bucket) {
  for (const Home home : {Home::kHome, Home::kSpare}) {
    bool by_all = true;
    for (const size_t i : bucket.members) by_all = by_all && parameters_[i].slot->can_use(home);
    if (by_all) return home;
  }
  // Somebody sees either: the gradients that were kept for longer than one step are theirs no more.
  return other(bucket.home);
}

// Ranks would part without a word: what is written into a bucket that is under way is summed, or
// not, or written over a result.
void Buckets::check_sent() {
  for (const Bucket& bucket : buckets_)
    for (const size_t i : bucket.members)
      if (bucket.ready && !parameters_[i].slot->is_as_sent() && word_.poison.empty())
        word_.poison = "the gradient of \"" + parameters_[i].slot->name() +
                       "\" was changed between backward() and step(), while it was under way; "
                       "call synchronize() before you change it, and step() under "
                       "skip_synchronize()";
}

StepVerdict Buckets::finish(const Additions& additions) {
  list_->check_open();
  StepWord word;
  {
    MutexLock lock(mutex_);
    follow_stream();
    check_sent();
    for (size_t bucket = 0; bucket < buckets_.size(); ++bucket)
      if (!buckets_[bucket].ready) complete(static_cast<int>(bucket));
    word = word_;
    word.digest = std::exchange(digest_, 0);
  }
  word.additions = additions.parameters;
  if (word.poison.empty()) word.poison = additions.refusal;
  StepVerdict verdict = list_->finish(word);
  MutexLock lock(mutex_);
  // Of a void step, too: its sums are under way, and must not come over the next step's gradients.
  if (stream_) list_->join(stream_->native_handle());
  begin_step();
  return verdict;
}

void Buckets::take_results(const StepVerdict& verdict) {
  MutexLock lock(mutex_);
  follow_stream();
  HVD_CHECK(verdict.used.size() >= word_.used.size(), "a verdict has a bit for every parameter");
  std::vector<TensorCopy> copies;
  uint64_t digest = 1;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = parameters_[i];
    const Home home = buckets_[static_cast<size_t>(p.bucket)].home;
    p.slot->take_result(home, is_used(verdict.used, i), copies);
    if (device_.is_cpu() && p.bytes != 0)
      digest = digest_of(digest, list_->memory(p.bucket, home) + p.offset, p.bytes, list_->step());
  }
  make_copies(std::move(copies), list_->device());
  if (device_.is_cpu()) digest_ = std::max(static_cast<uint32_t>(digest ^ digest >> 32), 1u);
}

void Buckets::begin_step() {
  for (Parameter& p : parameters_) p.passes = 0;
  for (Bucket& bucket : buckets_) {
    bucket.missing = static_cast<int>(bucket.members.size());
    bucket.ready = false;
  }
  word_.poison.clear();
  word_.used.assign((parameters_.size() + 63) / 64, 0);
  any_gradient_ = false;
}

}  // namespace hvd
