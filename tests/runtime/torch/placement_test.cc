// Where gradients lie, how often they are copied, and when their buckets are finished: judged by
// what a third process finds in the ranks' memory, and by the linker.
#include <ATen/record_function.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "tests/runtime/torch/watched_ranks.h"
#include "tests/support/rank_program.h"

using namespace std::chrono_literals;

namespace hvd {
namespace {

// --- In the ranks.

// Bytes that memcpy() brought into a range and out of it, called by what is linked into this
// program: all of libhvd, not LibTorch.
std::atomic<uintptr_t> copied_begin, copied_end;
std::atomic<int64_t> copied_in, copied_out;

bool is_in_range(const void* at) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  return address >= copied_begin && address < copied_end;
}

// LibTorch's own ways of copying. Single numbers do not count: momentum is one.
bool copies(const at::RecordFunction& function) {
  const std::string name = function.name();
  if (name != "aten::copy_" && name != "aten::clone" && name != "aten::_to_copy") return false;
  const c10::IValue& tensor = function.inputs()[0];
  return tensor.isTensor() && tensor.toTensor().numel() > 1;
}

// In step(), wherever.
std::unique_ptr<at::ObserverContext> count_copies(const at::RecordFunction& function) {
  if (copies(function)) ++rank_board().numbers[kTensorCopies];
  return nullptr;
}

// In backward(), where a network may have its own, of what lies in the range or comes there.
std::unique_ptr<at::ObserverContext> count_copies_there(const at::RecordFunction& function) {
  const auto is_there = [](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().has_storage() &&
           is_in_range(value.toTensor().data_ptr());
  };
  if (copies(function) && std::ranges::any_of(function.inputs(), is_there))
    ++rank_board().numbers[kTensorCopies];
  return nullptr;
}

void watched(at::RecordFunctionCallback::StartCallback count, const std::function<void()>& body) {
  const auto watching =
      at::addThreadLocalCallback(at::RecordFunctionCallback(count).needsInputs(true));
  body();
  at::removeCallback(watching);
}

// One step, with the test looking at it between backward and step(), and after it.
const RankProgram contents("contents", [] {
  return run_watched([] {
    WatchedRank rank;
    rank.train(0, 3);
    rank.tell_gradients();
    const SharedPiece own = rank.own_piece();
    meet(kWarm);
    copied_begin = own.begin + kHomes;
    copied_end = own.begin + own.bytes;
    watched(count_copies_there, [&] { rank.backward(3); });
    meet(kBackwardDone);
    watched(count_copies, [&] { rank.optimizer.step(); });
    rank_board().numbers[kCopiedIn] = copied_in.load();
    rank_board().numbers[kCopiedOut] = copied_out.load();
    rank.tell_gradients();
    meet(kStepped);
  });
});

// Stays in the hook of the parameter whose gradient comes last.
const RankProgram overlap("overlap", [] {
  return run_watched([] {
    WatchedRank rank;
    rank.train(0, 3);
    rank.tell_gradients();
    meet(kWarm);
    rank.net->parameters()[0].register_hook([](const at::Tensor& gradient) {
      meet(kBackwardDone);
      return gradient;
    });
    rank.backward(3);
    rank.optimizer.step();
  });
});

// --- In the test.

std::vector<at::Tensor> backward_of(nets::Net& net, int part, int step) {
  net.zero_grad();
  net.loss(part, step).backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& p : net.parameters()) gradients.push_back(p.grad());
  return gradients;
}

// What lies in a rank's memory where parameter i's gradient is said to lie.
at::Tensor read_gradient(HostJob& job, int rank, size_t i, const at::Tensor& like) {
  at::Tensor seen = at::empty_like(like);
  ProcessMemory(job.rank(rank).pid)
      .read(static_cast<uintptr_t>(job.board(rank).numbers[kGradient + i].load()),
            {static_cast<std::byte*>(seen.data_ptr()), seen.nbytes()});
  return seen;
}

// Gradients of each part in the step that the ranks are in, and what they become.
struct Expected {
  std::vector<std::vector<at::Tensor>> parts;  // by rank, by parameter
  std::vector<at::Tensor> combined;            // by parameter
  int64_t bytes = 0;                           // of one part

  explicit Expected(int ranks) {
    use_one_thread();
    Alone alone;
    for (int step = 0; step < 3; ++step) alone.step(ranks, step);
    for (int k = 0; k < ranks; ++k) parts.push_back(backward_of(*alone.net, k, 3));
    for (size_t i = 0; i < parts[0].size(); ++i) {
      std::vector<at::Tensor> each;
      for (const auto& part : parts) each.push_back(part[i]);
      combined.push_back(combine(each, {}));
      bytes += static_cast<int64_t>(combined[i].nbytes());
    }
  }
};

}  // namespace
}  // namespace hvd

// The linker sends this program's calls of memcpy() here (--wrap).
extern "C" void* __real_memcpy(void* to, const void* from, size_t bytes);
extern "C" void* __wrap_memcpy(void* to, const void* from, size_t bytes) {
  if (hvd::is_in_range(to)) hvd::copied_in += static_cast<int64_t>(bytes);
  if (hvd::is_in_range(from)) hvd::copied_out += static_cast<int64_t>(bytes);
  return __real_memcpy(to, from, bytes);
}

namespace hvd {

TEST_CASE("placement: one copy brings a gradient into the arena, and nothing is copied out") {
  for (const int ranks : {2, 4}) {
    const Expected expected(ranks);
    HostJob job(watched_job("contents", ranks, {}));
    REQUIRE(await_stage(job, ranks, kWarm));
    const std::vector<Gradients> places =
        gradients_of(job, ranks);  // in shared memory, says the kernel
    release(job, ranks, kWarm);
    REQUIRE(await_stage(job, ranks, kBackwardDone));
    for (int k = 0; k < ranks; ++k)
      for (size_t i = 0; i < expected.combined.size(); ++i)
        CHECK(same_bits(read_gradient(job, k, i, expected.combined[i]),
                        expected.parts[static_cast<size_t>(k)][i]));
    release(job, ranks, kBackwardDone);
    REQUIRE(await_stage(job, ranks, kStepped));
    const std::vector<Gradients> later = gradients_of(job, ranks);
    for (int k = 0; k < ranks; ++k) {
      const auto at = static_cast<size_t>(k);
      for (size_t i = 0; i < expected.combined.size(); ++i)
        CHECK(same_bits(read_gradient(job, k, i, expected.combined[i]), expected.combined[i]));
      CHECK(later[at].offsets == places[at].offsets);
      CHECK(job.board(k).numbers[kCopiedIn] == expected.bytes);
      CHECK(job.board(k).numbers[kCopiedOut] == 0);
      CHECK(job.board(k).numbers[kTensorCopies] == 0);
    }
    release(job, ranks, kOver);
    REQUIRE(job.run());
    for (int k = 0; k < ranks; ++k) CHECK(job.rank(k).status == 0);
  }
}

TEST_CASE("placement: a bucket is finished on all ranks while all are inside backward") {
  for (const int ranks : {2, 4}) {
    const Expected expected(ranks);
    const size_t last = expected.combined.size() - 2;  // the last layer's weight
    HostJob job(watched_job("overlap", ranks, {"HVD_TEST_BUCKET_BYTES=4096"}));
    REQUIRE(await_stage(job, ranks, kWarm));
    release(job, ranks, kWarm);
    REQUIRE(await_stage(job, ranks, kBackwardDone));
    CHECK(job.run_until(
        [&] {
          for (int k = 0; k < ranks; ++k)
            if (!same_bits(read_gradient(job, k, last, expected.combined[last]),
                           expected.combined[last]))
              return false;
          return true;
        },
        20s));
    release(job, ranks, kOver);
    REQUIRE(job.run());
    for (int k = 0; k < ranks; ++k) CHECK(job.rank(k).status == 0);
  }
}

}  // namespace hvd
