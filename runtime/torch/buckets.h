// The gradients of one set of parameters, in the arena, exchanged once a step.
//
// Each parameter's hook sees to it that the gradient lies in its bucket (one copy at most) and is
// .grad, and reports the bucket once it is complete here; on a device the copies of a bucket are
// made together then, by one kernel. Nothing is copied out: after take_results() .grad is the
// result. A mistake (a second backward, a sparse gradient) throws in backward and makes the step
// void on every rank, because this rank's control word says so.
//
// Threads: hooks come from the threads that run backward; everything else from the one that steps.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hvd/torch_types.h"
#include "runtime/base/mutex.h"
#include "runtime/engine/bucket_list.h"
#include "runtime/torch/gradient_hook.h"
#include "runtime/torch/gradient_slot.h"
#include "runtime/torch/layout.h"

namespace hvd {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
// How a bucket list comes about: the engine's, or a test's.
using MakeBucketList = std::function<std::unique_ptr<BucketList>(const BucketListSpec&)>;

// What this rank wants to add to the optimizer behind this step.
struct Additions {
  uint32_t parameters = 0;
  std::string refusal;  // why they cannot be exchanged; voids the step
};

class Buckets {
 public:
  // Throws kInvalidArgument or kUnsupported when its gradient cannot be exchanged.
  static void check_parameter(const std::string& name, const at::Tensor& parameter);

  // Collective of all ranks, on the init thread. Parameters: leaves on one device. Throws
  // kInvalidArgument or kUnsupported before anything collective when one cannot be exchanged.
  Buckets(std::string_view name, const NamedTensors& parameters,
          DistributedOptimizerOptions options, const MakeBucketList& make);
  ~Buckets();  // puts back the hooks that were there
  Buckets(const Buckets&) = delete;
  Buckets& operator=(const Buckets&) = delete;

  // Completes the step on all ranks; see StepVerdict. A parameter without a gradient counts as
  // zeros. When the verdict is poisoned the gradients are worthless.
  StepVerdict finish(const Additions& additions) EXCLUDES(mutex_);
  // Makes .grad the results of the step that finish() completed, which waits for no other rank;
  // what it throws (with compression: no room for one) is this rank's alone. A parameter without
  // a gradient keeps none if no rank had one.
  void take_results(const StepVerdict& verdict) EXCLUDES(mutex_);

  // A gradient came, and finish() was not called since.
  bool in_flight() const EXCLUDES(mutex_);
  void set_passes_per_step(int passes) EXCLUDES(mutex_);  // not while in flight
  const BucketList& list() const { return *list_; }

 private:
  struct Parameter {
    std::unique_ptr<GradientSlot> slot;
    int bucket = 0;
    size_t offset = 0;                       // bytes from the bucket's start
    size_t bytes = 0;                        // of the gradient, as exchanged
    int passes = 0;                          // backward passes of this step
    std::optional<c10::Stream> stream = {};  // on a device: in which the last gradient came
  };
  struct Bucket {
    std::vector<size_t> members;
    int missing = 0;     // members whose last pass has not come
    bool ready = false;  // handed to the list
    bool has_spare = false;
    Home home = Home::kHome;  // of this step once it is ready, of the last one before
  };

  class HeldGradients;  // autograd leaves them alone

  void add_parameters(const NamedTensors& parameters, Compression compression,
                      const Layout& layout);
  void on_gradient(size_t index) EXCLUDES(mutex_);
  void accept_gradient(size_t index) REQUIRES(mutex_);
  void complete(int bucket) REQUIRES(mutex_);
  bool take_spare(int bucket) REQUIRES(mutex_);
  void follow_stream() REQUIRES(mutex_);
  bool waits(const Parameter& parameter) const REQUIRES(mutex_);
  void put(std::span<const size_t> members, Home home, double factor) REQUIRES(mutex_);
  void gather(const Bucket& bucket, Home home) REQUIRES(mutex_);
  void check_sent() REQUIRES(mutex_);
  Home choose_home(const Bucket& bucket) REQUIRES(mutex_);
  void begin_step() REQUIRES(mutex_);
  bool is_used(const std::vector<uint64_t>& bits, size_t index) const {
    return (bits[index / 64] >> (index % 64) & 1) != 0;
  }

  const c10::Device device_;
  std::unique_ptr<BucketList> list_;
  mutable Mutex mutex_;
  std::vector<Parameter> parameters_ GUARDED_BY(mutex_);
  std::vector<Bucket> buckets_ GUARDED_BY(mutex_);
  StepWord word_ GUARDED_BY(mutex_);
  uint32_t digest_ GUARDED_BY(mutex_) = 0;  // of the results of the last step
  int passes_per_step_ GUARDED_BY(mutex_);
  bool any_gradient_ GUARDED_BY(mutex_) = false;
  // On a device: in which the last gradient came; what comes next is queued behind it.
  std::optional<c10::Stream> stream_ GUARDED_BY(mutex_);

  std::vector<std::unique_ptr<GradientHook>> hooks_;  // last: gone before what they call
};

}  // namespace hvd
