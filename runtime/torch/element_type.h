// LibTorch's element types in our words, and tensors described for error texts.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "hvd/types.h"

namespace hvd {

// The element type as collectives know it. Throws kUnsupported for the others (int16, complex,
// quantized, …): "`subject` has elements of type …".
DataType data_type_of(at::ScalarType type, const std::string& subject);
at::ScalarType scalar_type_of(DataType type);

// "float32 [64, 10]"
std::string describe(const at::Tensor& tensor);
std::string describe(at::ScalarType type, at::IntArrayRef sizes);

}  // namespace hvd
