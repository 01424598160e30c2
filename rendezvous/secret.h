// A few secret bytes: on pages of their own, in no core dump and no forked child, wiped when done.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

namespace hvd {

class Secret {
 public:
  Secret() = default;
  explicit Secret(std::string_view bytes) : size_(bytes.size()) {
    if (size_ == 0) return;
    void* pages = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    // Each as far as the kernel and the limits go: none of them is what keeps the bytes secret.
    madvise(pages, size_, MADV_DONTDUMP);
    madvise(pages, size_, MADV_WIPEONFORK);
    mlock(pages, size_);
    bytes_ = static_cast<char*>(pages);
    std::memcpy(bytes_, bytes.data(), size_);
  }
  Secret(Secret&& other) noexcept
      : bytes_(std::exchange(other.bytes_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Secret& operator=(Secret&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Secret() {
    if (bytes_ == nullptr) return;
    explicit_bzero(bytes_, size_);
    munmap(bytes_, size_);
  }

  std::string_view view() const { return {bytes_, size_}; }
  bool empty() const { return size_ == 0; }

 private:
  char* bytes_ = nullptr;
  size_t size_ = 0;
};

}  // namespace hvd
