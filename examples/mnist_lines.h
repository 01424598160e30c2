// The lines that Horovod's pytorch_mnist prints, byte for byte.
#pragma once

#include <cstdint>
#include <string>

// `done` of `total` samples of this rank's epoch, without a newline.
std::string train_line(int epoch, int64_t done, int64_t total, double percent, double loss);
// Begins and ends with a newline of its own. `accuracy` between 0 and 1.
std::string test_line(double loss, double accuracy);
