// What both ends of the control stream share: messages in, messages out one at a time, and a
// descriptor that wakes the owner's loop.
//
// The owner's loop calls send(), send_if_idle(), finish() and take(); the stream's own thread calls
// the rest. `Stream` is whatever offers Read and Write as gRPC's asynchronous streams do; each
// start of one is later answered by the tag it names.
#pragma once

#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"

namespace hvd {

// What may wait to be read by a peer: more than all ranks of a host ask the Store for at once.
inline constexpr size_t kUnreadBytesMax = 128u << 20;

template <typename In>
struct Received {
  std::vector<In> messages;
  bool closed = false;  // the stream is over: finished, or the peer is gone
};

template <typename Stream, typename Out, typename In>
class StreamPump {
 public:
  struct Tags {
    void* read;
    void* written;
  };
  // `wake` is called with a message or the end at hand; `end` starts the end of this side, after
  // the last message.
  StreamPump(Tags tags, std::function<void()> wake, std::function<void(Stream*)> end)
      : tags_(tags), wake_(std::move(wake)), end_(std::move(end)) {}

  Received<In> take() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    Received<In> received{std::exchange(inbox_, {}), closed_};
    inbox_bytes_ = 0;
    if (std::exchange(full_, false)) read_next();
    return received;
  }

  // False: dropped, since so much waits that the peer cannot be reading.
  bool send(const Out& message) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (closed_) return true;
    const size_t bytes = bytes_of(message);
    if (outbox_bytes_ + bytes > kUnreadBytesMax) return false;
    outbox_bytes_ += bytes;
    outbox_.push_back(message);
    write_next();
    return true;
  }

  // For what is worth nothing late: dropped while anything waits.
  void send_if_idle(const Out& message) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (closed_ || writing_ || !outbox_.empty()) return;
    outbox_bytes_ += bytes_of(message);
    outbox_.push_back(message);
    write_next();
  }

  void finish() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (closed_) return;
    finishing_ = true;
    write_next();
  }

  void started(Stream* stream) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    stream_ = stream;
    read_next();
    write_next();
  }

  // False: nothing more will come.
  bool received(bool ok) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!ok || stream_ == nullptr) return false;
    inbox_bytes_ += incoming_.ByteSizeLong();
    inbox_.push_back(std::move(incoming_));
    incoming_ = In();
    full_ = inbox_.size() >= kInboxMessagesMax || inbox_bytes_ >= kInboxBytesMax;
    if (!full_) read_next();
    wake_();
    return true;
  }

  void written(bool ok) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    writing_ = false;
    if (!ok) drop_outbox();
    write_next();
  }

  // Nothing more comes in; what waits to go out is dropped, a finish() that was asked for still
  // happens.
  void close() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    closed_ = true;
    drop_outbox();
    wake_();
  }

  // The same, and the stream must not be touched again.
  void abandon() EXCLUDES(mutex_) {
    close();
    MutexLock lock(mutex_);
    stream_ = nullptr;
  }

 private:
  // What the owner has not taken. A peer that says more waits, in the end in its own send().
  static constexpr size_t kInboxMessagesMax = 1024;
  static constexpr size_t kInboxBytesMax = 8 << 20;

  static size_t bytes_of(const Out& message) { return sizeof(Out) + message.ByteSizeLong(); }
  void drop_outbox() REQUIRES(mutex_) {
    outbox_.clear();
    outbox_bytes_ = 0;
  }
  void read_next() REQUIRES(mutex_) {
    if (stream_ != nullptr) stream_->Read(&incoming_, tags_.read);
  }
  void write_next() REQUIRES(mutex_) {
    if (stream_ == nullptr || writing_) return;
    if (!outbox_.empty()) {
      outgoing_ = std::move(outbox_.front());
      outbox_.pop_front();
      outbox_bytes_ -= bytes_of(outgoing_);
      writing_ = true;
      stream_->Write(outgoing_, tags_.written);
    } else if (finishing_) {
      // Set for good: nothing may follow, and gRPC aborts on an end that meets an unfinished write.
      writing_ = true;
      end_(stream_);
    }
  }

  const Tags tags_;
  const std::function<void()> wake_;
  const std::function<void(Stream*)> end_;
  Mutex mutex_;
  Stream* stream_ GUARDED_BY(mutex_) = nullptr;
  std::vector<In> inbox_ GUARDED_BY(mutex_);
  size_t inbox_bytes_ GUARDED_BY(mutex_) = 0;
  bool full_ GUARDED_BY(mutex_) = false;  // the next read waits for take()
  std::deque<Out> outbox_ GUARDED_BY(mutex_);
  size_t outbox_bytes_ GUARDED_BY(mutex_) = 0;
  In incoming_;
  Out outgoing_;
  bool writing_ GUARDED_BY(mutex_) = false;
  bool finishing_ GUARDED_BY(mutex_) = false;
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace hvd
