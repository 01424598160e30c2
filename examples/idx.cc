// The IDX header and its bytes, as they are or unpacked by zlib.
#include "examples/idx.h"

#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace {

constexpr uint64_t kBytesMax = uint64_t{1} << 30;
constexpr uint8_t kUnsignedByte = 0x08;

constexpr int kGzip = 15 + 16;  // inflateInit2(): the largest window, a gzip header

// zlib's gzread() does not say that a file ends within the checksum where all data are there.
class Reader {
 public:
  Reader(std::string file, bool compressed)
      : file_(std::move(file)),
        compressed_(compressed),
        stream_(std::fopen(file_.c_str(), "rb"), std::fclose) {
    if (!stream_) throw std::runtime_error(file_ + ": cannot be opened: " + std::strerror(errno));
    if (compressed_ && inflateInit2(&packed_, kGzip) != Z_OK)
      throw std::runtime_error(file_ + ": no memory to unpack it");
  }
  ~Reader() { inflateEnd(&packed_); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  [[noreturn]] void fail(uint64_t offset, const std::string& what) const {
    throw std::runtime_error(file_ + ": " + what + " at offset " + std::to_string(offset) +
                             (compressed_ ? " of the unpacked data" : ""));
  }

  void read(void* to, uint64_t bytes) {
    const uint64_t got = read_some(to, bytes);
    if (got == bytes) return;
    fail(offset_, "the file ends, " + std::to_string(bytes - got) + " bytes are missing");
  }
  uint32_t read_big_endian() {
    uint8_t b[4];
    read(b, sizeof b);
    return uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | b[3];
  }
  void expect_end() {
    uint8_t more;
    if (read_some(&more, 1) != 0) fail(offset_ - 1, "data behind the end of the array");
    if (compressed_ && !whole_) fail(offset_, "the file ends within its checksum");
  }

 private:
  uint64_t read_some(void* to, uint64_t bytes) {
    const uint64_t got = compressed_ ? unpack(to, bytes) : read_file(to, bytes);
    offset_ += got;
    return got;
  }
  uint64_t read_file(void* to, uint64_t bytes) {
    const uint64_t got = std::fread(to, 1, bytes, stream_.get());
    if (got < bytes && std::ferror(stream_.get())) fail(offset_ + got, std::strerror(errno));
    return got;
  }
  // Fewer than asked for: the file, or what is packed in it, ends.
  uint64_t unpack(void* to, uint64_t bytes) {
    packed_.next_out = static_cast<Bytef*>(to);
    packed_.avail_out = static_cast<uInt>(bytes);
    const auto got = [&] { return bytes - packed_.avail_out; };
    while (packed_.avail_out > 0) {
      if (packed_.avail_in == 0) {
        packed_.next_in = input_;
        packed_.avail_in = static_cast<uInt>(read_file(input_, sizeof input_));
        if (packed_.avail_in == 0) break;
      }
      if (whole_) inflateReset(&packed_);  // there is more: a file may be several in a row
      const int code = inflate(&packed_, Z_NO_FLUSH);
      whole_ = code == Z_STREAM_END;
      if (code != Z_OK && !whole_)
        fail(offset_ + got(), packed_.msg != nullptr ? packed_.msg : zError(code));
    }
    return got();
  }

  const std::string file_;
  const bool compressed_;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream_;
  uint64_t offset_ = 0;
  z_stream packed_ = {};
  uint8_t input_[1 << 16];
  bool whole_ = false;  // unpacked to its end, checksum included
};

}  // namespace

IdxArray read_idx(const std::string& file, int dimensions) {
  const bool plain = access(file.c_str(), F_OK) == 0;
  const bool compressed = !plain && access((file + ".gz").c_str(), F_OK) == 0;
  Reader reader(compressed ? file + ".gz" : file, compressed);
  uint8_t magic[4];
  reader.read(magic, sizeof magic);
  if (magic[0] != 0 || magic[1] != 0 || magic[2] != kUnsignedByte || magic[3] != dimensions) {
    char text[128];
    std::snprintf(text, sizeof text, "magic 0x%02x%02x%02x%02x instead of 0x0000%02x%02x", magic[0],
                  magic[1], magic[2], magic[3], kUnsignedByte, static_cast<unsigned>(dimensions));
    reader.fail(0, text);
  }
  IdxArray array;
  uint64_t bytes = 1;
  for (int d = 0; d < dimensions; ++d) {
    array.sizes.push_back(reader.read_big_endian());
    bytes *= array.sizes.back();
    if (bytes > kBytesMax)
      reader.fail(4 + 4 * static_cast<uint64_t>(d), "an array of more than 1 GiB");
  }
  array.bytes.resize(bytes);
  reader.read(array.bytes.data(), bytes);
  reader.expect_end();
  return array;
}
