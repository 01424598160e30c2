// From IDX files to tensors.
#include "examples/digits.h"

#include <torch/nn/functional/upsampling.h>

#include <stdexcept>

#include "examples/idx.h"

namespace {

constexpr int64_t kSide = 28;

// Subtracted from and divided into grey levels between 0 and 1.
struct Scale {
  double mean, deviation;
};
constexpr Scale kMnist = {0.1307, 0.3081};  // as Horovod's example has them
// For the small set (mean 0.3, deviation 0.37), with more contrast. Chosen, with bilinear resizing,
// by data/digits/choose_scale.py among nearest and bilinear and deviations from 0.37 down to 0.035:
// by fifths of the training images that the others had not seen. The test images had no part in it.
constexpr Scale kSmall = {0.3, 0.05};

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
  if (images.bytes.empty()) {
    throw std::runtime_error(images_file + ": " + std::to_string(images.sizes[0]) + " images of " +
                             std::to_string(images.sizes[1]) + " x " +
                             std::to_string(images.sizes[2]) + " pixels at offset 4");
  }
  if (images.sizes[0] != labels.sizes[0]) {
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
  const bool small = digits.images.size(2) != kSide || digits.images.size(3) != kSide;
  if (small) {
    namespace F = torch::nn::functional;
    digits.images = F::interpolate(digits.images, F::InterpolateFuncOptions()
                                                      .size(std::vector<int64_t>{kSide, kSide})
                                                      .mode(torch::kBilinear)
                                                      .align_corners(false));
  }
  const Scale scale = small ? kSmall : kMnist;
  digits.images.sub_(scale.mean).div_(scale.deviation);
  digits.targets = to_tensor(labels).to(torch::kLong);
  return digits;
}

std::string default_digits_directory() { return HVD_DIGITS_DIR; }
