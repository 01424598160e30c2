// Reading IDX files: good ones, plain and compressed, and every way to be broken.
#include "examples/idx.h"

#include <zlib.h>

#include <fstream>
#include <random>
#include <stdexcept>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace {

const std::string kHeader("\0\0\x08\x02\0\0\0\x02\0\0\0\x03", 12);  // two rows of three
const std::string kGood = kHeader + "abcdef";

void write(const std::string& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

void write_gzip(const std::string& file, const std::string& bytes) {
  gzFile stream = gzopen(file.c_str(), "wb");
  gzwrite(stream, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(stream);
}

std::string read_whole(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::string error_of(const std::string& file, int dimensions = 2) {
  try {
    read_idx(file, dimensions);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "none";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("idx: reads a plain file and a compressed one") {
  hvd::TemporaryDirectory directory;
  const std::string file = (directory.path() / "images").string();
  write_gzip(file + ".gz", kGood);
  for (int round = 0; round < 2; ++round) {
    const IdxArray array = read_idx(file, 2);
    CHECK(array.sizes == std::vector<uint32_t>{2, 3});
    CHECK(std::string(array.bytes.begin(), array.bytes.end()) == "abcdef");
    write(file, kGood);  // preferred to the compressed one from now on
  }
}

TEST_CASE("idx: a missing file is named") {
  const std::string error = error_of("/nowhere/train-images-idx3-ubyte");
  CHECK(contains(error, "/nowhere/train-images-idx3-ubyte"));
  CHECK(contains(error, "No such file"));
}

TEST_CASE("idx: a file cut anywhere is an error that names the offset") {
  hvd::TemporaryDirectory directory;
  const std::string file = (directory.path() / "cut").string();
  for (size_t length = 0; length < kGood.size(); ++length) {
    write(file, kGood.substr(0, length));
    const std::string error = error_of(file);
    INFO(length << ": " << error);
    CHECK(contains(error, file));
    CHECK(contains(error, "the file ends"));
    CHECK(error.ends_with("at offset " + std::to_string(length)));
  }
}

TEST_CASE("idx: a compressed file cut anywhere is an error that names the offset") {
  hvd::TemporaryDirectory directory;
  const std::string file = (directory.path() / "images").string();
  write_gzip(file + ".gz", kGood);
  const std::string bytes = read_whole(file + ".gz");
  for (size_t length = 0; length < bytes.size(); ++length) {
    write(file + ".gz", bytes.substr(0, length));
    const std::string error = error_of(file);
    INFO(length << ": " << error);
    CHECK(error.starts_with(file + ".gz: the file ends"));
    if (length > 1) CHECK(error.ends_with(" of the unpacked data"));  // else it could be any file
    if (length + 8 >= bytes.size())
      CHECK(error ==
            file + ".gz: the file ends within its checksum at offset 18 of the unpacked data");
  }
}

TEST_CASE(
    "idx: a large compressed file cut within its checksum is an error that names the offset") {
  hvd::TemporaryDirectory directory;
  const std::string file = (directory.path() / "images").string();
  // Of some hundred kB, and of as much as zlib unpacks at once.
  for (const uint32_t columns : {300'000u, 16'384u - 12, 32'768u - 12}) {
    std::string bytes(kHeader.substr(0, 4) + std::string("\0\0\0\x01", 4));
    for (int shift = 24; shift >= 0; shift -= 8)
      bytes += static_cast<char>(columns >> shift & 0xff);
    std::mt19937 random(columns);  // so that it stays as large when it is packed
    for (uint32_t i = 0; i < columns; ++i) bytes += static_cast<char>(random() & 0xff);
    write_gzip(file + ".gz", bytes);
    const std::string packed = read_whole(file + ".gz");
    CHECK(read_idx(file, 2).bytes.size() == columns);
    for (size_t cut = 1; cut <= 12; ++cut) {
      write(file + ".gz", packed.substr(0, packed.size() - cut));
      const std::string error = error_of(file);
      INFO(columns << " columns, cut by " << cut << ": " << error);
      CHECK(error.starts_with(file + ".gz: the file ends"));
      if (cut <= 8)
        CHECK(error == file + ".gz: the file ends within its checksum at offset " +
                           std::to_string(bytes.size()) + " of the unpacked data");
    }
  }
}

TEST_CASE("idx: a compressed file that is damaged is an error") {
  hvd::TemporaryDirectory directory;
  const std::string file = (directory.path() / "images").string();
  write_gzip(file + ".gz", kGood);
  std::string bytes = read_whole(file + ".gz");
  bytes[bytes.size() - 6] = static_cast<char>(bytes[bytes.size() - 6] ^ 1);  // the checksum
  write(file + ".gz", bytes);
  CHECK(error_of(file) == file + ".gz: incorrect data check at offset 18 of the unpacked data");
}

TEST_CASE("idx: a compressed file may be several in a row, and nothing else is behind it") {
  hvd::TemporaryDirectory directory;
  const std::string file = (directory.path() / "images").string(), packed = file + ".gz";
  write_gzip(file + ".gz", kGood.substr(0, 15));
  const std::string first = read_whole(packed);
  write_gzip(file + ".gz", kGood.substr(15));
  const std::string both = first + read_whole(packed);
  write(packed, both);
  CHECK(read_idx(file, 2).bytes.size() == 6);
  write(packed, both.substr(0, both.size() - 1));
  CHECK(contains(error_of(file), "the file ends within its checksum at offset 18"));
  write(packed, both + "xx");
  CHECK(error_of(file) == packed + ": incorrect header check at offset 18 of the unpacked data");
}

TEST_CASE("idx: the wrong kind of file is an error at offset 0") {
  hvd::TemporaryDirectory directory;
  const std::string file = (directory.path() / "labels").string();
  write(file, kGood);
  std::string error = error_of(file, 3);
  CHECK(contains(error, "magic 0x00000802 instead of 0x00000803"));
  CHECK(contains(error, "offset 0"));
  write(file, "PNG and more");
  error = error_of(file);
  CHECK(contains(error, "magic 0x504e4720"));
  CHECK(contains(error, "offset 0"));
}

TEST_CASE("idx: too much data and absurd sizes are errors") {
  hvd::TemporaryDirectory directory;
  const std::string file = (directory.path() / "images").string();
  write(file, kGood + "x");
  std::string error = error_of(file);
  CHECK(contains(error, "behind the end"));
  CHECK(contains(error, "offset 18"));
  write(file, std::string("\0\0\x08\x02\x7f\xff\xff\xff\x7f\xff\xff\xff", 12));
  error = error_of(file);
  CHECK(contains(error, "more than 1 GiB"));
}
