// Handwritten digits for the examples: MNIST, or the small real set that comes with the project.
#pragma once

#include <torch/types.h>

#include <string>

struct Digits {
  torch::Tensor images;   // float32 [count, 1, 28, 28], normalised
  torch::Tensor targets;  // int64 [count]
};

enum class Part { kTraining, kTest };

// Reads the part's two IDX files from `directory`; images of another size are resized to 28 x 28.
// Throws std::runtime_error naming the file.
Digits load_digits(const std::string& directory, Part part);

// The directory used when the user names none: the project's own, where it was built.
std::string default_digits_directory();
