#include "tests/benchmark/collective_rows.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

namespace hvd {
namespace {

constexpr size_t kSmallBytes = 4096;  // up to here calls are timed many at a time
constexpr double kMostRepetitions = 4000;
constexpr double kLeastRepetitions = 7;
constexpr size_t kLineBytes = 64;

struct ElementType {
  const char* name;
  size_t bytes;
};
constexpr ElementType kElementTypes[] = {{"uint8", 1},   {"int8", 1},    {"int32", 4},
                                         {"int64", 8},   {"float16", 2}, {"bfloat16", 2},
                                         {"float32", 4}, {"float64", 8}, {"bool", 1}};

struct Row {
  size_t bytes;
  double time_us, algbw_gbps, busbw_gbps;
  uint64_t wrong;
};

// ---- values ------------------------------------------------------------------------------------

// The bytes of a small whole number as an element of a type. Exact in all of them up to 256.
std::array<std::byte, 8> encode(unsigned value, const std::string& dtype) {
  std::array<std::byte, 8> bytes{};
  auto put = [&](auto number) { std::memcpy(bytes.data(), &number, sizeof number); };
  const uint32_t as_float = std::bit_cast<uint32_t>(static_cast<float>(value));
  if (dtype == "float32") {
    put(as_float);
  } else if (dtype == "float64") {
    put(static_cast<double>(value));
  } else if (dtype == "bfloat16") {
    put(static_cast<uint16_t>(as_float >> 16));
  } else if (dtype == "float16") {  // exponent from 127 to 15, mantissa from 23 bits to 10
    put(static_cast<uint16_t>(value == 0 ? 0 : (as_float >> 13) - ((127 - 15) << 10)));
  } else if (dtype == "bool") {
    put(static_cast<uint8_t>(value != 0));
  } else {
    put(static_cast<uint64_t>(value));
  }
  return bytes;
}

// Rank r holds (r + i) % 3 in element i, so everything repeats after three elements.
class Pattern {
 public:
  Pattern(const Library& library, const RowsRequest& request, size_t bytes)
      : library_(library), request_(request), count_(bytes / request.element_bytes) {
    const int ranks = request.kind == CollectiveKind::kAllreduce ? library.size() : 1;
    for (size_t phase = 0; phase < 3; ++phase) {
      unsigned sum = 0;
      for (int rank = 0; rank < ranks; ++rank) sum += element_of(rank, phase);
      one_[phase] = encode(static_cast<unsigned>(phase), request.dtype);
      result_[phase] = encode(sum, request.dtype);
    }
  }

  // What this rank has before the call.
  void fill(std::byte* data) const {
    const int rank = library_.rank();
    const auto [begin, end] = part(rank);
    for (size_t i = begin; i < end; ++i)
      std::memcpy(data + i * request_.element_bytes, one_[element_of(rank, i)].data(),
                  request_.element_bytes);
  }

  uint64_t wrong(const std::byte* data) const {
    if (request_.kind != CollectiveKind::kAllgather) return differing(data, 0, count_, 0);
    uint64_t found = 0;
    for (int rank = 0; rank < library_.size(); ++rank) {
      const auto [begin, end] = part(rank);
      found += differing(data, begin, end, rank);
    }
    return found;
  }

 private:
  static unsigned element_of(int rank, size_t index) {
    return static_cast<unsigned>((static_cast<size_t>(rank) + index) % 3);
  }
  std::pair<size_t, size_t> part(int rank) const {
    if (request_.kind != CollectiveKind::kAllgather) return {0, count_};
    const size_t each = count_ / static_cast<size_t>(library_.size());
    return {each * static_cast<size_t>(rank), each * static_cast<size_t>(rank + 1)};
  }
  uint64_t differing(const std::byte* data, size_t begin, size_t end, int rank) const {
    uint64_t found = 0;
    for (size_t i = begin; i < end; ++i)
      found += std::memcmp(data + i * request_.element_bytes, result_[element_of(rank, i)].data(),
                           request_.element_bytes) != 0;
    return found;
  }

  const Library& library_;
  const RowsRequest& request_;
  const size_t count_;
  std::array<std::array<std::byte, 8>, 3> one_, result_;  // by phase: 0, 1, 2; and what comes out
};

// ---- one row -----------------------------------------------------------------------------------

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void write_lines(std::byte* data, size_t bytes) {
  for (size_t i = 0; i < bytes; i += kLineBytes) std::memset(data + i, 0, sizeof(uint32_t));
  asm volatile("" ::"r"(data) : "memory");  // the stores happen
}

void read_lines(const std::byte* data, size_t bytes) {
  uint32_t sum = 0, word;
  for (size_t i = 0; i + sizeof word <= bytes; i += kLineBytes) {
    std::memcpy(&word, data + i, sizeof word);
    sum += word;
  }
  asm volatile("" ::"r"(sum));  // the loads happen
}

class RowTimer {
 public:
  RowTimer(Library& library, std::byte* data, size_t bytes)
      : library_(library),
        data_(data),
        bytes_(bytes),
        calls_(bytes > kSmallBytes ? 1
               : crowded()         ? 16
                                   : 64) {}

  // Seconds of one call: median over repetitions of the slowest rank.
  double measure(double seconds) {
    for (int i = 0; i < (bytes_ <= size_t{1} << 20 ? 50 : 3); ++i) library_.run(data_, bytes_);
    double once[1] = {0};
    for (int i = 0; i < 3; ++i) once[0] += repetition() / 3;
    library_.maximum(once);  // all ranks have to repeat equally often
    const double wanted = seconds / std::max(once[0], 1e-9);
    std::vector<double> times(
        static_cast<size_t>(std::clamp(wanted, kLeastRepetitions, kMostRepetitions)));
    for (double& time : times) time = repetition() / calls_;
    library_.maximum(times);
    std::nth_element(times.begin(), times.begin() + static_cast<long>(times.size() / 2),
                     times.end());
    return times[times.size() / 2];
  }

 private:
  bool crowded() const {
    return static_cast<unsigned>(library_.size()) > std::thread::hardware_concurrency();
  }

  // Seconds of `calls_` calls on this rank.
  double repetition() {
    if (calls_ == 1) {
      write_lines(data_, bytes_);
      library_.barrier();
    }
    const auto begin = Clock::now();
    const std::byte* result = data_;
    for (int i = 0; i < calls_; ++i) result = library_.run(data_, bytes_);
    const double took = seconds_since(begin);
    if (calls_ == 1) read_lines(result, bytes_);
    return took;
  }

  Library& library_;
  std::byte* const data_;
  const size_t bytes_;
  const int calls_;
};

uint64_t count_wrong(Library& library, const RowsRequest& request, std::byte* data, size_t bytes) {
  if (!library.has_result()) return 0;
  const Pattern pattern(library, request, bytes);
  double wrong[1] = {0};
  for (int round = 0; round < 2; ++round) {
    pattern.fill(data);
    wrong[0] += static_cast<double>(pattern.wrong(library.run(data, bytes)));
  }
  std::memset(data, 0, bytes);
  library.barrier();  // nobody computes with it while others still look
  library.maximum(wrong);
  return static_cast<uint64_t>(wrong[0]);
}

// As in nccl-tests: what each link has to carry, whatever the number of ranks.
double bus_factor(CollectiveKind kind, int size) {
  const double others = static_cast<double>(size - 1) / size;
  if (kind == CollectiveKind::kAllreduce) return 2 * others;
  return kind == CollectiveKind::kAllgather ? others : 1;
}

// ---- output ------------------------------------------------------------------------------------

void write_json(const RowsRequest& request, int ranks, std::span<const Row> rows) {
  FILE* file = std::fopen(request.json.c_str(), "w");
  if (!file) throw std::runtime_error("cannot write " + request.json + ": " + std::strerror(errno));
  std::fprintf(file, R"({"op": "%s", "dtype": "%s", "ranks": %d, "memory": "%s", "rows": [)",
               request.op.c_str(), request.dtype.c_str(), ranks, request.memory.c_str());
  const char* separator = "\n";
  for (const Row& row : rows) {
    std::fprintf(
        file,
        R"(%s  {"bytes": %zu, "time_us": %.4f, "algbw_gbps": %.9g, "busbw_gbps": %.9g, "wrong": %llu})",
        separator, row.bytes, row.time_us, row.algbw_gbps, row.busbw_gbps,
        static_cast<unsigned long long>(row.wrong));
    separator = ",\n";
  }
  std::fprintf(file, "\n]}\n");
  if (std::fclose(file) != 0) throw std::runtime_error("cannot write " + request.json);
}

// ---- command line ------------------------------------------------------------------------------

constexpr const char* kHelp = R"(Measures one collective over a range of sizes.

  --op OP            allreduce, allgather or broadcast (allreduce)
  --dtype TYPE       uint8 int8 int32 int64 float16 bfloat16 float32 float64 bool (float32)
  --memory KIND      where the data lies: %s
  --min-bytes N      first size; K, M and G mean 1024 and its powers (8)
  --max-bytes N      last size (256M)
  --factor N         from one size to the next (2)
  --seconds S        of repetitions for each size (0.3)
  --json FILE        {"op", "dtype", "ranks", "memory", "rows": [{"bytes", "time_us", "algbw_gbps",
                     "busbw_gbps", "wrong"}]}; GB/s, times are medians of the slowest rank

Prints bytes, microseconds, GB/s of the algorithm and of the bus, wrong elements.
)";

size_t parse_bytes(const std::string& option, const std::string& text) {
  char* end = nullptr;
  errno = 0;
  const unsigned long long number = std::strtoull(text.c_str(), &end, 10);
  size_t shift = 0;
  if (*end != '\0') {
    const char* found = std::strchr("KMG", *end);
    shift = found ? 10 * static_cast<size_t>(found - "KMG" + 1) : 0;
    if (found && end[1] == '\0') ++end;
  }
  const bool number_given = !text.empty() && text[0] >= '0' && text[0] <= '9';
  if (!number_given || *end != '\0' || errno != 0 || number == 0 ||
      number > (size_t{1} << 40 >> shift))
    throw std::runtime_error(option + " " + text + ": a size such as 8, 64K or 256M was expected");
  return static_cast<size_t>(number) << shift;
}

void set_option(RowsRequest& request, const std::string& name, const std::string& value) {
  if (name == "--op") {
    request.op = value;
  } else if (name == "--dtype") {
    request.dtype = value;
  } else if (name == "--memory") {
    request.memory = value;
  } else if (name == "--json") {
    request.json = value;
  } else if (name == "--min-bytes") {
    request.min_bytes = parse_bytes(name, value);
  } else if (name == "--max-bytes") {
    request.max_bytes = parse_bytes(name, value);
  } else if (name == "--factor") {
    request.factor = parse_bytes(name, value);
  } else if (name == "--seconds") {
    request.seconds = std::atof(value.c_str());
  } else {
    throw std::runtime_error("unknown option " + name + "; --help lists all");
  }
}

void check_request(RowsRequest& request, std::span<const char* const> memories) {
  auto type = std::ranges::find(kElementTypes, request.dtype, &ElementType::name);
  if (type == std::end(kElementTypes))
    throw std::runtime_error("--dtype " + request.dtype + ": no such type; --help lists all");
  request.element_bytes = type->bytes;
  const std::array<const char*, 3> kinds = {"allreduce", "allgather", "broadcast"};
  auto kind = std::ranges::find(kinds, request.op);
  if (kind == kinds.end())
    throw std::runtime_error("--op " + request.op +
                             ": allreduce, allgather or broadcast was expected");
  request.kind = static_cast<CollectiveKind>(kind - kinds.begin());
  if (std::ranges::find(memories, request.memory) == memories.end())
    throw std::runtime_error("--memory " + request.memory + ": no such memory; --help lists all");
  if (request.min_bytes > request.max_bytes)
    throw std::runtime_error("--min-bytes is more than --max-bytes");
  if (request.factor < 2) throw std::runtime_error("--factor has to be at least 2");
  if (!(request.seconds > 0 && request.seconds <= 600))
    throw std::runtime_error("--seconds has to be more than 0 and at most 600");
}

}  // namespace

PrivateMemory::PrivateMemory(size_t bytes) : bytes_(bytes) {
  void* found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found == MAP_FAILED)
    throw std::runtime_error("no memory for " + std::to_string(bytes) + " bytes of data");
  madvise(found, bytes, MADV_HUGEPAGE);
  std::memset(found, 0, bytes);
  data_ = static_cast<std::byte*>(found);
}

PrivateMemory::~PrivateMemory() {
  if (data_) munmap(data_, bytes_);
}

bool parse_rows_request(std::span<char* const> arguments, std::span<const char* const> memories,
                        RowsRequest& request) {
  request.memory = memories.front();
  for (size_t i = 1; i < arguments.size(); i += 2) {
    const std::string name = arguments[i];
    if (name == "-h" || name == "--help") {
      std::string kinds;
      for (const char* one : memories) kinds.append(kinds.empty() ? "" : " or ").append(one);
      std::printf(kHelp, kinds.c_str());
      return false;
    }
    if (i + 1 == arguments.size()) throw std::runtime_error(name + " needs a value");
    set_option(request, name, arguments[i + 1]);
  }
  check_request(request, memories);
  return true;
}

namespace {

size_t whole_units(size_t bytes, size_t unit) { return std::max(unit, bytes / unit * unit); }

std::vector<size_t> row_bytes(const RowsRequest& request, size_t unit) {
  std::vector<size_t> all;
  for (size_t wanted = request.min_bytes;; wanted *= request.factor) {
    const size_t bytes = whole_units(wanted, unit);
    if (all.empty() || all.back() != bytes) all.push_back(bytes);
    if (wanted > request.max_bytes / request.factor) return all;
  }
}

}  // namespace

uint64_t measure_rows(Library& library, const RowsRequest& request) {
  // Every row has whole elements, and for allgather equal parts.
  const size_t parts =
      request.kind == CollectiveKind::kAllgather ? static_cast<size_t>(library.size()) : 1;
  const size_t unit = request.element_bytes * parts;

  std::byte* data = library.memory(whole_units(request.max_bytes, unit));
  std::vector<Row> rows;
  uint64_t wrong = 0;
  if (library.rank() == 0)
    std::printf("# %s %s, %d ranks, %s memory\n%12s %12s %12s %12s %6s\n", request.op.c_str(),
                request.dtype.c_str(), library.size(), request.memory.c_str(), "bytes", "us",
                "alg GB/s", "bus GB/s", "wrong");
  for (const size_t bytes : row_bytes(request, unit)) {
    Row row{.bytes = bytes, .time_us = 0, .algbw_gbps = 0, .busbw_gbps = 0, .wrong = 0};
    row.wrong = count_wrong(library, request, data, bytes);
    const double seconds = RowTimer(library, data, bytes).measure(request.seconds);
    row.time_us = seconds * 1e6;
    row.algbw_gbps = static_cast<double>(bytes) / seconds / 1e9;
    row.busbw_gbps = row.algbw_gbps * bus_factor(request.kind, library.size());
    wrong += row.wrong;
    rows.push_back(row);
    if (library.rank() != 0) continue;
    std::printf("%12zu %12.2f %12.3f %12.3f %6llu\n", row.bytes, row.time_us, row.algbw_gbps,
                row.busbw_gbps, static_cast<unsigned long long>(row.wrong));
    std::fflush(stdout);
  }
  if (library.rank() == 0 && !request.json.empty()) write_json(request, library.size(), rows);
  return wrong;
}

}  // namespace hvd
