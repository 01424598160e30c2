// The arithmetic of reduce.h, compiled once per instruction set.
//
// Included by one source per instruction set, each compiled with its own flags, so nothing here may
// end up in a function that another source shares: plain types, no standard containers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hvd/types.h"

namespace hvd {

struct ReduceArguments {
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1, postscale = 1;
  double prescale_first = 1;  // of sources[0]; of the others: prescale
  size_t inputs = 0;          // that Average divides by
  const std::byte* const* sources = nullptr;
  size_t source_count = 0;
  std::byte* const* destinations = nullptr;
  size_t destination_count = 0;
  size_t count = 0;         // elements
  bool fetch_ahead = true;  // asks for lines before their turn
};

void reduce_baseline(const ReduceArguments& arguments);
#if defined(__x86_64__)
void reduce_avx2(const ReduceArguments& arguments);
void reduce_avx512(const ReduceArguments& arguments);
#endif

}  // namespace hvd
