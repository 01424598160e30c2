// Whether a tensor's elements, and nothing else, lie in memory where its sizes and strides say.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace hvd {

// Throws kUnsupported where they do not, naming the tensor by `title`, and what to do.
void check_plain(const at::Tensor& tensor, const std::string& title);

}  // namespace hvd
