// Collectives on tensors of a device: what the CPU makes of them, ordered by streams alone.
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>

#include <latch>
#include <vector>

#include "runtime/torch/broadcast.h"
#include "runtime/torch/tensor_collective.h"
#include "tests/collectives/nccl/standin.h"
#include "tests/runtime/torch/device/ranks.h"
#include "tests/runtime/torch/training.h"
#include "tests/support/until.h"

namespace hvd {
namespace {

using Place = TensorCollective::Place;

constexpr Reduction kSum = {.op = ReduceOp::kSum};

struct Pending {
  std::shared_ptr<TensorCollective> collective;
  std::shared_ptr<Work> work;
  at::Tensor take() const {
    work->wait();
    return collective->take_result();
  }
};

Pending submit(const ThreadRank& rank, std::shared_ptr<TensorCollective> collective) {
  auto work = TensorCollective::submit(*rank.engine, collective);
  return {std::move(collective), std::move(work)};
}

at::Tensor run(const ThreadRank& rank, const std::shared_ptr<TensorCollective>& collective) {
  return TensorCollective::run(*rank.engine, collective);
}

at::Tensor allreduce(const ThreadRank& rank, const at::Tensor& tensor, const Reduction& reduction,
                     Place place = Place::kNew) {
  return run(rank, TensorCollective::allreduce(tensor, place, reduction, "t"));
}

int sum_of_ranks(int size) { return size * (size - 1) / 2; }

bool is_filled(const at::Tensor& tensor, double with) {
  return tensor.cpu().to(at::kDouble).eq(with).all().item<bool>();
}

}  // namespace

TEST_CASE("device collectives: allreduce of every type and shape, as on the CPU") {
  check_on_devices([](const ThreadRank& rank) {
    for (const auto type : {at::kByte, at::kChar, at::kInt, at::kLong, at::kHalf, at::kBFloat16,
                            at::kFloat, at::kDouble, at::kBool}) {
      for (const std::vector<int64_t>& sizes :
           std::vector<std::vector<int64_t>>{{}, {1}, {0}, {3, 5}, {2, 0, 3}, {4, 1, 3, 2}}) {
        for (const ReduceOp op :
             {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
          const at::Tensor mine = at::full(sizes, rank.rank + 1, type);
          const at::Tensor theirs =
              run(rank, TensorCollective::allreduce(mine.to(device_of(rank)), Place::kNew,
                                                    {.op = op}, "on a GPU"));
          EXPECT(theirs.device() == device_of(rank));
          EXPECT(same_bits(theirs.cpu(), allreduce(rank, mine, {.op = op})));
        }
      }
    }
    const at::Tensor four = at::full({5}, 4.0, at::TensorOptions(device_of(rank)));
    EXPECT(is_filled(allreduce(rank, four, {}), 4));
    EXPECT(is_filled(allreduce(rank, four, {.op = ReduceOp::kSum, .prescale = 0.5, .postscale = 4}),
                     8.0 * rank.size));
  });
}

TEST_CASE("device collectives: in place, also where the tensor is not contiguous") {
  check_on_devices([](const ThreadRank& rank) {
    const double sum = sum_of_ranks(rank.size);
    at::Tensor whole = at::full({4, 6}, double(rank.rank), at::TensorOptions(device_of(rank)));
    const at::Tensor column = whole.select(1, 2);
    EXPECT(allreduce(rank, column, kSum, Place::kInPlace).is_same(column));
    EXPECT(is_filled(whole.select(1, 2), sum) && is_filled(whole.select(1, 1), rank.rank));
    allreduce(rank, whole.t(), {.op = ReduceOp::kMax}, Place::kInPlace);
    EXPECT(is_filled(whole.select(1, 2), sum) && is_filled(whole.select(1, 1), rank.size - 1));

    at::Tensor last =
        at::full({2, 3, 4, 4}, double(rank.rank)).contiguous(at::MemoryFormat::ChannelsLast);
    last = last.to(device_of(rank));
    allreduce(rank, last, kSum, Place::kInPlace);
    EXPECT(last.is_contiguous(at::MemoryFormat::ChannelsLast) && is_filled(last, sum));

    at::Tensor memory = at::full({3}, double(rank.rank + 1), at::TensorOptions(device_of(rank)));
    const at::Tensor negative = at::_neg_view(memory);
    allreduce(rank, negative, {.op = ReduceOp::kMax}, Place::kInPlace);
    EXPECT(is_filled(memory, 1));
  });
}

TEST_CASE("device collectives: broadcast of any type from any root, uneven allgather") {
  check_on_devices([](const ThreadRank& rank) {
    for (int root = 0; root < rank.size; ++root) {
      for (const auto type : {at::kShort, at::kBool, at::kComplexDouble, at::kHalf, at::kLong}) {
        const at::Tensor mine = at::full({3, 2}, rank.rank + 1).to(type).to(device_of(rank));
        for (const Place place : {Place::kNew, Place::kInPlace}) {
          const at::Tensor result =
              run(rank, TensorCollective::broadcast(mine, place, root, "broadcast"));
          EXPECT(result.is_same(mine) == (place == Place::kInPlace));
          EXPECT(result.cpu().equal(at::full({3, 2}, root + 1).to(type)));
        }
      }
    }
    for (const int more : {0, 1}) {  // of equal length, and not
      const at::Tensor mine = at::full({1 + more * rank.rank, 2, 3}, rank.rank, at::kInt);
      const at::Tensor all =
          run(rank, TensorCollective::allgather(mine.to(device_of(rank)), "gathered"));
      EXPECT(all.device() == device_of(rank));
      EXPECT(all.cpu().equal(run(rank, TensorCollective::allgather(mine, "on CPU"))));
    }
    const auto options = at::TensorOptions(device_of(rank));
    const at::Tensor scalars =
        run(rank, TensorCollective::allgather(at::full({}, rank.rank, options), "scalars"));
    EXPECT(scalars.cpu().equal(at::arange(rank.size, at::kFloat)));
    const int64_t rows = rank.rank + 1 == rank.size ? 4 : 0;
    const at::Tensor last_only =
        run(rank, TensorCollective::allgather(at::ones({rows, 2}, options), "of the last"));
    EXPECT(last_only.cpu().equal(at::ones({4, 2})));
    EXPECT(contains(error_of([&] {
                      run(rank, TensorCollective::allgather(at::ones({3, 0}, options), "no row"));
                    }),
                    "has no elements"));
  });
}

TEST_CASE("device collectives: asynchronous ones in other orders on each rank") {
  check_on_devices([](const ThreadRank& rank) {
    constexpr int kCount = 20;
    std::vector<Pending> pending(kCount);
    at::Tensor whole = at::full({kCount, 7}, double(rank.rank), at::TensorOptions(device_of(rank)));
    for (int k = 0; k < kCount; ++k) {
      const int i = rank.rank % 2 == 0 ? k : kCount - 1 - k;
      pending[size_t(i)] = submit(rank, TensorCollective::allreduce(whole[i], Place::kInPlace, kSum,
                                                                    "row " + std::to_string(i)));
    }
    for (const Pending& one : pending) one.take();
    EXPECT(is_filled(whole, sum_of_ranks(rank.size)));
  });
}

TEST_CASE("device collectives: streams order them, the host waits for none") {
  const StandinSetting delay("delay_us", "3000");
  check_on_devices([](const ThreadRank& rank) {
    const c10::Device device = device_of(rank);
    const auto options = at::TensorOptions(device);
    const std::vector<c10::Stream> streams = {
        current_standin_stream(device), new_standin_stream(device), new_standin_stream(device)};
    std::vector<at::Tensor> kept;
    // Nothing begins before all has been called: who waited for the device would wait for ever.
    std::latch may_begin(1);
    launch(streams[1], {}, [&] { may_begin.wait(); });
    const auto waits = [&] { return hvd_standin_count("host_waits", rank.rank); };
    const long long before = waits();
    for (int k = 1; k <= 12; ++k) {
      Pending in_place, fresh, all;
      {
        const c10::StreamGuard guard(streams[size_t(k % 3)]);
        const at::Tensor source = at::empty({100}, options);
        source.fill_(k + rank.rank);
        const at::Tensor column = at::empty({10, 100}, options).fill_(k + rank.rank).t();
        in_place = submit(rank, TensorCollective::allreduce(column, Place::kInPlace, kSum, "c"));
        fresh = submit(rank, TensorCollective::allreduce(source, Place::kNew, kSum, "n"));
        all = submit(rank, TensorCollective::allgather(source, "g"));
      }
      // Whoever takes a result, in whatever stream, has it; and may free it there.
      const c10::StreamGuard guard(streams[size_t((k + 1) % 3)]);
      for (const Pending* one : {&in_place, &fresh, &all}) {
        const at::Tensor result = one->take();
        kept.push_back(at::empty_like(result));
        kept.back().copy_(result);
      }
    }
    const long long waited = waits() - before;
    may_begin.count_down();
    EXPECT(waited == 0);
    for (const c10::Stream& stream : streams) wait_for(stream);
    for (size_t k = 0; k < kept.size(); k += 3) {
      const size_t round = k / 3 + 1;
      const double first = double(round), sum = first * rank.size + sum_of_ranks(rank.size);
      EXPECT(is_filled(kept[k], sum) && is_filled(kept[k + 1], sum));
      for (int r = 0; r < rank.size; ++r)
        EXPECT(is_filled(kept[k + 2].slice(0, r * 100, r * 100 + 100), first + r));
    }
  });
}

TEST_CASE("device collectives: what one stream takes stays until that is through with it") {
  run_on_devices(1, [](const ThreadRank& rank) {
    const c10::Device device = device_of(rank);
    const c10::Stream here = current_standin_stream(device), first = new_standin_stream(device),
                      second = new_standin_stream(device);
    const auto options = at::TensorOptions(device);
    const at::Tensor in_place = at::full({100, 10}, 5.0, options).t();
    for (int kind = 0; kind < 3; ++kind) {
      Pending pending;
      {
        const c10::StreamGuard guard(first);
        const at::Tensor source = at::full({100}, 5.0, options);
        pending = submit(
            rank, kind == 0   ? TensorCollective::allreduce(source, Place::kNew, kSum, "t")
                  : kind == 1 ? TensorCollective::allreduce(in_place, Place::kInPlace, kSum, "t")
                              : TensorCollective::allgather(source, "t"));
      }
      std::latch may_read(1);
      at::Tensor seen;
      {
        const c10::StreamGuard guard(second);
        launch(second, {}, [&] { may_read.wait(); });
        seen = pending.take().clone();
      }
      until("the sum", [&] { return pending.work->done(); });
      pending = {};
      for (const c10::Stream& stream : {here, first}) wait_for(stream);
      may_read.count_down();
      wait_for(second);
      EXPECT(is_filled(seen, 5));
    }
  });
}

TEST_CASE("device collectives: of two streams that take one result both have the whole") {
  run_on_devices(1, [](const ThreadRank& rank) {
    const StandinSetting at_once("delay_us", "0");
    const c10::Device device = device_of(rank);
    const c10::Stream first = new_standin_stream(device), second = new_standin_stream(device),
                      third = new_standin_stream(device);
    const at::Tensor whole = at::full({100, 10}, 3.0, at::TensorOptions(device));
    const Pending pending =
        submit(rank, TensorCollective::allreduce(whole.t(), Place::kInPlace,
                                                 {.op = ReduceOp::kSum, .prescale = 2}, "t"));
    std::latch may_write(1);
    {
      const c10::StreamGuard guard(first);
      launch(first, {}, [&] { may_write.wait(); });
      pending.take();
    }
    at::Tensor seen;
    {
      const c10::StreamGuard guard(second);
      pending.take();
      seen = whole.clone();
    }
    for (int k = 0; k < 20; ++k) launch(third, {}, [] {});  // as long as a copy takes
    wait_for(third);
    may_write.count_down();
    wait_for(second);
    EXPECT(is_filled(seen, 6));
  });
}

TEST_CASE("device collectives: parameters and an optimizer's state are root's afterwards") {
  check_on_devices([](const ThreadRank& rank) {
    const int root = rank.size - 1;
    const auto make = [&](int steps_of, double lr) {
      auto net = nets::mlp()();
      nets::move_to(*net, device_of(rank));
      auto optimizer = nets::sgd(lr)(net->parameters());
      for (int step = 0; step < 3; ++step) {
        optimizer->zero_grad();
        net->loss(steps_of, step).backward();
        optimizer->step();
      }
      return std::pair(std::move(net), std::move(optimizer));
    };
    const auto [net, optimizer] = make(rank.rank, 0.01 * (rank.rank + 1));
    const auto [expected, its_optimizer] = make(root, 0.01 * (root + 1));
    NamedTensors tensors;
    for (const auto& item : net->named_parameters()) tensors.emplace_back(item.key(), item.value());
    broadcast_tensors(*rank.engine, tensors, root);
    broadcast_optimizer(*rank.engine, *optimizer, root);
    expect_same(*net, *expected);
    for (const auto& [one, its] :
         {std::pair(net, optimizer.get()), std::pair(expected, its_optimizer.get())}) {
      its->zero_grad();
      one->loss(0, 7).backward();
      its->step();
      EXPECT(one->parameters()[0].device() == device_of(rank));
    }
    expect_same(*net, *expected);
  });
}

TEST_CASE("device collectives: on CPU here and on a GPU there is an error on every rank") {
  for (const int size : {2, 4}) {
    run_on_devices(size, [](const ThreadRank& rank) {
      const at::Tensor mine =
          at::ones({4}, rank.rank == 1 ? at::TensorOptions() : at::TensorOptions(device_of(rank)));
      for (const auto& collective : {TensorCollective::allreduce(mine, Place::kNew, kSum, "mixed"),
                                     TensorCollective::broadcast(mine, Place::kNew, 0, "mixed too"),
                                     TensorCollective::allgather(mine, "mixed three")}) {
        const std::string error = error_of([&] { submit(rank, collective).take(); });
        EXPECT(contains(error, "\"mixed") && contains(error, "on a GPU"));
      }
      EXPECT(is_filled(allreduce(rank, at::ones({3}, at::TensorOptions(device_of(rank))), kSum),
                       rank.size));
    });
  }
}

TEST_CASE("device collectives: another type on one rank is an error on every rank") {
  run_on_devices(3, [](const ThreadRank& rank) {
    const auto type = rank.rank == 1 ? at::kDouble : at::kFloat;
    const at::Tensor mine = at::ones({4}, at::TensorOptions(device_of(rank)).dtype(type));
    for (const auto& collective : {TensorCollective::allreduce(mine, Place::kNew, kSum, "typed"),
                                   TensorCollective::broadcast(mine, Place::kNew, 0, "typed too"),
                                   TensorCollective::allgather(mine, "typed three")}) {
      const std::string error = error_of([&] { submit(rank, collective).take(); });
      EXPECT(contains(error, "\"typed") && contains(error, "float32") &&
             contains(error, "float64") && contains(error, "rank 1"));
    }
    EXPECT(is_filled(allreduce(rank, at::ones({3}, at::TensorOptions(device_of(rank))), kSum),
                     rank.size));
  });
}

TEST_CASE("device collectives: a type of which there are no sums is refused, and nobody waits") {
  run_on_devices(2, [](const ThreadRank& rank) {
    for (const auto type : {at::kComplexFloat, at::kShort}) {
      const at::Tensor mine = at::ones({4}, at::TensorOptions(device_of(rank)).dtype(type));
      const std::string error = error_of([&] { allreduce(rank, mine, kSum); });
      EXPECT(contains(error, "\"t\"") && contains(error, at::toString(type)));
    }
    EXPECT(is_filled(allreduce(rank, at::ones({3}, at::TensorOptions(device_of(rank))), kSum),
                     rank.size));
  });
}

TEST_CASE("device collectives: a tensor on a GPU that the rank does not use is refused") {
  run_on_devices(2, [](const ThreadRank& rank) {
    const at::Tensor elsewhere =
        at::ones({4}, at::TensorOptions(standin_torch_device(rank.rank + 2)));
    for (const auto& collective : {TensorCollective::allreduce(elsewhere, Place::kNew, kSum, "t"),
                                   TensorCollective::allgather(elsewhere, "t")}) {
      const std::string error = error_of([&] { run(rank, collective); });
      EXPECT(contains(error, "\"t\"") && contains(error, ":" + std::to_string(rank.rank + 2)) &&
             contains(error, "uses GPU " + std::to_string(rank.rank)));
    }
  });
  run_as_threads(1, [](const ThreadRank& rank) {
    const at::Tensor tensor = at::ones({4}, at::TensorOptions(standin_torch_device(0)));
    EXPECT(contains(error_of([&] { allreduce(rank, tensor, kSum); }), "uses no GPU"));
  });
}

}  // namespace hvd
