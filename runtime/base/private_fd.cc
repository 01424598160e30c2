// Noted without a lock: another thread may be at it when this one forks.
#include "runtime/base/private_fd.h"

#include <unistd.h>

namespace hvd {
namespace {

struct Chunk {
  std::atomic<int> fds[64]{};  // a descriptor plus 1, or 0
  std::atomic<Chunk*> next{nullptr};
};

constinit Chunk first_chunk;

std::atomic<int>& note(int fd) {
  for (Chunk* chunk = &first_chunk;;) {
    for (std::atomic<int>& slot : chunk->fds) {
      int none = 0;
      if (slot.compare_exchange_strong(none, fd + 1)) return slot;
    }
    Chunk* next = chunk->next.load();
    if (next == nullptr) {
      auto* const made = new Chunk;
      if (chunk->next.compare_exchange_strong(next, made))
        next = made;
      else
        delete made;
    }
    chunk = next;
  }
}

}  // namespace

PrivateFd::PrivateFd(UniqueFd fd) : fd_(std::move(fd)) {
  if (fd_) slot_ = &note(fd_.get());
}

// No more noted before it is closed: afterwards the number may be a file's of the program. In a
// forked child, which has closed it, it may be that already.
void PrivateFd::reset() {
  if (slot_ != nullptr && slot_->exchange(0) == 0) fd_.release();
  slot_ = nullptr;
  fd_.reset();
}

void PrivateFd::close_all_in_child() noexcept {
  for (Chunk* chunk = &first_chunk; chunk != nullptr; chunk = chunk->next.load())
    for (std::atomic<int>& slot : chunk->fds)
      if (const int noted = slot.exchange(0); noted != 0) close(noted - 1);
}

}  // namespace hvd
