// The printed lines against what Horovod's pytorch_mnist prints for the same numbers.
#include "examples/mnist_lines.h"

#include "tests/support/catch.h"

TEST_CASE("mnist_lines: the training line, byte for byte") {
  CHECK(train_line(1, 0, 719, 0, 2.3025851) == "Train Epoch: 1 [0/719 (0%)]\tLoss: 2.302585");
  CHECK(train_line(60, 640, 719, 100.0 * 10 / 12, 0.0123456) ==
        "Train Epoch: 60 [640/719 (83%)]\tLoss: 0.012346");
  // Python and C both round halves to even.
  CHECK(train_line(2, 64, 128, 12.5, 1) == "Train Epoch: 2 [64/128 (12%)]\tLoss: 1.000000");
}

TEST_CASE("mnist_lines: the test line, byte for byte") {
  CHECK(test_line(0.12345, 0.975) == "\nTest set: Average loss: 0.1235, Accuracy: 97.50%\n");
  CHECK(test_line(0, 1) == "\nTest set: Average loss: 0.0000, Accuracy: 100.00%\n");
}
