// The two formats.
#include "examples/mnist_lines.h"

#include <cstdio>

std::string train_line(int epoch, int64_t done, int64_t total, double percent, double loss) {
  char text[160];
  std::snprintf(text, sizeof text, "Train Epoch: %d [%lld/%lld (%.0f%%)]\tLoss: %.6f", epoch,
                static_cast<long long>(done), static_cast<long long>(total), percent, loss);
  return text;
}

std::string test_line(double loss, double accuracy) {
  char text[160];
  std::snprintf(text, sizeof text, "\nTest set: Average loss: %.4f, Accuracy: %.2f%%\n", loss,
                100 * accuracy);
  return text;
}
