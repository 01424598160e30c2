// One collective on tensors: checked, described, and brought back into the caller's tensor.
//
// Made by the thread that calls; while it runs, the holder of the progress token, or on a device
// the communicator's thread, only touches what its Operation points to.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "collectives/communicator.h"
#include "runtime/base/mutex.h"
#include "runtime/engine/engine.h"

namespace hvd {

class TensorCollective {
 public:
  // Of the result. kLent: a new one, and nobody writes the tensor until it is there.
  enum class Place { kNew, kInPlace, kLent };

  // All throw kInvalidArgument or kUnsupported, naming the tensor, for what cannot be sent.
  // `type`, of a new result: what it is exchanged as.
  static std::shared_ptr<TensorCollective> allreduce(const at::Tensor& tensor, Place place,
                                                     const Reduction& reduction, std::string name,
                                                     std::optional<at::ScalarType> type = {});
  // Any element type. `agreed`, if any: what has to agree on all ranks instead of its shape, in
  // words.
  static std::shared_ptr<TensorCollective> broadcast(const at::Tensor& tensor, Place place,
                                                     int root, std::string name,
                                                     std::string agreed = "");
  // Parts along the first dimension, in rank order; a 0-dimensional tensor counts as one row.
  // `place`: kNew or kLent.
  static std::shared_ptr<TensorCollective> allgather(const at::Tensor& tensor, std::string name,
                                                     Place place = Place::kNew);

  // Of its tensors. On another than the CPU it needs Engine::use_device(), a name, and works in
  // the streams that are current in the threads that submit it and take its result.
  c10::Device device() const { return buffer_.device(); }

  // Runs it now: program order on the init thread, elsewhere, and on a device, a named submission
  // and a wait.
  static at::Tensor run(Engine& engine, const std::shared_ptr<TensorCollective>& collective);
  // For Engine::submit() or Context::submit(): `collective` lives as long as the Work. Without room
  // for a copy of the tensor both throw kUnavailable, and the epoch ends for all ranks.
  static std::unique_ptr<Submission> submission(
      Engine& engine, const std::shared_ptr<TensorCollective>& collective);
  // The same, submitted. Throws kInvalidArgument when it has no name.
  static std::shared_ptr<Work> submit(Engine& engine,
                                      const std::shared_ptr<TensorCollective>& collective);

  // After completion: the result, written back to where it belongs. Once; later the same tensor.
  // Any thread: all return when it is written. Throws kInvalidArgument, on all ranks, when what was
  // gathered has no elements.
  at::Tensor take_result() EXCLUDES(mutex_);

 private:
  TensorCollective(OperationKind kind, std::string name);
  void check(const at::Tensor& tensor, Place place) const;
  void check_root(const World& world) const;
  void set_buffer(const at::Tensor& tensor, Place place, std::optional<at::ScalarType> type = {});
  at::Tensor copy_of(const at::Tensor& tensor, std::optional<at::ScalarType> type = {});
  void expect_copy(Engine& engine) const;
  void set_shape(std::string dimensions);
  void begin_on_device(Engine& engine, Operation& operation);
  void leave_buckets(const DeviceBackend& used, Operation& operation);
  void* allocate_parts(std::span<const uint64_t> counts);
  at::Tensor gathered() const;
  void join_current_stream() REQUIRES(mutex_);
  void describe(Operation& operation);  // which points into this object
  std::string title() const;            // `allreduce "loss"`, for errors

  const OperationKind kind_;
  const bool inference_;  // the mode it was made in, of the result too
  std::string name_;
  std::string no_copy_;                   // why a copy could not be had; empty: it could
  std::string shape_;                     // what has to agree, in words; its hash is compared
  at::Tensor target_;                     // the caller's, or the new one
  at::Tensor buffer_;                     // contiguous; `target_` itself where that is possible
  std::shared_ptr<DeviceEvents> events_;  // null: on the CPU
  DataType type_ = DataType::kUint8;
  size_t count_ = 0;
  Reduction reduction_;
  int root_ = 0;

  Mutex mutex_;
  bool taken_ GUARDED_BY(mutex_) = false;                   // `target_` is written
  std::optional<c10::Stream> taken_in_ GUARDED_BY(mutex_);  // on a device: or will be, there
};

}  // namespace hvd
