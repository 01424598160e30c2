// How a library's collective is measured: the same way for hvd, MPI and the floor.
//
// One row per size. A repetition lasts as long as on its slowest rank, and a row is the median of
// its repetitions. Above 4 KiB ranks meet before each timed call, and the data is written just
// before and read just after it, as training does: sizes that stay in a cache would otherwise
// flatter whoever never moves a line between cores. Up to 4 KiB many calls in a row are timed
// together. The result of the first calls is compared with what it has to be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace hvd {

enum class CollectiveKind : uint8_t { kAllreduce, kAllgather, kBroadcast };

// Names as on the command line; sizes in bytes of the whole tensor, of all parts for allgather.
struct RowsRequest {
  CollectiveKind kind = CollectiveKind::kAllreduce;
  std::string op = "allreduce";
  std::string dtype = "float32";
  size_t element_bytes = 4;
  std::string memory = "private";
  size_t min_bytes = 8;
  size_t max_bytes = size_t{256} << 20;
  size_t factor = 2;
  double seconds = 0.3;  // of each row
  std::string json;      // file; empty: none
};

// Reads argv, or throws std::runtime_error saying what is wrong; prints help and returns false when
// that was asked for. `memories`: the words that --memory takes, the first is the default.
bool parse_rows_request(std::span<char* const> arguments, std::span<const char* const> memories,
                        RowsRequest& request);

// One rank of what is measured.
class Library {
 public:
  virtual ~Library() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Zeroed, for the whole run.
  virtual std::byte* memory(size_t bytes) = 0;
  virtual void barrier() = 0;
  // The collective. allreduce (sum) and broadcast (from rank 0): in place. allgather: this rank's
  // part lies where it belongs in `data`; returns where all parts are. Whole elements only.
  virtual const std::byte* run(std::byte* data, size_t bytes) = 0;
  // Element-wise maximum over all ranks, on all ranks.
  virtual void maximum(std::span<double> values) = 0;
  // The floor computes nothing that could be wrong.
  virtual bool has_result() const { return true; }
};

// Zeroed memory of one process, in huge pages where the system gives them.
class PrivateMemory {
 public:
  PrivateMemory() = default;
  explicit PrivateMemory(size_t bytes);
  PrivateMemory(PrivateMemory&& other) noexcept { swap(other); }
  PrivateMemory& operator=(PrivateMemory other) noexcept {
    swap(other);
    return *this;
  }
  ~PrivateMemory();
  std::byte* data() const { return data_; }

 private:
  void swap(PrivateMemory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// Measures all sizes. Rank 0 prints the rows and writes the JSON file. Collective. Returns the
// number of wrong elements, over all rows, on all ranks alike.
uint64_t measure_rows(Library& library, const RowsRequest& request);

}  // namespace hvd
