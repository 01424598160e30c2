// One parameter's place in its bucket, and what may be done to it.
//
// The place exists twice, as home and as spare. Unless the gradient is exchanged in another type,
// the memory itself becomes the parameter's .grad, so that nothing is copied out. Such memory is
// written only while nobody but its own parameter's .grad can see it: a gradient that a user kept
// is never overwritten in the next step. Not thread-safe: Buckets guards it, and holds mutex()
// where threads may run backward().
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/engine/bucket_list.h"
#include "runtime/torch/gradient_mutex.h"
#include "runtime/torch/tensor_copies.h"

namespace hvd {

using Home = BucketList::Home;

// How a parameter's gradient lies in its slot, on every rank alike: in the parameter's strides
// where these leave no gaps, else row-major.
std::vector<int64_t> gradient_strides(const at::Tensor& parameter);

class GradientSlot {
 public:
  // Where the gradient is to lie; `holder` is kept by every tensor that points there.
  struct Memory {
    std::byte* address = nullptr;
    std::shared_ptr<const void> holder;
  };

  // `type` is the one that is exchanged.
  // `streamed`: written past the caches, see stream_copy().
  GradientSlot(std::string name, at::Tensor parameter, at::ScalarType type, Memory home,
               bool streamed);
  // Before it is put there.
  void set_spare(Memory memory) { memory_[1] = std::move(memory); }

  const GradientMutex& mutex() const { return mutex_; }
  const std::string& name() const { return name_; }
  const at::Tensor& parameter() const { return parameter_; }
  bool has_gradient() const { return gradient().defined(); }

  // Throws kInvalidArgument or kUnsupported when .grad cannot be exchanged: sparse or without
  // memory, with a graph behind it (create_graph), of another device, type or shape than at
  // registration.
  void check_gradient() const;

  // .grad stays autograd's own and is cast on its way (compression).
  bool is_cast() const { return type_ != registered_type_; }
  // .grad (or zeros for an undefined one) lies there already, or may be written there.
  bool can_use(Home home);
  // Makes it so, but for the copy that it adds to `copies`, also of what lies there already if
  // `all`; the caller asked can_use() first, or has found neither home free.
  void put(Home home, std::vector<TensorCopy>& copies, bool all);
  // Of what lies in a bucket that goes out: .grad, as it is now, may not be changed any more.
  void note_sent();
  // It was not, as far as its tensor tells: what writes to .grad().data() leaves no trace there.
  bool is_as_sent() const;
  // The result lies there: makes it .grad, but for the same. `used`: by any rank, otherwise .grad
  // stays as it is.
  void take_result(Home home, bool used, std::vector<TensorCopy>& copies);

 private:
  // .grad, without what grad() checks first each time: whether the parameter is a leaf.
  at::Tensor& gradient() const { return parameter_.mutable_grad(); }
  bool lies_at(Home home) const;
  const at::Tensor& view(Home home);
  at::Tensor make_view(Home home);
  bool has_room(const at::Tensor& gradient) const;
  uint32_t version() const;
  bool is_intact(const at::Tensor& view, Home home) const;
  std::byte* address(Home home) const { return memory_[static_cast<size_t>(home)].address; }

  const std::string name_;
  const at::Tensor parameter_;
  const at::ScalarType type_;             // as exchanged
  const at::ScalarType registered_type_;  // of the parameter
  const std::vector<int64_t> sizes_, strides_;
  const GradientMutex mutex_;
  const bool streamed_;
  Memory memory_[2];         // by Home
  at::Storage storages_[2];  // the same; made when first needed, kept: of all who see it
  at::Tensor views_[2];      // one on each
  // Weak: holds no gradient, and keeps its address from being another one's.
  c10::weak_intrusive_ptr<at::TensorImpl, c10::UndefinedTensorImpl> sent_{
      at::Tensor().getIntrusivePtr()};
  uint32_t sent_version_ = 0;
};

}  // namespace hvd
