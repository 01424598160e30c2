// From IDX files to tensors.
#include "examples/digits.h"

#include <torch/nn/functional/upsampling.h>

#include <stdexcept>

#include "examples/idx.h"

namespace {

constexpr int64_t kSide = 28;
constexpr double kMean = 0.1307, kDeviation = 0.3081;  // of MNIST, as Horovod's example has them

torch::Tensor to_tensor(IdxArray& array) {
  std::vector<int64_t> sizes(array.sizes.begin(), array.sizes.end());
  return torch::from_blob(array.bytes.data(), sizes, torch::kUInt8).clone();
}

}  // namespace

Digits load_digits(const std::string& directory, Part part) {
  const std::string prefix = directory + (part == Part::kTraining ? "/train" : "/t10k");
  const std::string images_file = prefix + "-images-idx3-ubyte";
  IdxArray images = read_idx(images_file, 3);
  IdxArray labels = read_idx(prefix + "-labels-idx1-ubyte", 1);
  if (images.sizes[0] != labels.sizes[0] || images.bytes.empty()) {
    throw std::runtime_error(images_file + ": " + std::to_string(images.sizes[0]) + " images but " +
                             std::to_string(labels.sizes[0]) + " labels at offset 4");
  }
  for (size_t i = 0; i < labels.bytes.size(); ++i) {
    if (labels.bytes[i] > 9)
      throw std::runtime_error(prefix + "-labels-idx1-ubyte: label " +
                               std::to_string(labels.bytes[i]) + " is no digit at offset " +
                               std::to_string(8 + i));
  }
  torch::NoGradGuard no_grad;
  Digits digits;
  digits.images = to_tensor(images).unsqueeze(1).to(torch::kFloat).div_(255);
  if (digits.images.size(2) != kSide || digits.images.size(3) != kSide) {
    namespace F = torch::nn::functional;
    digits.images = F::interpolate(digits.images, F::InterpolateFuncOptions()
                                                      .size(std::vector<int64_t>{kSide, kSide})
                                                      .mode(torch::kBilinear)
                                                      .align_corners(false));
  }
  digits.images.sub_(kMean).div_(kDeviation);
  digits.targets = to_tensor(labels).to(torch::kLong);
  return digits;
}

std::string default_digits_directory() { return HVD_DIGITS_DIR; }
