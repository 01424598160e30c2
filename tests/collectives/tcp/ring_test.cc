// Parts round a ring, whole and in chunks.
#include "collectives/tcp/ring.h"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/in_process_world.h"

using namespace hvd;

namespace {

using Tensor = std::vector<float>;

// Parts of so many elements, one behind the other.
std::vector<ByteRange> parts_of(const std::vector<size_t>& counts) {
  std::vector<ByteRange> parts;
  size_t at = 0;
  for (size_t count : counts) {
    parts.push_back({at, at + count * sizeof(float)});
    at = parts.back().end;
  }
  return parts;
}

// A ring whose places are all in this thread; place k has links to the next one and the one before.
class Places {
 public:
  explicit Places(int size) {
    std::vector<std::pair<UniqueFd, UniqueFd>> pairs;
    for (int k = 0; k < size; ++k) pairs.push_back(connected_pair());
    for (int k = 0; k < size; ++k) {
      const int before = (k + size - 1) % size;
      next_.push_back(
          std::make_unique<Link>((k + 1) % size, std::move(pairs[static_cast<size_t>(k)].first)));
      previous_.push_back(
          std::make_unique<Link>(before, std::move(pairs[static_cast<size_t>(before)].second)));
    }
    rings_.resize(static_cast<size_t>(size));
  }

  size_t size() const { return rings_.size(); }

  // Runs `task` at every place, each over its tensor. Each turn goes to a place at random.
  void run(RingTask task, std::vector<Tensor>& tensors, unsigned seed) {
    for (size_t k = 0; k < size(); ++k) {
      task.place = static_cast<int>(k);
      task.places = static_cast<int>(size());
      task.data = reinterpret_cast<std::byte*>(tensors[k].data());
      task.header.from = static_cast<uint32_t>(k);
      rings_[k].begin(task, *next_[k]);
    }
    std::mt19937 random(seed);
    for (size_t idle = 0, done = 0; done < size();) {
      const size_t k = random() % size();
      const bool moved = rings_[k].advance(*next_[k], *previous_[k]);
      REQUIRE(rings_[k].fault().empty());
      idle = moved ? 0 : idle + 1;
      REQUIRE(idle < 100'000);  // somebody can always go on
      done = 0;
      for (const RingStream& ring : rings_) done += ring.done() ? 1 : 0;
    }
  }

 private:
  std::vector<std::unique_ptr<Link>> next_, previous_;
  std::vector<RingStream> rings_;
};

std::vector<Tensor> random_tensors(size_t places, size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> values;
  std::vector<Tensor> tensors(places, Tensor(count));
  for (Tensor& tensor : tensors)
    for (float& value : tensor) value = values(random);
  return tensors;
}

bool same_bits(const Tensor& one, const Tensor& other) {
  return one.size() == other.size() &&
         std::memcmp(one.data(), other.data(), one.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("a ring gives the same bits in chunks of any size, with parts of any size") {
  const int size = GENERATE(1, 2, 3, 5);
  CAPTURE(size);
  std::vector<std::vector<size_t>> all_counts = {
      {300, 300, 300, 300, 300}, {1, 4000, 0, 333, 90'000}, {0, 0, 70'000, 0, 1}, {0, 0, 0, 0, 0}};
  Places places(size);
  unsigned seed = 1;
  for (std::vector<size_t> counts : all_counts) {
    counts.resize(static_cast<size_t>(size));
    const size_t count = std::accumulate(counts.begin(), counts.end(), size_t{0});
    RingTask task;
    task.parts = parts_of(counts);
    task.sums = task.spreads = true;
    task.type = DataType::kFloat32;
    task.reduction.op = ReduceOp::kSum;
    task.inputs = size;
    const std::vector<Tensor> inputs = random_tensors(places.size(), count, ++seed);
    std::vector<Tensor> whole = inputs;
    places.run(task, whole, ++seed);
    for (size_t i = 0; i < count; ++i) {
      double sum = 0;
      for (const Tensor& input : inputs) sum += static_cast<double>(input[i]);
      if (std::abs(static_cast<double>(whole[0][i]) - sum) > 1e-4) FAIL("element " << i);
    }
    for (size_t chunk_bytes : {64, 1200, 65'536, 1 << 20}) {
      CAPTURE(chunk_bytes);
      task.chunk_bytes = chunk_bytes;
      std::vector<Tensor> chunked = inputs;
      places.run(task, chunked, ++seed);
      for (const Tensor& tensor : chunked) REQUIRE(same_bits(tensor, whole[0]));
    }
  }
}

TEST_CASE("a ring that spreads gives everybody all parts, in chunks, too") {
  Places places(3);
  const std::vector<size_t> counts = {5000, 0, 70'001};
  for (size_t chunk_bytes : {64, 65'536}) {
    RingTask task;
    task.parts = parts_of(counts);
    task.chunk_bytes = chunk_bytes;
    task.spreads = true;
    std::vector<Tensor> tensors(3, Tensor(75'001, -1));
    Tensor expected(75'001);
    std::iota(expected.begin(), expected.end(), 0.0F);
    for (size_t k = 0; k < 3; ++k)
      std::memcpy(tensors[k].data() + task.parts[k].begin / sizeof(float),
                  expected.data() + task.parts[k].begin / sizeof(float), task.parts[k].bytes());
    places.run(task, tensors, 7);
    for (const Tensor& tensor : tensors) REQUIRE(same_bits(tensor, expected));
  }
}
