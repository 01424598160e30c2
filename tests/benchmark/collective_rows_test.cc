// The measuring loop itself: what it reads, what it finds wrong, what it writes.
#include "tests/benchmark/collective_rows.h"

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include "tests/support/catch.h"

using namespace hvd;

namespace {

RowsRequest parse(std::vector<std::string> words) {
  words.insert(words.begin(), "program");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  const char* const memories[] = {"arena", "private"};
  RowsRequest request;
  if (!parse_rows_request(arguments, memories, request)) FAIL();
  return request;
}

// A world of `size` in which every other rank's values are known: it adds what they would add.
class OneOf final : public Library {
 public:
  OneOf(int size, const RowsRequest& request, bool breaks = false)
      : size_(size), request_(request), breaks_(breaks) {}
  int rank() const override { return 0; }
  int size() const override { return size_; }
  std::byte* memory(size_t bytes) override {
    return (memory_ = std::vector<std::byte>(bytes)).data();
  }
  void barrier() override {}
  void maximum(std::span<double>) override {}
  const std::byte* run(std::byte* data, size_t bytes) override {
    const bool zeroed = bytes < 3 || data[2 * request_.element_bytes] == std::byte{0};
    if (request_.dtype == "uint8" && !zeroed)  // rank r holds (r + i) % 3
      for (int r = 1; r < size_; ++r)
        for (size_t i = 0; i < bytes; ++i)
          data[i] = std::byte(static_cast<unsigned char>(static_cast<size_t>(data[i]) +
                                                         (static_cast<size_t>(r) + i) % 3));
    if (breaks_) data[bytes - 1] ^= std::byte{0x55};
    return data;
  }

 private:
  const int size_;
  const RowsRequest request_;
  const bool breaks_;
  std::vector<std::byte> memory_;
};

}  // namespace

TEST_CASE("collective rows: sizes have suffixes, and every option a default") {
  const RowsRequest request =
      parse({"--min-bytes", "64K", "--max-bytes", "1G", "--memory", "private"});
  CHECK(request.min_bytes == 65'536);
  CHECK(request.max_bytes == size_t{1} << 30);
  CHECK(request.op == "allreduce");
  CHECK(request.dtype == "float32");
  CHECK(request.memory == "private");
  CHECK(parse({}).memory == "arena");
}

TEST_CASE("collective rows: bad options are named") {
  CHECK_THROWS_WITH(parse({"--op", "all"}), Catch::Contains("--op all"));
  CHECK_THROWS_WITH(parse({"--dtype", "float"}), Catch::Contains("--dtype float"));
  CHECK_THROWS_WITH(parse({"--memory", "disk"}), Catch::Contains("--memory disk"));
  CHECK_THROWS_WITH(parse({"--json"}), Catch::Contains("--json needs a value"));
  CHECK_THROWS_WITH(parse({"--bytes", "8"}), Catch::Contains("unknown option --bytes"));
  for (const char* size : {"", "0", "-1", "8X", "8KK", "K", "99999999999999999999", "2000G"})
    CHECK_THROWS_WITH(parse({"--max-bytes", size}), Catch::Contains("a size such as"));
  CHECK_THROWS_WITH(parse({"--min-bytes", "64", "--max-bytes", "8"}),
                    Catch::Contains("--min-bytes"));
  CHECK_THROWS_WITH(parse({"--factor", "1"}), Catch::Contains("--factor"));
  CHECK_THROWS_WITH(parse({"--seconds", "0"}), Catch::Contains("--seconds"));
}

TEST_CASE("collective rows: right results pass in every type, a wrong element is counted") {
  for (const char* dtype :
       {"uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool"}) {
    const RowsRequest request =
        parse({"--dtype", dtype, "--min-bytes", "64", "--max-bytes", "64", "--seconds", "0.001"});
    OneOf right(1, request), broken(1, request, true);
    CHECK(measure_rows(right, request) == 0);
    CHECK(measure_rows(broken, request) == 2);  // once in each of two rounds
  }
}

TEST_CASE("collective rows: other ranks' values are expected in the sum") {
  const RowsRequest request =
      parse({"--dtype", "uint8", "--min-bytes", "64", "--max-bytes", "64", "--seconds", "0.001"});
  OneOf four(4, request);
  CHECK(measure_rows(four, request) == 0);
}

TEST_CASE("collective rows: a factor beyond all sizes leaves the first of them") {
  const RowsRequest request = parse(
      {"--min-bytes", "16M", "--max-bytes", "16M", "--factor", "1024G", "--seconds", "0.001"});
  OneOf one(1, request);
  CHECK(measure_rows(one, request) == 0);  // and ends: the product of the two is 0 in 64 bits
}

TEST_CASE("collective rows: the json has a row per size, whole elements only") {
  const std::string path = "/tmp/hvd_collective_rows_" + std::to_string(getpid()) + ".json";
  const RowsRequest request = parse({"--dtype", "float64", "--min-bytes", "3", "--max-bytes", "100",
                                     "--factor", "4", "--seconds", "0.001", "--json", path});
  OneOf one(1, request);
  measure_rows(one, request);
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  unlink(path.c_str());
  CHECK_THAT(text.str(), Catch::StartsWith(R"({"op": "allreduce", "dtype": "float64", "ranks": 1, )"
                                           R"("memory": "arena", "rows": [)"));
  for (const char* row : {R"({"bytes": 8, "time_us": )", R"({"bytes": 48, "time_us": )"})
    CHECK_THAT(text.str(), Catch::Contains(row));
  CHECK_THAT(text.str(), Catch::Contains(R"("wrong": 0})"));
}
