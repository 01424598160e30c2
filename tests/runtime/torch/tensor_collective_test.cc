// Collectives on tensors of every shape, and the errors for those that cannot be sent.
#include "runtime/torch/tensor_collective.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

#include "runtime/torch/broadcast.h"
#include "tests/runtime/torch/training.h"

namespace hvd {
namespace {

using Place = TensorCollective::Place;

constexpr Reduction kSum = {.op = ReduceOp::kSum};

at::Tensor allreduce(const ThreadRank& rank, const at::Tensor& tensor, const Reduction& reduction,
                     Place place = Place::kNew) {
  return TensorCollective::run(*rank.engine,
                               TensorCollective::allreduce(tensor, place, reduction, "t"));
}

at::Tensor allgather(const ThreadRank& rank, const at::Tensor& tensor) {
  return TensorCollective::run(*rank.engine, TensorCollective::allgather(tensor, "t"));
}

at::Tensor broadcast(const ThreadRank& rank, const at::Tensor& tensor, int root, Place place) {
  return TensorCollective::run(*rank.engine, TensorCollective::broadcast(tensor, place, root, "t"));
}

int64_t sum_of_ranks(int size) { return int64_t{size} * (size - 1) / 2; }

}  // namespace

TEST_CASE("tensor_collective: allreduce of every type, with and without dimensions") {
  check_as_ranks([](const ThreadRank& rank) {
    for (const auto type : {at::kByte, at::kChar, at::kInt, at::kLong, at::kHalf, at::kBFloat16,
                            at::kFloat, at::kDouble}) {
      for (const std::vector<int64_t>& sizes :
           std::vector<std::vector<int64_t>>{{}, {1}, {0}, {3, 5}, {2, 0, 3}, {4, 1, 3, 2}}) {
        const at::Tensor mine = at::full(sizes, rank.rank, type);
        const at::Tensor sum = allreduce(rank, mine, kSum);
        EXPECT(sum.sizes() == mine.sizes() && sum.scalar_type() == type);
        EXPECT(sum.eq(sum_of_ranks(rank.size)).all().item<bool>());
        EXPECT(mine.eq(rank.rank).all().item<bool>());  // untouched
      }
    }
    const at::Tensor any = allreduce(rank, at::full({2}, rank.rank == 0, at::kBool), kSum);
    EXPECT(any.all().item<bool>());
    const at::Tensor mean = allreduce(rank, at::full({}, double(rank.rank), at::kDouble), {});
    EXPECT(mean.item<double>() == double(rank.size - 1) / 2);
  });
}

TEST_CASE("tensor_collective: in place, also where the tensor is not contiguous") {
  check_as_ranks([](const ThreadRank& rank) {
    const auto expected = double(sum_of_ranks(rank.size));
    at::Tensor whole = at::full({4, 6}, double(rank.rank));
    const at::Tensor column = whole.select(1, 2);
    const at::Tensor result = allreduce(rank, column, kSum, Place::kInPlace);
    EXPECT(result.is_same(column));
    EXPECT(whole.select(1, 2).eq(expected).all().item<bool>());
    EXPECT(whole.select(1, 1).eq(rank.rank).all().item<bool>());

    at::Tensor last =
        at::full({2, 3, 4, 4}, double(rank.rank)).contiguous(at::MemoryFormat::ChannelsLast);
    allreduce(rank, last, kSum, Place::kInPlace);
    EXPECT(last.is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT(last.eq(expected).all().item<bool>());
    allreduce(rank, whole.t(), kSum, Place::kInPlace);
  });
}

TEST_CASE("tensor_collective: in place on views that negate or conjugate what their memory holds") {
  check_as_ranks([](const ThreadRank& rank) {
    at::Tensor memory = at::full({3}, double(rank.rank + 1));
    const at::Tensor negative = at::_neg_view(memory);
    allreduce(rank, negative, {.op = ReduceOp::kMax}, Place::kInPlace);
    EXPECT(negative.eq(-1).all().item<bool>() && memory.eq(1).all().item<bool>());

    const auto complex = [](double imaginary) {
      return at::complex(at::ones({3}), at::full({3}, imaginary));
    };
    memory = complex(rank.rank + 1);
    const at::Tensor mine = rank.rank == 0 ? at::conj(memory) : memory;
    broadcast(rank, mine, 0, Place::kInPlace);
    EXPECT(mine.equal(complex(-1)) && memory.equal(complex(rank.rank == 0 ? 1 : -1)));
    broadcast(rank, mine, rank.size - 1, Place::kInPlace);
    EXPECT(mine.equal(complex(-1)));
  });
}

TEST_CASE("tensor_collective: ranks may differ in strides") {
  check_as_ranks([](const ThreadRank& rank) {
    at::Tensor mine = at::arange(24, at::kFloat).reshape({1, 2, 3, 4});
    if (rank.rank % 2 == 1) mine = mine.contiguous(at::MemoryFormat::ChannelsLast);
    const at::Tensor sum = allreduce(rank, mine, kSum);
    EXPECT(sum.equal(at::arange(24, at::kFloat).reshape({1, 2, 3, 4}) * rank.size));
    if (rank.rank != 0) mine.zero_();
    broadcast(rank, mine, 0, Place::kInPlace);
    EXPECT(mine.equal(at::arange(24, at::kFloat).reshape({1, 2, 3, 4})));
  });
}

TEST_CASE("tensor_collective: broadcast of any type, from any root") {
  check_as_ranks([](const ThreadRank& rank) {
    for (int root = 0; root < rank.size; ++root) {
      for (const auto type : {at::kShort, at::kBool, at::kComplexDouble, at::kHalf, at::kLong}) {
        const at::Tensor mine = at::full({3, 2}, rank.rank + 1).to(type);
        const at::Tensor result = broadcast(rank, mine, root, Place::kNew);
        EXPECT(result.equal(at::full({3, 2}, root + 1).to(type)));
        EXPECT(mine.equal(at::full({3, 2}, rank.rank + 1).to(type)));
      }
    }
    EXPECT(contains(error_of([&] { broadcast(rank, at::zeros({1}), rank.size, Place::kNew); }),
                    "root " + std::to_string(rank.size) + " is not a rank"));
  });
}

TEST_CASE("tensor_collective: allgather of uneven parts, in rank order") {
  check_as_ranks([](const ThreadRank& rank) {
    const at::Tensor all = allgather(rank, at::full({rank.rank + 1, 2, 3}, rank.rank, at::kInt));
    EXPECT(all.sizes() == at::IntArrayRef({int64_t{rank.size} * (rank.size + 1) / 2, 2, 3}));
    int64_t row = 0;
    for (int r = 0; r < rank.size; ++r)
      for (int i = 0; i <= r; ++i) EXPECT(all[row++].eq(r).all().item<bool>());
    const at::Tensor scalars = allgather(rank, at::full({}, rank.rank, at::kLong));
    EXPECT(scalars.equal(at::arange(rank.size, at::kLong)));
    const at::Tensor last_only = allgather(rank, at::ones({rank.rank + 1 == rank.size ? 4 : 0, 2}));
    EXPECT(last_only.equal(at::ones({4, 2})));
    EXPECT(contains(error_of([&] { allgather(rank, at::ones({3, 0})); }), "has no elements"));
  });
}

TEST_CASE("tensor_collective: asynchronous operations finish in any order") {
  check_as_ranks([](const ThreadRank& rank) {
    constexpr int kCount = 20;
    std::vector<std::shared_ptr<TensorCollective>> collectives(kCount);
    std::vector<std::shared_ptr<Work>> works(kCount);
    at::Tensor whole = at::full({kCount, 7}, double(rank.rank));
    for (int k = 0; k < kCount; ++k) {
      const auto i = size_t(rank.rank % 2 == 0 ? k : kCount - 1 - k);
      collectives[i] = TensorCollective::allreduce(whole[int64_t(i)], Place::kInPlace, kSum,
                                                   "row " + std::to_string(i));
      works[i] = TensorCollective::submit(*rank.engine, collectives[i]);
    }
    for (size_t i = 0; i < kCount; ++i) {
      works[i]->wait();
      collectives[i]->take_result();
    }
    EXPECT(whole.eq(sum_of_ranks(rank.size)).all().item<bool>());
  });
}

TEST_CASE(
    "tensor_collective: from another thread than the init thread a synchronous call needs a name") {
  check_as_ranks([](const ThreadRank& rank) {
    std::string named, unnamed;
    std::jthread([&] {
      named = error_of([&] {
        EXPECT(allreduce(rank, at::ones({3}), kSum).equal(at::full({3}, double(rank.size))));
      });
      unnamed = error_of([&] {
        TensorCollective::run(*rank.engine,
                              TensorCollective::allreduce(at::ones({3}), Place::kNew, kSum, ""));
      });
    }).join();
    EXPECT(named.empty());
    EXPECT(contains(unnamed, "name"));
  });
}

TEST_CASE("tensor_collective: different shapes or types are an error on every rank") {
  for (const int size : {2, 4}) {
    run_as_threads(size, [](const ThreadRank& rank) {
      const int64_t columns = rank.rank == 1 ? 2 : 3;  // of equally many elements
      const std::string shapes =
          error_of([&] { allreduce(rank, at::ones({6 / columns, columns}), kSum); });
      EXPECT(contains(shapes, "[2, 3]") && contains(shapes, "[3, 2]"));
      const std::string types = error_of(
          [&] { allreduce(rank, at::ones({4}, rank.rank == 1 ? at::kInt : at::kFloat), kSum); });
      EXPECT(contains(types, "int32") && contains(types, "float32"));
      // Bytes travel, but not as something else.
      EXPECT(!error_of([&] {
                broadcast(rank, at::ones({4}, rank.rank == 1 ? at::kInt : at::kFloat), 0,
                          Place::kNew);
              }).empty());
      EXPECT(!error_of([&] { allgather(rank, at::ones({2, rank.rank == 1 ? 3 : 2})); }).empty());
      const std::string rows =
          error_of([&] { allgather(rank, at::ones({3, rank.rank == 0 ? 0 : 2})); });
      EXPECT(contains(rows, "[*, 0]") && contains(rows, "[*, 2]"));
      EXPECT(allreduce(rank, at::ones({}), kSum).item<float>() == float(rank.size));
    });
  }
}

TEST_CASE("tensor_collective: what cannot be sent is refused by name") {
  run_as_threads(1, [](const ThreadRank& rank) {
    const auto error = [&](const at::Tensor& tensor, Place place = Place::kNew) {
      return error_of([&] { allreduce(rank, tensor, kSum, place); });
    };
    EXPECT(contains(error(at::Tensor()), "allreduce \"t\": the tensor is undefined"));
    EXPECT(contains(error(at::eye(3).to_sparse()), "sparse"));
    EXPECT(
        contains(error(at::ones({2}, at::kShort)), "the tensor has elements of type Short, which"));
    EXPECT(contains(error(at::ones({2}).requires_grad_()), "not differentiable yet"));
    EXPECT(contains(error(at::ones({1}).expand({3}), Place::kInPlace), "share memory"));
    EXPECT(error(at::ones({1}).expand({3})).empty());
    at::NoGradGuard no_grad;
    EXPECT(error(at::ones({2}).requires_grad_(), Place::kInPlace).empty());
  });
}

TEST_CASE("tensor_collective: what is no plain memory is refused by name, whoever sends it") {
  run_as_threads(1, [](const ThreadRank& rank) {
    const at::Tensor quantized = at::quantize_per_tensor(at::ones({2, 2}), 0.1, 3, at::kQInt8);
    const at::Tensor no_memory = at::_efficientzerotensor({4}, at::kFloat);
    at::Tensor freed = at::ones({4});
    freed.storage().unsafeGetStorageImpl()->set_data_ptr_noswap({});
    const std::pair<at::Tensor, std::string> odd[] = {
        {at::eye(3).to_sparse(), "the tensor is sparse; "},
        {at::eye(3).to_sparse_csr(), "the tensor is sparse; "},
        {at::ones({2, 2}).to_mkldnn(), "the tensor has layout Mkldnn; call to_dense() first"},
        {at::_nested_tensor_from_tensor_list({at::ones({2}), at::ones({3})}), "tensor is nested; "},
        {quantized, "the tensor is quantized, "},
        {no_memory, "the tensor has no memory of its own "},
        {freed, "the tensor has no memory of its own "},
    };
    for (const auto& [tensor, why] : odd) {
      for (const Place place : {Place::kNew, Place::kInPlace}) {
        EXPECT(contains(error_of([&] { allreduce(rank, tensor, kSum, place); }),
                        "allreduce \"t\": the tensor "));
        EXPECT(contains(error_of([&] { broadcast(rank, tensor, 0, place); }), why));
      }
      EXPECT(contains(error_of([&] { allgather(rank, tensor); }), "allgather \"t\": the tensor "));
      EXPECT(contains(error_of([&] { broadcast_tensors(*rank.engine, {{"odd", tensor}}, 0); }),
                      "broadcast \"odd\": the tensor "));
    }
    for (const at::Tensor& usual : {quantized.dequantize(), quantized.int_repr(), no_memory.clone(),
                                    at::empty({0}), at::ones({2, 2}).to_mkldnn().to_dense()})
      EXPECT(broadcast(rank, usual, 0, Place::kNew).equal(usual));
  });
}

// Bringing the result back into such a tensor takes tens of milliseconds.
TEST_CASE("tensor_collective: of several threads that wait all find the whole result") {
  check_as_ranks([](const ThreadRank& rank) {
    const at::Tensor mine = at::full({1500, 1500}, float(rank.rank)).t();
    const auto collective = TensorCollective::allreduce(mine, Place::kInPlace, kSum, "t");
    const auto work = TensorCollective::submit(*rank.engine, collective);
    std::atomic<int> whole{0};
    std::barrier together(4);
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
          work->wait();
          together.arrive_and_wait();
          const at::Tensor result = collective->take_result();
          const float* last = result.data_ptr<float>() + result.numel() - 1;
          whole += *last == float(sum_of_ranks(rank.size));
        });
      }
    }
    EXPECT(whole == 4);
    EXPECT(mine.eq(sum_of_ranks(rank.size)).all().item<bool>());
  });
}

TEST_CASE("tensor_collective: a result is of the mode it was asked for in, whoever waits for it") {
  check_as_ranks([](const ThreadRank& rank) {
    for (int turn = 0; turn < 40; ++turn) {
      const bool inference = turn % 2 == 1;
      std::shared_ptr<TensorCollective> rows;
      {
        const c10::InferenceMode mode(inference);
        rows = TensorCollective::allgather(at::ones({2}), "rows");
      }
      const std::shared_ptr<Work> work = TensorCollective::submit(*rank.engine, rows);
      std::string said;
      std::thread([&] {
        const c10::InferenceMode mode(!inference);
        said = error_of([&] { work->wait(); });
      }).join();
      EXPECT(said.empty());
      EXPECT(rows->take_result().is_inference() == inference);
    }
  });
}

TEST_CASE("tensor_collective: autograd sees that a tensor was written in place") {
  run_as_threads(1, [](const ThreadRank& rank) {
    const at::Tensor w = at::ones({3}).requires_grad_(), x = at::ones({3});
    const at::Tensor loss = (w * x).sum();
    allreduce(rank, x, kSum, Place::kInPlace);
    EXPECT(contains(error_of([&] { loss.backward(); }), "modified by an inplace operation"));
  });
}

TEST_CASE("tensor_collective: what is lent is read where it lies, and stays") {
  check_as_ranks([](const ThreadRank& rank) {
    const at::Tensor whole = at::full({4, 6}, float(rank.rank));
    const at::Tensor column = whole.slice(1, 0, 2);  // copied
    const at::Tensor row = at::full({}, double(rank.rank), at::kDouble);
    for (const at::Tensor& mine : {whole, column, row}) {
      const auto collective = TensorCollective::allgather(mine, "t", Place::kLent);
      const at::Tensor all = TensorCollective::run(*rank.engine, collective);
      EXPECT(all.equal(allgather(rank, mine)));
      EXPECT(all.data_ptr() != mine.data_ptr());
      EXPECT(mine.eq(rank.rank).all().item<bool>());
    }
  });
}

TEST_CASE("tensor_collective: without room for a copy there is an error on all ranks") {
  run_as_threads(2, [](const ThreadRank& rank) {
    // No machine has so much.
    const at::Tensor large = at::ones({1}).expand({int64_t{1} << 50});
    std::string said;
    try {
      if (rank.rank == 1)
        allreduce(rank, large, kSum);
      else
        allreduce(rank, at::ones({3}), kSum);
    } catch (const CommFailure& failure) {
      said = std::string("CommFailure: ") + failure.what();
    } catch (const Error& error) {
      said = std::string("Error: ") + error.what();
    }
    EXPECT(contains(said, rank.rank == 1 ? "Error: " : "CommFailure: "));
    EXPECT(contains(said,
                    "allreduce \"t\": no room for a copy of its tensor of 4503599627370496 "
                    "bytes: "));
  });
}

}  // namespace hvd
