// A Store in this process's memory, and the table that every Store stands on.
#pragma once

#include <condition_variable>
#include <map>
#include <optional>
#include <string>

#include "rendezvous/store.h"
#include "runtime/base/mutex.h"

namespace hvd {

// Keys, values and counters of one epoch, with the limits of Store. Pure: no lock, no waiting.
class StoreTable {
 public:
  static constexpr size_t kKeyBytesMax = 256;
  static constexpr size_t kValueBytesMax = 64 << 10;
  static constexpr size_t kKeysMax = 65'536;
  static constexpr size_t kAllBytesMax = 256u << 20;  // of values

  // Each throws kInvalidArgument, naming the key and the limit.
  void set(const std::string& key, Bytes value);
  int64_t add(const std::string& key, int64_t amount);
  // A counter reads as its decimal number. Nothing when the key is not set.
  const Bytes* find(const std::string& key) const;

 private:
  struct Value {
    Bytes bytes;
    std::optional<int64_t> counter;
  };
  Value& at(const std::string& key);
  std::map<std::string, Value> values_;
  size_t bytes_ = 0;  // of them
};

// For ranks that are threads of one process, and for a process that is its own world.
class MemoryStore : public Store {
 public:
  void set(const std::string& key, Bytes value) override;
  // The text of a timeout names the key only: who is missing is not known here.
  Bytes get(const std::string& key, Deadline deadline) override;
  void wait(std::span<const std::string> keys, Deadline deadline) override;
  int64_t add(const std::string& key, int64_t amount) override;

 private:
  Mutex mutex_;
  std::condition_variable_any changed_;
  StoreTable table_ GUARDED_BY(mutex_);
};

}  // namespace hvd
