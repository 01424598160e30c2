// In which type a gradient travels.
#pragma once

#include <ATen/core/Tensor.h>

#include "hvd/torch_types.h"

namespace hvd {

// fp16 takes every floating type to float16 and back, as in Horovod; other types travel as they
// are.
at::ScalarType exchanged_type(at::ScalarType type, Compression compression);

const char* name_of(Compression compression);

}  // namespace hvd
