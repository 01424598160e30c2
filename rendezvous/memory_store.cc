#include "rendezvous/memory_store.h"

#include <cstring>

#include "runtime/base/error.h"
#include "runtime/base/utf8.h"

namespace hvd {

StoreTable::Value& StoreTable::at(const std::string& key) {
  if (key.empty() || key.size() > kKeyBytesMax) {
    throw Error(ErrorCode::kInvalidArgument,
                "a key of the store has " + std::to_string(key.size()) +
                    " bytes; use 1 to 256 (\"" + std::string(head_of(key, 40)) + "\")");
  }
  const auto found = values_.find(key);
  if (found != values_.end()) return found->second;
  if (values_.size() >= kKeysMax) {
    throw Error(ErrorCode::kInvalidArgument,
                "the store holds 65536 keys already; \"" + key + "\" has no room");
  }
  return values_[key];
}

void StoreTable::set(const std::string& key, Bytes value) {
  if (value.size() > kValueBytesMax) {
    throw Error(ErrorCode::kInvalidArgument,
                "the value of \"" + key + "\" has " + std::to_string(value.size()) +
                    " bytes; the store takes 65536, use broadcast() for more");
  }
  const Bytes* old = find(key);
  const size_t others = bytes_ - (old != nullptr ? old->size() : 0);
  if (others + value.size() > kAllBytesMax) {
    throw Error(ErrorCode::kInvalidArgument,
                "the store holds 256 MiB already; \"" + key + "\" has no room, use broadcast()");
  }
  const size_t bytes = value.size();
  at(key) = {std::move(value), std::nullopt};
  bytes_ = others + bytes;
}

int64_t StoreTable::add(const std::string& key, int64_t amount) {
  const auto found = values_.find(key);
  if (found != values_.end() && !found->second.counter) {
    throw Error(ErrorCode::kInvalidArgument,
                "\"" + key + "\" in the store is a value, not a counter to add to");
  }
  Value& value = at(key);
  // Wraps, as two's complement does: a counter never traps.
  value.counter = static_cast<int64_t>(static_cast<uint64_t>(value.counter.value_or(0)) +
                                       static_cast<uint64_t>(amount));
  const std::string text = std::to_string(*value.counter);
  bytes_ += text.size() - value.bytes.size();
  value.bytes.resize(text.size());
  std::memcpy(value.bytes.data(), text.data(), text.size());
  return *value.counter;
}

const Bytes* StoreTable::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second.bytes;
}

void MemoryStore::set(const std::string& key, Bytes value) {
  {
    MutexLock lock(mutex_);
    table_.set(key, std::move(value));
  }
  changed_.notify_all();
}

int64_t MemoryStore::add(const std::string& key, int64_t amount) {
  int64_t sum;
  {
    MutexLock lock(mutex_);
    sum = table_.add(key, amount);
  }
  changed_.notify_all();
  return sum;
}

Bytes MemoryStore::get(const std::string& key, Deadline deadline) {
  MutexLock lock(mutex_);
  for (;;) {
    if (const Bytes* value = table_.find(key)) return *value;
    if (deadline.passed()) {
      throw Error(ErrorCode::kTimeout,
                  "nobody has set \"" + key + "\" in the store within the deadline");
    }
    // wait_until(max) overflows in some libraries: a long turn instead.
    const TimePoint turn = Clock::now() + std::chrono::seconds(60);
    changed_.wait_until(mutex_, std::min(deadline.when(), turn));
  }
}

void MemoryStore::wait(std::span<const std::string> keys, Deadline deadline) {
  for (const std::string& key : keys) get(key, deadline);
}

}  // namespace hvd
