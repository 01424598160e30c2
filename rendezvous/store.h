// Small values that ranks exchange while they meet: bytes in, bytes out, scoped by epoch.
//
// Limits: a key 256 bytes, a value 64 KiB, 65,536 keys per epoch; beyond them kInvalidArgument. Any
// thread may call.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/deadline.h"

namespace hvd {

using Bytes = std::vector<std::byte>;

class Store {
 public:
  virtual ~Store() = default;

  // Setting a key again replaces its value.
  virtual void set(const std::string& key, Bytes value) = 0;
  // Waits until the key is set. Throws kTimeout naming the key and the ranks that have not reached
  // the Store since.
  virtual Bytes get(const std::string& key, Deadline deadline) = 0;
  virtual void wait(std::span<const std::string> keys, Deadline deadline) = 0;
  // Adds to a counter that starts at 0; returns the sum.
  virtual int64_t add(const std::string& key, int64_t amount) = 0;
};

}  // namespace hvd
