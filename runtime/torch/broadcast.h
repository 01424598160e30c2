// One rank's parameters and optimizer state to all ranks.
//
// Collectives of the init thread.
#pragma once

#include <torch/optim/optimizer.h>

#include "runtime/engine/engine.h"
#include "runtime/torch/buckets.h"

namespace hvd {

void broadcast_tensors(Engine& engine, const NamedTensors& tensors, int root);

// Options of the groups and all state; what root has none of is dropped elsewhere. Throws
// kUnsupported for other optimizers than Adagrad, Adam, AdamW, RMSprop and SGD; kInvalidArgument on
// every rank when their kind, groups or parameters' types and shapes differ, with where.
void broadcast_optimizer(Engine& engine, torch::optim::Optimizer& optimizer, int root);

}  // namespace hvd
