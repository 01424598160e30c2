// Gradients on devices go into their buckets, and results out of them, by one kernel for many;
// what that cannot do LibTorch does, with the same bits.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <array>
#include <cmath>
#include <latch>
#include <limits>
#include <memory>
#include <optional>

#include "runtime/torch/tensor_copies.h"
#include "tests/collectives/nccl/device_ranks.h"
#include "tests/collectives/nccl/standin.h"
#include "tests/runtime/torch/device/ranks.h"
#include "tests/runtime/torch/training.h"

namespace hvd {
namespace {

const c10::Device kDevice = standin_torch_device(0);
constexpr at::ScalarType kFloats[] = {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble};

at::Tensor empty_on_device(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  return at::empty(sizes, at::TensorOptions(kDevice).dtype(type));
}

bool has_cast(const at::Tensor& to, const at::Tensor& from) {
  return cast_of({to, from}).has_value();
}

// With what is next to a tie of a 16-bit type, too small and too large for one.
at::Tensor strange_values(at::ScalarType type) {
  std::vector<double> values = {0,     -0.0,  std::numeric_limits<double>::infinity(),
                                65519, 65520, 1e300};
  for (int exponent = -30; exponent <= 16; ++exponent)
    for (int step = 0; step < 64; ++step)
      values.push_back(std::ldexp(step % 2 == 0 ? 1 : -1, exponent) * (1 + step * 0x1p-11));
  return at::tensor(values, at::kDouble).to(type);
}

long long casts(const ThreadRank& rank) { return hvd_standin_count("kernel hvd_cast", rank.rank); }
long long launches(const ThreadRank& rank) {
  return hvd_standin_count("collective_launches", rank.rank);
}

// The ranks' training, and on the CPU one process that does all of it, by LibTorch's copies.
struct Both {
  Both(const ThreadRank& rank, const nets::MakeNet& make,
       const DistributedOptimizerOptions& its_options)
      : options(its_options),
        ranks(rank, on_device(rank, make), nets::sgd(), options),
        alone(make, nets::sgd()) {}

  void step_alone(int step) const {
    std::vector<std::vector<at::Tensor>> parts;
    for (int part = ranks.rank.size - 1; part >= 0; --part) {
      alone.net->zero_grad();
      for (int pass = 0; pass < options.backward_passes_per_step; ++pass)
        alone.net->loss(part, 10 * step + pass).backward();
      parts.emplace_back();
      for (const at::Tensor& p : alone.net->parameters()) parts.back().push_back(p.grad());
    }
    const auto parameters = alone.net->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      std::vector<at::Tensor> of_one;
      for (const auto& part : parts) of_one.push_back(part[i]);
      parameters[i].mutable_grad() = combine(of_one, options, AddFrom::kLast);
    }
    alone.optimizer->step();
  }
  void step(int step, bool set_to_none = true) {
    ranks.optimizer->zero_grad(set_to_none);
    for (int pass = 0; pass < options.backward_passes_per_step; ++pass)
      ranks.backward(10 * step + pass);
    ranks.optimizer->step();
    step_alone(step);
  }
  void expect_same() const { hvd::expect_same(*ranks.net, *alone.net); }

  const DistributedOptimizerOptions options;
  Training ranks;
  Alone alone;
};

// A parameter of each floating type, which all travel as float16.
struct Mixed : nets::Net {
  std::vector<at::Tensor> all;
  Mixed() {
    for (const at::ScalarType type : kFloats)
      register_parameter(c10::toString(type), nets::random(0, 100, {30, 7}).to(type));
    take_own();
  }
  void take_own() override {
    const auto named = named_parameters();
    all.clear();
    for (const at::ScalarType type : kFloats) all.push_back(named[c10::toString(type)]);
  }
  at::Tensor loss(int part, int step) override {
    at::Tensor sum;
    for (const at::Tensor& one : all) {
      const at::Tensor x = nets::random(part, step, {30, 7}).to(one.device()).to(one.scalar_type());
      const at::Tensor its = (x * one).to(at::kDouble).pow(2).sum();
      sum = sum.defined() ? sum + its : its;
    }
    return sum;
  }
};

constexpr DistributedOptimizerOptions options_of(Compression compression, int passes = 1,
                                                 size_t bucket_bytes = 8 << 10) {
  return {
      .compression = compression, .backward_passes_per_step = passes, .bucket_bytes = bucket_bytes};
}

}  // namespace

TEST_CASE("device copies: what lies alike in both, without gaps, is the kernel's") {
  const at::Tensor x = empty_on_device({4, 6}), half = empty_on_device({4, 6}, at::kHalf);
  CHECK(has_cast(x, half));
  CHECK(has_cast(half, x));
  CHECK(has_cast(empty_on_device({}), empty_on_device({})));
  CHECK(has_cast(empty_on_device({6, 4}).t(), empty_on_device({6, 4}, at::kDouble).t()));
  CHECK(has_cast(empty_on_device({4, 1, 6}),
                 empty_on_device({4, 6}).as_strided({4, 1, 6}, {6, 77, 1})));
  const auto cast = cast_of({empty_on_device({4, 12}).view({2, 24})[1], half.view({24})});
  REQUIRE(cast);
  CHECK(cast->from.data == half.data_ptr());
  CHECK((cast->from.type == DataType::kFloat16 && cast->to.type == DataType::kFloat32));
  CHECK((cast->from.count == 24 && cast->to.count == 24));
}

TEST_CASE("device copies: everything else is LibTorch's") {
  const at::Tensor x = empty_on_device({4, 6});
  CHECK(!has_cast(x, empty_on_device({6, 4}).t()));                           // transposed
  CHECK(!has_cast(x, empty_on_device({6}).expand({4, 6})));                   // expanded
  CHECK(!has_cast(x, empty_on_device({4, 12}).as_strided({4, 6}, {12, 1})));  // gaps
  CHECK(!has_cast(empty_on_device({4, 12}).as_strided({4, 6}, {12, 1}), x));
  CHECK(!has_cast(empty_on_device({4, 12}).as_strided({4, 6}, {12, 1}),
                  empty_on_device({4, 12}).as_strided({4, 6}, {12, 1})));
  CHECK(!has_cast(x, empty_on_device({24})));
  CHECK(!has_cast(x, empty_on_device({4, 6}, at::kInt)));
  CHECK(!has_cast(x, at::empty({4, 6})));  // of another device
  CHECK(!has_cast(at::empty({4, 6}), at::empty({4, 6})));
  const at::Tensor negative = x.view({4, 6});
  negative._set_neg(true);
  CHECK(!has_cast(x, negative));
  CHECK(!has_cast(negative, x));
}

TEST_CASE("device copies: from every type to every type LibTorch's bits, by one launch") {
  std::vector<TensorCopy> copies;
  std::vector<at::Tensor> wanted;
  for (const at::ScalarType from : kFloats)
    for (const at::ScalarType to : kFloats) {
      const at::Tensor values = strange_values(from);
      copies.push_back({empty_on_device(values.sizes(), to), values.to(kDevice)});
      wanted.push_back(values.to(to));
    }
  const long long before = hvd_standin_count("kernel hvd_cast", 0);
  const auto version = copies[1].to._version();
  make_copies(copies, &standin_backend(0));
  CHECK(hvd_standin_count("kernel hvd_cast", 0) == before + 1);
  CHECK(copies[1].to._version() == version + 1);
  for (size_t k = 0; k < copies.size(); ++k) {
    INFO(copies[k].from.scalar_type() << " to " << copies[k].to.scalar_type());
    CHECK(same_bits(copies[k].to, wanted[k]));
  }
}

TEST_CASE("device copies: multiplied before they are rounded, by the kernel as by LibTorch") {
  for (const double factor : {1.0 / 3, 0x1p-30, 65519.0}) {
    std::vector<TensorCopy> by_kernel, by_torch;
    for (const at::ScalarType from : kFloats)
      for (const at::ScalarType to : kFloats) {
        const at::Tensor values = strange_values(from).to(kDevice);
        by_kernel.push_back({empty_on_device(values.sizes(), to), values});
        by_torch.push_back({empty_on_device(values.sizes(), to), values});
      }
    for (const at::ScalarType type : kFloats) {  // in their place
      const at::Tensor one = strange_values(type).to(kDevice), same = one.clone();
      by_kernel.push_back({one, one});
      by_torch.push_back({same, same});
    }
    make_copies(by_kernel, &standin_backend(0), factor);
    make_copies(by_torch, nullptr, factor);
    for (size_t k = 0; k < by_kernel.size(); ++k) {
      INFO(by_kernel[k].from.scalar_type() << " to " << by_kernel[k].to.scalar_type());
      CHECK(same_bits(by_kernel[k].to, by_torch[k].to));
    }
    const at::Tensor wanted = strange_values(at::kFloat).mul(static_cast<float>(factor));
    CHECK(same_bits(by_kernel[2 * std::size(kFloats)].to, wanted.to(at::kHalf)));
  }
}

TEST_CASE("device copies: a NaN stays one") {
  for (const at::ScalarType from : kFloats)
    for (const at::ScalarType to : kFloats) {
      const at::Tensor nan = at::full({3}, std::nan(""), at::TensorOptions(kDevice).dtype(from));
      const TensorCopy copy{at::zeros({3}, at::TensorOptions(kDevice).dtype(to)), nan};
      make_copies({copy}, &standin_backend(0));
      CHECK(copy.to.cpu().isnan().all().item<bool>());
    }
}

TEST_CASE("device copies: a launch for each bucket, and one for all results that are cast back") {
  for (const auto compression : {Compression::kNone, Compression::kFp16}) {
    check_on_devices([&](const ThreadRank& rank) {
      Both both(rank, nets::mlp(), options_of(compression));
      both.step(0);
      for (int step = 1; step < 6; ++step) {
        const long long casts_before = casts(rank), before = launches(rank);
        const long long copied = hvd_standin_count("copies_within", rank.rank);
        both.step(step);
        const long long buckets = launches(rank) - before;
        EXPECT(buckets > 1 &&
               buckets < static_cast<long long>(both.ranks.net->parameters().size()));
        EXPECT(casts(rank) - casts_before ==
               (compression == Compression::kNone ? buckets : buckets + 1));
        EXPECT(hvd_standin_count("copies_within", rank.rank) == copied);
      }
      both.expect_same();
    });
  }
}

TEST_CASE("device copies: parameters of all types travel in one bucket, by one launch each way") {
  check_on_devices([](const ThreadRank& rank) {
    Both both(rank, [] { return std::make_shared<Mixed>(); }, options_of(Compression::kFp16));
    for (int step = 0; step < 4; ++step) {
      const long long before = casts(rank);
      both.step(step);
      EXPECT(casts(rank) - before == 2);
    }
    both.expect_same();
  });
}

TEST_CASE("device copies: with several passes for a step in the first, or cast after the last") {
  for (const auto compression : {Compression::kNone, Compression::kFp16}) {
    for (const bool set_to_none : {true, false}) {
      check_on_devices([&](const ThreadRank& rank) {
        Both both(rank, nets::mlp(), options_of(compression, 3));
        both.step(0);
        for (int step = 1; step < 5; ++step) {
          const long long casts_before = casts(rank), before = launches(rank);
          both.step(step, set_to_none);
          const long long buckets = launches(rank) - before;
          const auto parameters = static_cast<long long>(both.ranks.net->parameters().size());
          const long long uncast = (set_to_none ? parameters : 0) + (rank.size > 1 ? buckets : 0);
          EXPECT(casts(rank) - casts_before ==
                 (compression == Compression::kNone ? uncast : buckets + 1));
        }
        both.expect_same();
      });
    }
  }
}

TEST_CASE("device copies: gradients that lie otherwise arrive, too, and results come to them") {
  for (const auto compression : {Compression::kNone, Compression::kFp16}) {
    check_on_devices([&](const ThreadRank& rank) {
      Training t(rank, on_device(rank, nets::mlp()), nets::sgd(0, 0), options_of(compression));
      const auto parameters = t.net->parameters();
      const double mean = (rank.size + 1) / 2.0;
      for (int step = 0; step < 3; ++step) {
        const long long before = casts(rank);
        for (const at::Tensor& p : parameters) {
          const auto options = p.options().requires_grad(false);
          at::Tensor wide = at::full({2 * p.numel()}, rank.rank + 1, options);
          p.mutable_grad() = step == 0 ? at::full({1}, rank.rank + 1, options).expand_as(p)
                                       : wide.as_strided(p.sizes(), [&] {
                                           auto strides = p.strides().vec();
                                           for (int64_t& one : strides) one *= 2;
                                           return strides;
                                         }());
        }
        t.optimizer->step();
        // What has elements that share memory gets a new gradient, which the kernel writes.
        EXPECT(casts(rank) - before == (compression == Compression::kFp16 && step == 0 ? 1 : 0));
        for (const at::Tensor& p : parameters)
          EXPECT(same_bits(p.grad(), at::full(p.sizes(), mean)));
      }
    });
  }
}

TEST_CASE(
    "device copies: LibTorch makes all of them where the driver does not take hvd's kernels") {
  const StandinSetting old("architecture", "70");
  const auto backends = std::array{make_standin_backend(0), make_standin_backend(1)};
  for (const auto compression : {Compression::kNone, Compression::kFp16}) {
    CHECK_THAT(error_of([&] {
                 run_as_threads(2, [&](const ThreadRank& rank) {
                   const c10::DeviceGuard guard(device_of(rank));
                   rank.engine->use_device(*backends[static_cast<size_t>(rank.rank)]);
                   Both both(rank, nets::mlp(), options_of(compression));
                   const long long before = casts(rank);
                   for (int step = 0; step < 4; ++step) both.step(step);
                   EXPECT(casts(rank) == before);
                   both.expect_same();
                 });
               }),
               Catch::Equals(""));
  }
}

// They come in one stream and are copied in another, which is late: not before that may the memory
// they had be given out again, which the device overwrites at once.
TEST_CASE("device copies: a gradient of another stream is kept until it has been copied") {
  const StandinSetting at_once("delay_us", "0");
  check_on_devices([](const ThreadRank& rank) {
    const c10::Stream here = current_standin_stream(device_of(rank)),
                      other = new_standin_stream(device_of(rank));
    std::optional<Both> both;
    {
      const c10::StreamGuard guard(other);  // where autograd calls the hooks from then on
      both.emplace(rank, nets::unused(), options_of(Compression::kNone, 1, 1 << 20));
    }
    for (int step = 0; step < 4; ++step) {
      both->ranks.optimizer->zero_grad();
      order(other, here);
      {
        const c10::StreamGuard guard(other);
        both->ranks.backward(10 * step);
      }
      std::latch overwritten(1);
      launch(here, {}, [&] { overwritten.wait(); });
      both->ranks.optimizer->step();  // a parameter has no gradient, so all are copied here
      wait_for(other);
      overwritten.count_down();
      wait_for(here);
      both->step_alone(step);
    }
    both->expect_same();
  });
}

}  // namespace hvd
