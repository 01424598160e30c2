// Optimizers travel as torch's own archive of them: options and state of every kind, exactly.
#include "runtime/torch/broadcast.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

#include "runtime/engine/layout_difference.h"
#include "runtime/engine/log_words.h"
#include "runtime/torch/element_type.h"
#include "runtime/torch/tensor_collective.h"

namespace hvd {
namespace {

using torch::optim::Optimizer;

constexpr const char* kTitle = "broadcast_optimizer_state: ";

// Nothing: it cannot be sent.
std::optional<std::string> sendable_kind_of(const Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::Adagrad*>(&optimizer)) return "Adagrad";
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer)) return "AdamW";
  if (dynamic_cast<const torch::optim::Adam*>(&optimizer)) return "Adam";
  if (dynamic_cast<const torch::optim::RMSprop*>(&optimizer)) return "RMSprop";
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer)) return "SGD";
  return std::nullopt;
}

std::string kind_of(const Optimizer& optimizer) {
  const bool lbfgs = dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr;
  return sendable_kind_of(optimizer).value_or(lbfgs ? "LBFGS" : "another optimizer");
}

// "SGD with groups of 8 2 parameters", a line for each and an empty one: what has to agree. State
// has their shapes; that of a rank whose parameters have others would fail in a later step.
std::string summary_of(const Optimizer& optimizer) {
  std::string text = kind_of(optimizer) + " with groups of", parameters;
  for (const auto& group : optimizer.param_groups()) {
    text += " " + std::to_string(group.params().size());
    for (const at::Tensor& parameter : group.params()) parameters += "\n" + describe(parameter);
  }
  return text + " parameters" + parameters + "\n\n";
}

at::Tensor broadcast_in_place(Engine& engine, const at::Tensor& tensor, int root,
                              const std::string& name, const std::string& agreed = "") {
  return TensorCollective::run(
      engine,
      TensorCollective::broadcast(tensor, TensorCollective::Place::kInPlace, root, name, agreed));
}

at::Tensor bytes_of(std::string_view text) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(tensor.data_ptr(), text.data(), text.size());
  return tensor;
}

// Throws on every rank, the same, where a rank's is another than rank 0's.
void compare_summaries(Engine& engine, const std::string& name, const std::string& mine) {
  const auto gather = [&](const at::Tensor& part) {
    return TensorCollective::run(engine, TensorCollective::allgather(part, name));
  };
  const at::Tensor sizes = gather(at::tensor({static_cast<int64_t>(mine.size())}, at::kLong));
  const at::Tensor bytes = gather(bytes_of(mine));
  std::string_view rest(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
  RankLayout first;
  for (int rank = 0; rank < engine.world().size; ++rank) {
    const auto size = static_cast<size_t>(sizes[rank].item<int64_t>());
    const RankLayout one{rank, std::string(rest.substr(0, size))};
    rest.remove_prefix(size);
    if (rank == 0) first = one;
    if (one.text != first.text)
      throw Error(ErrorCode::kInvalidArgument,
                  std::string(kTitle) +
                      "the optimizers differ between ranks: " + layout_difference(first, one) +
                      "; build the same model and optimizer on all ranks");
  }
}

at::Tensor save(const Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return bytes_of(stream.str());
}

// State lies where the parameters do, which may be another device than the root's.
at::Device device_of(const Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params()) return parameter.device();
  return at::kCPU;
}

void load(Optimizer& optimizer, const at::Tensor& bytes) {
  torch::serialize::InputArchive archive;
  archive.load_from(static_cast<const char*>(bytes.data_ptr()), bytes.nbytes(),
                    device_of(optimizer));
  optimizer.state().clear();
  optimizer.load(archive);
}

}  // namespace

void broadcast_tensors(Engine& engine, const NamedTensors& tensors, int root) {
  at::NoGradGuard no_grad;
  const auto count =
      std::ranges::count_if(tensors, [](const auto& t) { return t.second.defined(); });
  // Of lists of different length some would part only at the call behind this one, or wait there.
  broadcast_in_place(engine, at::zeros({1}, at::kByte), root, "parameters",
                     "of a list of " + std::to_string(count) + " tensors");
  for (const auto& [name, tensor] : tensors)
    if (tensor.defined())
      broadcast_in_place(engine, tensor, root,
                         std::string(head_of(name, LogWords::kNameBytes - 1)));
}

void broadcast_optimizer(Engine& engine, Optimizer& optimizer, int root) {
  const std::string name = "optimizer state";
  at::NoGradGuard no_grad;
  compare_summaries(engine, name, summary_of(optimizer));
  if (!sendable_kind_of(optimizer))
    throw Error(ErrorCode::kUnsupported, kTitle + kind_of(optimizer) +
                                             " is not supported; Adagrad, Adam, AdamW, RMSprop "
                                             "and SGD are");
  broadcast_in_place(engine, at::zeros({1}, at::kByte), root, name);  // that all name the same
  const bool is_root = engine.world().rank == root;
  at::Tensor mine = bytes_of("");
  std::exception_ptr unsaved;
  try {
    if (is_root) mine = save(optimizer);
  } catch (...) {
    unsaved = std::current_exception();
  }
  // Of a gathered result who has no room for it is told alone, and nobody waits for that one.
  const at::Tensor bytes = TensorCollective::run(
      engine, TensorCollective::allgather(mine, name, TensorCollective::Place::kLent));
  if (unsaved) std::rethrow_exception(unsaved);
  if (bytes.numel() == 0)
    throw Error(ErrorCode::kUnavailable,
                kTitle + ("rank " + std::to_string(root)) + " could not save its optimizer");
  if (!is_root) load(optimizer, bytes);
}

}  // namespace hvd
