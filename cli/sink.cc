#include "cli/sink.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
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

// A blocking write to a pipe, socket or terminal returns when all of it is taken. In pieces for
// which there is room, a slow reader is seen to read.
size_t piece_bytes(int fd, bool regular) {
  if (regular) return kPieceBytes;
  const int room = fcntl(fd, F_GETPIPE_SZ);
  int unread = 0;
  if (room < 0 || ioctl(fd, FIONREAD, &unread) != 0) return kPageBytes;
  return std::clamp(size_t(std::max(room - unread, 0)), kPageBytes, kPieceBytes);
}

bool is_regular(int fd) {
  struct stat file{};
  return fstat(fd, &file) == 0 && S_ISREG(file.st_mode);
}

// Bytes that a pipe, socket or terminal holds for its reader; 0 of anything else.
int held_bytes(int fd) {
  int bytes = 0;
  if (fd < 0) return 0;
  if (fcntl(fd, F_GETPIPE_SZ) >= 0) return ioctl(fd, FIONREAD, &bytes) == 0 ? bytes : 0;
  return ioctl(fd, TIOCOUTQ, &bytes) == 0 ? bytes : 0;
}

// Of the line that the first `done` bytes have begun.
size_t end_of_line(const std::string& bytes, size_t done) {
  if (done == 0 || bytes[done - 1] == '\n') return done;
  const size_t newline = bytes.find('\n', done);
  return newline == bytes.npos ? bytes.size() : newline + 1;
}

}  // namespace

// Returns errno, 0 when all is written that is wanted.
int Sink::write_all(const Target& target, const std::string& bytes) {
  size_t done = 0, end = bytes.size();
  while (done < end) {
    if (cut_.exchange(false, std::memory_order_relaxed))
      if ((end = end_of_line(bytes, done)) == done) break;
    const ssize_t n = write(target.fd, bytes.data() + done,
                            std::min(piece_bytes(target.fd, target.regular), end - done));
    if (n >= 0) {
      done += size_t(n);
      done_.store(done, std::memory_order_relaxed);
      taken_.fetch_add(size_t(n), std::memory_order_relaxed);
    } else if (errno == EAGAIN) {  // somebody else made the shared description non-blocking
      pollfd one{target.fd, POLLOUT, 0};
      poll(&one, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

Sink::Sink(std::string name, std::vector<int> fds, size_t queue_bytes_max)
    : name_(std::move(name)), queue_bytes_max_(queue_bytes_max) {
  for (int fd : fds) targets_.push_back({fd, is_regular(fd)});
}

Sink::~Sink() = default;

void Sink::push(size_t target, std::string block, bool kept) {
  MutexLock lock(mutex_);
  if (targets_[target].error != 0 || given_up_) return note_lost(target, block.size());
  queued_bytes_ += block.size();
  queue_.push_back({target, kept, std::move(block)});
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

void Sink::note_lost(size_t target, size_t bytes) {
  (targets_[target].error != 0 ? failed_bytes_ : unread_bytes_) += int64_t(bytes);
}

void Sink::drop() {
  MutexLock lock(mutex_);
  std::erase_if(queue_, [this](const Block& block) NO_THREAD_SAFETY_ANALYSIS {
    if (block.kept) return false;
    queued_bytes_ -= block.bytes.size();
    note_lost(block.target, block.bytes.size());
    return true;
  });
  if (writing_fd_ >= 0 && !writing_kept_) cut_.store(true, std::memory_order_relaxed);
  wake_.wake();
}

void Sink::give_up() {
  MutexLock lock(mutex_);
  given_up_ = true;
  for (const Block& block : queue_) note_lost(block.target, block.bytes.size());
  queued_bytes_ = 0;
  queue_.clear();
  wake_.wake();
}

bool Sink::takes() {
  MutexLock lock(mutex_);
  const uint64_t taken = taken_.load(std::memory_order_relaxed);
  const int held = held_bytes(writing_fd_);
  const bool moved = std::exchange(taken_seen_, taken) != taken;
  return (std::exchange(held_seen_, held) != held) || moved || queued_bytes_ == 0;
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
  const int64_t unread = unread_bytes();
  MutexLock lock(mutex_);
  return failed_bytes_ + unread;
}

int64_t Sink::unread_bytes() const {
  MutexLock lock(mutex_);
  return unread_bytes_ + (given_up_ ? int64_t(writing_bytes_ - done_) : 0);
}

void Sink::written(Block block, int error) {
  Target& target = targets_[block.target];
  if (error != 0 && target.error == 0) target.error = error;
  note_lost(block.target, block.bytes.size() - done_);
  writing_bytes_ = done_ = 0;
  writing_fd_ = -1;
  cut_.store(false, std::memory_order_relaxed);
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
    writing_fd_ = target.fd;
    writing_kept_ = block.kept;
    lock.unlock();
    const int error = target.error != 0 ? target.error : write_all(target, block.bytes);
    lock.lock();
    written(std::move(block), error);
  }
}

}  // namespace hvd
