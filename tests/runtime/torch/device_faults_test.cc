// Training on devices that goes wrong: every rank is told what, and by whom; none waits for ever.
#include <ATen/ATen.h>

#include <optional>
#include <string>
#include <vector>

#include "runtime/torch/tensor_collective.h"
#include "tests/collectives/nccl/device_ranks.h"
#include "tests/collectives/nccl/standin.h"
#include "tests/runtime/torch/device/memory.h"
#include "tests/runtime/torch/device/ranks.h"
#include "tests/runtime/torch/training.h"

namespace hvd {
namespace {

nets::MakeNet mlp_on(c10::Device device) {
  return [device] {
    auto net = nets::mlp()();
    nets::move_to(*net, device);
    return net;
  };
}

// What `body` threw on each rank: "CommFailure: …", "Error: …", or "" for nothing.
std::vector<std::string> errors_of(int size, const std::function<void(const ThreadRank&)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(size));
  run_on_devices(size, [&](const ThreadRank& rank) {
    std::string& said = errors[static_cast<size_t>(rank.rank)];
    try {
      body(rank);
    } catch (const CommFailure& failure) {
      said = std::string("CommFailure: ") + failure.what();
    } catch (const Error& error) {
      said = std::string("Error: ") + error.what();
    }
  });
  return errors;
}

// Leaves that many bytes free, until it is gone. Only with StandinSetting("device_bytes", …).
class FullDevice {
 public:
  FullDevice(int ordinal, size_t all, size_t left) : ordinal_(ordinal) {
    // What tests before have let go of is freed before an allocation is refused.
    EXPECT(contains(error_of([&] { standin_backend(ordinal).allocate(all + 1); }), "no room"));
    const CudaDevice::Current current(standin_device(ordinal));
    standin_driver().check(
        standin_driver().cuMemAlloc(&memory_, all - hvd_standin_used(ordinal) - left), "the rest");
  }
  ~FullDevice() {
    const CudaDevice::Current current(standin_device(ordinal_));
    standin_driver().cuMemFree(memory_);
  }
  FullDevice(const FullDevice&) = delete;
  FullDevice& operator=(const FullDevice&) = delete;

 private:
  const int ordinal_;
  CUdeviceptr memory_ = 0;
};

// So that there is some of each size that a step may want, and the device need not be asked.
void fill_cache(const ThreadRank& rank) {
  std::vector<at::Tensor> let_go;
  for (int64_t bytes = 512; bytes <= 128 << 10; bytes *= 2)
    for (int i = 0; i < 16; ++i)
      let_go.push_back(at::empty({bytes}, at::TensorOptions(device_of(rank)).dtype(at::kByte)));
}

constexpr size_t kDeviceBytes = 64 << 20;
const std::string kDeviceBytesText = std::to_string(kDeviceBytes);

}  // namespace

TEST_CASE("device faults: a rank that leaves in the middle of a step ends the others' by name") {
  for (const bool before_backward : {true, false}) {
    const auto errors = errors_of(3, [&](const ThreadRank& rank) {
      Training t(rank, mlp_on(device_of(rank)), nets::sgd(), kSmallBuckets);
      t.train(0, 2);
      t.optimizer->zero_grad();
      if (rank.rank == 2 && before_backward) return;
      t.backward(2);
      if (rank.rank == 2) return;
      for (int step = 3; step < 5; ++step) {
        t.optimizer->step();
        t.train(step, step + 1);
      }
    });
    for (const int rank : {0, 1})
      CHECK_THAT(errors[size_t(rank)],
                 Catch::StartsWith("CommFailure: step 3 of ") && Catch::Contains("rank 2"));
  }
}

TEST_CASE("device faults: an asynchronous error of NCCL ends the training of all by its words") {
  const StandinSetting dead("fault_rank", "1"), after("async_error_after", "7");
  const auto errors = errors_of(3, [&](const ThreadRank& rank) {
    Training t(rank, mlp_on(device_of(rank)), nets::sgd(), kSmallBuckets);
    t.train(0, 20);
  });
  for (const std::string& error : errors)
    CHECK_THAT(error, Catch::StartsWith("CommFailure: step ") && Catch::Contains("rank 1") &&
                          Catch::Contains("NCCL failed in ") &&
                          Catch::Contains("unhandled cuda error"));
}

TEST_CASE("device faults: a GPU without room for buckets: which, how many bytes, on all ranks") {
  const StandinSetting all("device_bytes", kDeviceBytesText.c_str());
  const KeptCache kept;
  const auto errors = errors_of(3, [&](const ThreadRank& rank) {
    const auto net = mlp_on(device_of(rank))();
    std::optional<FullDevice> full;
    if (rank.rank == 1) full.emplace(1, kDeviceBytes, 20'000);
    Training t(rank, [&] { return net; }, nets::sgd(), kSmallBuckets);
    t.train(0, 1);
  });
  CHECK_THAT(errors[1], Catch::StartsWith("Error: buckets 0 to 3 of ") &&
                            Catch::Contains("GPU 1 has no room"));
  for (const int rank : {0, 2})
    CHECK_THAT(errors[size_t(rank)],
               Catch::StartsWith("CommFailure: ") &&
                   Catch::Contains("rank 1 cannot make its optimizer: buckets 0 to 3 of ") &&
                   Catch::Contains("GPU 1 has no room for 50688 bytes more ("));
}

TEST_CASE("device faults: what LibTorch only keeps for later makes room for buckets") {
  const StandinSetting all("device_bytes", kDeviceBytesText.c_str());
  const auto errors = errors_of(2, [&](const ThreadRank& rank) {
    const auto net = mlp_on(device_of(rank))();
    std::optional<FullDevice> full;
    const auto fill = [&] {
      {
        const at::Tensor let_go = at::empty({1 << 20}, at::TensorOptions(device_of(rank)));
      }
      if (rank.rank == 1) full.emplace(1, kDeviceBytes, 20'000);
    };
    fill();
    Training t(rank, [&] { return net; }, nets::sgd(), kSmallBuckets);
    t.train(0, 1);
    std::vector<std::pair<at::Tensor, at::Tensor>> kept;
    for (const at::Tensor& p : t.net->parameters()) kept.emplace_back(p.grad(), p.grad().cpu());
    full.reset();
    fill();
    t.train(1, 2);
    for (const auto& [gradient, copy] : kept) EXPECT(same_bits(gradient, copy));
  });
  for (const std::string& error : errors) CHECK_THAT(error, Catch::Equals(""));
}

TEST_CASE("device faults: without room beside kept gradients the step fails for all") {
  const StandinSetting all("device_bytes", kDeviceBytesText.c_str());
  const KeptCache cache;
  const auto errors = errors_of(3, [&](const ThreadRank& rank) {
    Training t(rank, mlp_on(device_of(rank)), nets::sgd(), kSmallBuckets);
    t.train(0, 1);
    std::vector<std::pair<at::Tensor, at::Tensor>> kept;
    std::optional<FullDevice> full;
    if (rank.rank == 1) {
      for (const at::Tensor& p : t.net->parameters()) kept.emplace_back(p.grad(), p.grad().cpu());
      fill_cache(rank);
      full.emplace(1, kDeviceBytes, 20'000);
    }
    t.optimizer->zero_grad();
    t.backward(1);  // not where it is heard
    std::string error;
    try {
      t.optimizer->step();
    } catch (const CommFailure& failure) {
      error = failure.what();
    }
    for (const auto& [gradient, copy] : kept) EXPECT(same_bits(gradient, copy));
    throw CommFailure(error, false);
  });
  for (const std::string& error : errors)
    CHECK_THAT(error, Catch::Contains("rank 1 kept gradients and has no room for the next ones: "
                                      "bucket 1 of ") &&
                          Catch::Contains("GPU 1 has no room for 36416 bytes more ("));
}

TEST_CASE("device faults: without room for what is gathered there is an error on all ranks") {
  const KeptCache cache;
  const StandinSetting all("device_bytes", kDeviceBytesText.c_str());
  const auto errors = errors_of(3, [](const ThreadRank& rank) {
    const at::Tensor mine = at::ones({1 << 20}, at::TensorOptions(device_of(rank)));
    std::optional<FullDevice> full;
    if (rank.rank == 1) full.emplace(1, kDeviceBytes, 6 << 20);  // a copy, and no more
    const auto gather = [&] {
      TensorCollective::run(*rank.engine, TensorCollective::allgather(mine, "parts"));
    };
    gather();
    gather();  // of the first one the others may have launched theirs
  });
  for (const std::string& error : errors)
    CHECK_THAT(error, Catch::StartsWith("CommFailure: ") &&
                          Catch::Contains("rank 1: allgather \"parts\": no room for its result of "
                                          "12582912 bytes: device 1 has no room for"));
}

TEST_CASE("device faults: without room for a copy of a tensor there is an error on all ranks") {
  const KeptCache cache;
  using Place = TensorCollective::Place;
  using Make = std::shared_ptr<TensorCollective> (*)(const at::Tensor&);
  struct Kind {
    const char* title;
    Make make;
  };
  const auto kinds = {
      Kind{
          "allreduce",
          [](const at::Tensor& x) { return TensorCollective::allreduce(x, Place::kNew, {}, "x"); }},
      Kind{"allreduce",
           [](const at::Tensor& x) {
             return TensorCollective::allreduce(x.t(), Place::kInPlace, {}, "x");
           }},
      Kind{"broadcast",
           [](const at::Tensor& x) { return TensorCollective::broadcast(x, Place::kNew, 0, "x"); }},
      Kind{"allgather", [](const at::Tensor& x) { return TensorCollective::allgather(x, "x"); }}};
  const StandinSetting all("device_bytes", kDeviceBytesText.c_str());
  for (const Kind& kind : kinds) {
    const auto errors = errors_of(3, [&](const ThreadRank& rank) {
      // Of a size that no other test has freed.
      const at::Tensor mine = at::ones({2, 1 << 18}, at::TensorOptions(device_of(rank)));
      std::optional<FullDevice> full;
      if (rank.rank == 1) full.emplace(1, kDeviceBytes, 1 << 20);
      TensorCollective::run(*rank.engine, kind.make(mine));
    });
    const std::string why = std::string(kind.title) +
                            " \"x\": no room for a copy of its tensor of 2097152 bytes: device 1 ";
    CHECK_THAT(errors[1], Catch::StartsWith("Error: " + why));
    for (const int rank : {0, 2})
      CHECK_THAT(errors[size_t(rank)],
                 Catch::StartsWith("CommFailure: ") && Catch::Contains("rank 1: " + why));
  }
}

TEST_CASE("device faults: a GPU that is lost in backward ends the step of all by name") {
  const auto errors = errors_of(3, [](const ThreadRank& rank) {
    Training t(rank, mlp_on(device_of(rank)), nets::sgd(), kSmallBuckets);
    t.train(0, 2);
    t.optimizer->zero_grad();
    if (rank.rank == 1) {
      const StandinSetting lost("lost_device", "1:cuEventRecord:1");
      t.backward(2);
    } else {
      t.backward(2);
    }
    t.optimizer->step();
  });
  for (const size_t rank : {size_t{0}, size_t{2}})
    CHECK_THAT(errors[rank], Catch::StartsWith("CommFailure: step 3 of ") &&
                                 Catch::Contains("rank 1 cannot hand out its gradients: an event "
                                                 "cannot be recorded: unspecified launch failure"));
  CHECK_THAT(errors[1], Catch::Contains("unspecified launch failure"));
}

TEST_CASE("device faults: an optimizer on CPU here and on a GPU there is an error on every rank") {
  const auto errors = errors_of(2, [](const ThreadRank& rank) {
    const c10::Device mine = rank.rank == 0 ? c10::Device(c10::kCPU) : device_of(rank);
    Training t(rank, mlp_on(mine), nets::sgd());
  });
  for (const std::string& error : errors)
    CHECK_THAT(error, Catch::StartsWith("Error: ") && Catch::Contains("differ between ranks") &&
                          Catch::Contains("on a GPU"));
}

TEST_CASE("device faults: parameters on several devices, or on one that is not used") {
  const auto errors = errors_of(2, [](const ThreadRank& rank) {
    const auto net = mlp_on(device_of(rank))();
    nets::move_to(*net, standin_torch_device(rank.rank + 4));
    Training t(rank, [&] { return net; }, nets::sgd());
  });
  for (size_t rank = 0; rank < 2; ++rank)
    CHECK_THAT(errors[rank],
               Catch::Contains("GPU " + std::to_string(rank + 4) + " is not used by this rank"));
  const auto split = errors_of(2, [](const ThreadRank& rank) {
    const at::Tensor here = at::ones({3}, at::TensorOptions(device_of(rank))).requires_grad_();
    const at::Tensor there = at::ones({3}).requires_grad_();
    Buckets buckets("two", {{"here", here}, {"there", there}}, {}, rank.make);
  });
  for (const std::string& error : split)
    CHECK_THAT(error, Catch::StartsWith("Error: parameter \"there\" is on cpu") &&
                          Catch::Contains("on one device"));
}

}  // namespace hvd
