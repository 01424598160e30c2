#include "cli/sink.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "runtime/base/start_thread.h"

namespace hvd {
namespace {

constexpr size_t kKeptBlocksMax = 4;

constexpr size_t kPieceBytes = 64 << 10;
constexpr size_t kPageBytes = 4096;  // what a full pipe takes in next

// A blocking write to a pipe returns when all of it is taken. In pieces for which there is room, a
// slow reader is seen to read.
size_t piece_bytes(int fd) {
  const int room = fcntl(fd, F_GETPIPE_SZ);
  int unread = 0;
  if (room < 0 || ioctl(fd, FIONREAD, &unread) != 0) return kPieceBytes;
  return std::clamp(size_t(std::max(room - unread, 0)), kPageBytes, kPieceBytes);
}

}  // namespace

// Returns errno, 0 when all is written.
int Sink::write_all(int fd, const std::string& bytes) {
  for (size_t done = 0; done < bytes.size(); done_.store(done, std::memory_order_relaxed)) {
    const ssize_t n =
        write(fd, bytes.data() + done, std::min(piece_bytes(fd), bytes.size() - done));
    if (n >= 0) {
      done += size_t(n);
      taken_.store(Clock::now(), std::memory_order_relaxed);
    } else if (errno == EAGAIN) {  // somebody else made the shared description non-blocking
      pollfd one{fd, POLLOUT, 0};
      poll(&one, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

Sink::Sink(std::string name, std::vector<int> fds, size_t queue_bytes_max)
    : name_(std::move(name)), queue_bytes_max_(queue_bytes_max) {
  for (int fd : fds) targets_.push_back({fd});
}

Sink::~Sink() = default;

void Sink::push(size_t target, std::string block) {
  MutexLock lock(mutex_);
  if (targets_[target].error != 0 || given_up_) {
    lost_bytes_ += int64_t(block.size());
    return;
  }
  if (queued_bytes_ == 0) busy_since_ = Clock::now();
  queued_bytes_ += block.size();
  queue_.push_back({target, std::move(block)});
  if (!thread_.joinable())
    thread_ = start_thread("a writer's", [this](const std::stop_token& stop) { run(stop); });
  changed_.notify_one();
}

std::string Sink::empty_block() {
  MutexLock lock(mutex_);
  if (used_.empty()) return {};
  std::string block = std::move(used_.back());
  used_.pop_back();
  block.clear();
  return block;
}

void Sink::give_up(TimePoint since, bool only_still) {
  MutexLock lock(mutex_);
  if (queued_bytes_ == 0 || busy_since_ > since) return;
  if (only_still && taken_.load(std::memory_order_relaxed) > since) return;
  given_up_ = true;
  lost_bytes_ += int64_t(queued_bytes_ - writing_bytes_);
  queued_bytes_ = 0;
  queue_.clear();
  wake_.wake();
}

bool Sink::full() {
  MutexLock lock(mutex_);
  const bool full = queued_bytes_ >= queue_bytes_max_;
  full_seen_ |= full;
  return full;
}

bool Sink::idle() const {
  MutexLock lock(mutex_);
  return queued_bytes_ == 0;
}

int Sink::error(size_t target) const {
  MutexLock lock(mutex_);
  return targets_[target].error;
}

int64_t Sink::lost_bytes() const {
  MutexLock lock(mutex_);
  return lost_bytes_ + (given_up_ ? int64_t(writing_bytes_ - done_) : 0);
}

void Sink::written(Block block, int error) {
  Target& target = targets_[block.target];
  if (error != 0) {
    if (target.error == 0) target.error = error;
    lost_bytes_ += int64_t(block.bytes.size() - done_);
  }
  writing_bytes_ = done_ = 0;
  if (given_up_) return;
  queued_bytes_ -= block.bytes.size();
  if (error == 0 && used_.size() < kKeptBlocksMax) used_.push_back(std::move(block.bytes));
  bool wake = error != 0 || queued_bytes_ == 0;
  if (full_seen_ && queued_bytes_ <= queue_bytes_max_ / 2) {
    full_seen_ = false;
    wake = true;
  }
  if (wake) wake_.wake();
}

// What is queued when the owner goes is still written.
void Sink::run(const std::stop_token& stop) NO_THREAD_SAFETY_ANALYSIS {
  pthread_setname_np(pthread_self(), name_.c_str());
  std::unique_lock<Mutex> lock(mutex_);
  while (
      changed_.wait(lock, stop, [this]() NO_THREAD_SAFETY_ANALYSIS { return !queue_.empty(); })) {
    Block block = std::move(queue_.front());
    queue_.pop_front();
    const Target target = targets_[block.target];
    writing_bytes_ = block.bytes.size();
    lock.unlock();
    const int error = target.error != 0 ? target.error : write_all(target.fd, block.bytes);
    lock.lock();
    written(std::move(block), error);
  }
}

}  // namespace hvd
