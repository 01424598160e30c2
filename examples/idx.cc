// The IDX header and its bytes, through zlib, which passes plain files on unchanged.
#include "examples/idx.h"

#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace {

constexpr uint64_t kBytesMax = uint64_t{1} << 30;
constexpr uint8_t kUnsignedByte = 0x08;

class Reader {
 public:
  Reader(std::string file, bool compressed)
      : file_(std::move(file)),
        compressed_(compressed),
        stream_(gzopen(file_.c_str(), "rb"), gzclose) {
    if (!stream_) throw std::runtime_error(file_ + ": cannot be opened: " + std::strerror(errno));
  }

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
    // zlib has given all data before it looks at the checksum and the length behind them.
    if (error() == Z_BUF_ERROR) fail(offset_, "the file ends within its checksum");
  }

 private:
  uint64_t read_some(void* to, uint64_t bytes) {
    const int got = gzread(stream_.get(), to, static_cast<unsigned>(bytes));
    const int code = error();
    if (code == Z_ERRNO) fail(offset_, std::strerror(errno));
    if (got < 0 || (code != Z_OK && code != Z_BUF_ERROR)) fail(offset_, zlibs_words());
    offset_ += static_cast<uint64_t>(got);
    return static_cast<uint64_t>(got);
  }
  int error() const {
    int code = Z_OK;
    gzerror(stream_.get(), &code);
    return code;
  }
  // Which begin with the name that it was given.
  std::string zlibs_words() const {
    int code = Z_OK;
    const std::string words = gzerror(stream_.get(), &code);
    return words.starts_with(file_ + ": ") ? words.substr(file_.size() + 2) : words;
  }

  const std::string file_;
  const bool compressed_;
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> stream_;
  uint64_t offset_ = 0;
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
