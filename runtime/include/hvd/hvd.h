// hvd: collectives for data-parallel training. The torch-free part of the public API.
//
//   hvd::init();
//   std::vector<float> x(1'000'000, float(hvd::rank()));
//   hvd::allreduce_(std::span(x), {.op = hvd::ReduceOp::kSum});
//
// Started by hvdrun, a program is one of size() ranks; started alone, it is a world of one where
// every call works. Results are equal, bit for bit, on every rank. Errors are hvd::Error; after
// hvd::CommFailure the world is broken for good.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>
