#include "tests/gpu_check/gradient_copies.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <vector>

#include "hvd/torch.h"

namespace hvd {
namespace {

// 4 MiB of gradients in two buckets and more; sizes after which nothing has to be padded.
constexpr int64_t kWidth = 256;
constexpr int kLayers = 16;
constexpr size_t kBucketBytes = 2 << 20;

struct Copy {
  const std::byte* to = nullptr;
  const std::byte* from = nullptr;
  int operation = 0;  // which of those recorded has made it
};

// Of every thread, while it lives; one at a time.
class CopyRecord {
 public:
  CopyRecord()
      : callback_(at::addGlobalCallback(at::RecordFunctionCallback(&on_operator)
                                            .needsInputs(true)
                                            .scopes({at::RecordScope::FUNCTION}))) {
    copies().clear();
  }
  ~CopyRecord() { at::removeCallback(callback_); }
  CopyRecord(const CopyRecord&) = delete;
  CopyRecord& operator=(const CopyRecord&) = delete;

  static std::vector<Copy> take() {
    const std::lock_guard lock(mutex());
    return copies();
  }

 private:
  static std::mutex& mutex() {
    static std::mutex only;
    return only;
  }
  static std::vector<Copy>& copies() {
    static std::vector<Copy> only;
    return only;
  }
  static std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& function) {
    const auto inputs = function.inputs();
    const std::string_view name = function.name();
    if ((name != "aten::copy_" && name != "hvd::cast") || inputs.size() < 2) return nullptr;
    const std::vector<at::Tensor> to = tensors_of(inputs[0]), from = tensors_of(inputs[1]);
    const std::lock_guard lock(mutex());
    const int operation = copies().empty() ? 0 : copies().back().operation + 1;
    for (size_t k = 0; k < to.size() && k < from.size(); ++k)
      if (address_of(to[k]) != address_of(from[k]))  // what is multiplied in its place is no copy
        copies().push_back({address_of(to[k]), address_of(from[k]), operation});
    return nullptr;
  }
  static std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
    if (value.isTensorList()) return value.toTensorVector();
    return value.isTensor() ? std::vector{value.toTensor()} : std::vector<at::Tensor>{};
  }
  static const std::byte* address_of(const at::Tensor& tensor) {
    return static_cast<const std::byte*>(tensor.const_data_ptr());
  }

  const at::CallbackHandle callback_;
};

class Training {
 public:
  Training(c10::Device device, DistributedOptimizerOptions options)
      : input_(at::ones({8, kWidth}).to(device)) {
    torch::OrderedDict<std::string, at::Tensor> named;
    for (int layer = 0; layer < kLayers; ++layer) {
      add(named, "weight" + std::to_string(layer), at::eye(kWidth), device);
      add(named, "bias" + std::to_string(layer), at::ones({kWidth}), device);
    }
    inner_ = std::make_unique<torch::optim::SGD>(parameters_, torch::optim::SGDOptions(1e-6));
    if (options.bucket_bytes == 0) options.bucket_bytes = kBucketBytes;
    optimizer_ = std::make_unique<DistributedOptimizer>(*inner_, named, options);
  }

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  void step(bool set_to_none) {
    optimizer_->zero_grad(set_to_none);
    at::Tensor x = input_;
    for (size_t i = 0; i < parameters_.size(); i += 2)
      x = at::linear(x, parameters_[i], parameters_[i + 1]);
    x.pow(2).mean().backward();
    optimizer_->step();
  }

 private:
  void add(torch::OrderedDict<std::string, at::Tensor>& named, const std::string& name,
           const at::Tensor& value, c10::Device device) {
    parameters_.push_back(value.to(device).requires_grad_());
    named.insert(name, parameters_.back());
  }

  const at::Tensor input_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<torch::optim::SGD> inner_;
  std::unique_ptr<DistributedOptimizer> optimizer_;
};

// Gradients by where they begin.
using Places = std::map<const std::byte*, size_t>;

Places places_of(const std::vector<at::Tensor>& parameters) {
  Places places;
  for (const at::Tensor& parameter : parameters)
    places[static_cast<const std::byte*>(parameter.grad().const_data_ptr())] =
        parameter.grad().nbytes();
  return places;
}

// Gradients behind which the next one lies: all but a bucket's last, if they are memory of buckets.
size_t neighbours(const Places& places) {
  return static_cast<size_t>(std::ranges::count_if(
      places, [&](const auto& place) { return places.contains(place.first + place.second); }));
}

struct Counts {
  int in = 0, out = 0;
  int most_in = 0;  // of one gradient
  int operations_in = 0;
};

Counts count(const std::vector<Copy>& copies, const Places& places) {
  const auto place_of = [&](const std::byte* address) {
    auto next = places.upper_bound(address);
    if (next == places.begin()) return places.end();
    --next;
    return address < next->first + next->second ? next : places.end();
  };
  Counts counts;
  std::map<const std::byte*, int> in;
  std::set<int> operations;
  for (const Copy& copy : copies) {
    if (place_of(copy.from) != places.end()) ++counts.out;
    const auto to = place_of(copy.to);
    if (to == places.end()) continue;
    ++counts.in;
    counts.most_in = std::max(counts.most_in, ++in[to->first]);
    operations.insert(copy.operation);
  }
  counts.operations_in = static_cast<int>(operations.size());
  return counts;
}

void need(bool condition, const std::string& what) {
  if (!condition) throw Error(ErrorCode::kInternal, what);
}

}  // namespace

std::string check_gradient_copies(c10::Device device, const DistributedOptimizerOptions& options) {
  Training training(device, options);
  for (int step = 0; step < 2; ++step) training.step(true);
  std::vector<Copy> fresh, kept;
  {
    const CopyRecord record;
    training.step(true);
    fresh = CopyRecord::take();
  }
  const Places places = places_of(training.parameters());
  {
    const CopyRecord record;
    training.step(false);
    kept = CopyRecord::take();
  }
  const size_t all = training.parameters().size();
  const Counts first = count(fresh, places), second = count(kept, places);
  const std::string said =
      std::to_string(all) + " gradients: copied in " + std::to_string(first.in) + " by " +
      std::to_string(first.operations_in) + " operations, out " + std::to_string(first.out) +
      "; kept for a step, in " + std::to_string(second.in) + ", out " + std::to_string(second.out);
  need(first.most_in == 1 && first.in == static_cast<int>(all),
       "each gradient should have been copied into its bucket once; " + said);
  need(2 * first.operations_in <= first.in,
       "those of a bucket should have been copied by one operation; " + said);
  need(first.out == 0 && second.out == 0, "gradients were copied out; " + said);
  need(second.in == 0, "gradients that lay in their buckets were copied; " + said);
  need(places.size() == all && 2 * neighbours(places) >= all,
       ".grad is no memory of buckets: " + std::to_string(neighbours(places)) + " of " +
           std::to_string(all) + " gradients have another one behind them");
  need(places_of(training.parameters()) == places, "gradients that were kept have moved");
  return said + "\n";
}

}  // namespace hvd
