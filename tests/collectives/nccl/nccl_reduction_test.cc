// What NCCL is asked for, and what kernels do about it.
#include "collectives/nccl/nccl_reduction.h"

#include <cmath>
#include <random>

#include "tests/support/catch.h"

namespace hvd {
namespace {

using Type = DataType;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool same(const Factors& a, const Factors& b) {
  return a.pre == b.pre && a.post == b.post && a.divisor == b.divisor;
}
bool is(const NcclReduction& made, const NcclReduction& wanted) {
  return made.op == wanted.op && made.factor == wanted.factor && same(made.before, wanted.before) &&
         same(made.after, wanted.after);
}
NcclReduction of(ReduceOp op, double pre, double post, Type type, int ranks = 4) {
  return nccl_reduction_of({op, pre, post}, type, ranks);
}

}  // namespace

TEST_CASE("nccl reduction: without factors it is NCCL's own") {
  for (const Type type : {Type::kInt8, Type::kInt64, Type::kFloat16, Type::kFloat64}) {
    CHECK(is(of(ReduceOp::kSum, 1, 1, type), {.op = ncclSum}));
    CHECK(is(of(ReduceOp::kAverage, 1, 1, type), {.op = ncclAvg}));
    CHECK(is(of(ReduceOp::kMin, 1, 1, type), {.op = ncclMin}));
    CHECK(is(of(ReduceOp::kMax, 1, 1, type), {.op = ncclMax}));
    CHECK(is(of(ReduceOp::kProduct, 1, 1, type), {.op = ncclProd}));
  }
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax})
    CHECK(is(of(op, 1, 1, Type::kBool), {.op = ncclMax}));
  for (const ReduceOp op : {ReduceOp::kProduct, ReduceOp::kMin})
    CHECK(is(of(op, 1, 1, Type::kBool), {.op = ncclMin}));
}

TEST_CASE("nccl reduction: a sum of floats takes all factors where an input is read") {
  CHECK(is(of(ReduceOp::kSum, 0.5, 3, Type::kFloat16), {.factor = 1.5}));
  CHECK(is(of(ReduceOp::kAverage, 1, 0.3, Type::kFloat32), {.factor = 0.3 / 4}));
  // What a 16-bit scalar would round, and 1e-6 to a fraction of it.
  CHECK(is(of(ReduceOp::kAverage, 1, 1, Type::kBfloat16, 3), {.before = {.pre = 1.0 / 3}}));
  CHECK(is(of(ReduceOp::kAverage, 1, 1, Type::kFloat32, 3), {.op = ncclAvg}));
  CHECK(is(of(ReduceOp::kSum, 0.3, 1, Type::kBfloat16), {.before = {.pre = 0.3}}));
  CHECK(is(of(ReduceOp::kAverage, 4e-6, 1, Type::kFloat16), {.before = {.pre = 1e-6}}));
}

namespace {

// The mean error of averages of three, of inputs that are multiplied with this factor and rounded,
// and then summed in float32.
template <class T>
double mean_error_of_averages(float factor) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> values(-1, 1);
  constexpr int kRanks = 3, kTimes = 10'000;
  double sum_of_errors = 0;
  for (int k = 0; k < kTimes; ++k) {
    float sum = 0;
    double exact = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      const T input(values(random));
      exact += static_cast<double>(static_cast<float>(input)) / kRanks;
      sum += static_cast<float>(scaled(input, {.pre = static_cast<double>(factor)}));
    }
    sum_of_errors += std::abs(static_cast<double>(static_cast<float>(T(sum))) - exact);
  }
  return sum_of_errors / kTimes;
}

}  // namespace

TEST_CASE("nccl reduction: a factor of float32 is nearer than one of the elements' type") {
  const float third = 1.0F / 3;
  CHECK(mean_error_of_averages<float16>(third) <
        0.95 * mean_error_of_averages<float16>(static_cast<float>(float16(third))));
  CHECK(mean_error_of_averages<bfloat16>(third) <
        0.95 * mean_error_of_averages<bfloat16>(static_cast<float>(bfloat16(third))));
}

TEST_CASE("nccl reduction: integers are scaled before, and behind, where the sum is whole") {
  CHECK(
      is(of(ReduceOp::kSum, 0.5, 3, Type::kInt32), {.before = {.pre = 0.5}, .after = {.post = 3}}));
  CHECK(is(of(ReduceOp::kAverage, 0.5, 1, Type::kInt64), {.op = ncclAvg, .before = {.pre = 0.5}}));
  CHECK(is(of(ReduceOp::kAverage, 1, 3, Type::kUint8, 7), {.after = {.post = 3, .divisor = 7}}));
  CHECK(is(of(ReduceOp::kProduct, 2, 3, Type::kFloat32),
           {.op = ncclProd, .before = {.pre = 2}, .after = {.post = 3}}));
}

TEST_CASE("nccl reduction: of extremes all is done before, and a negative factor turns them") {
  for (const Type type : {Type::kInt8, Type::kFloat16, Type::kFloat64}) {
    CHECK(is(of(ReduceOp::kMin, -2, 3, type), {.op = ncclMin, .before = {-2, 3}}));
    CHECK(is(of(ReduceOp::kMax, 2, -3, type), {.op = ncclMin, .before = {2, -3}}));
    CHECK(is(of(ReduceOp::kMin, 1, -3, type), {.op = ncclMax, .before = {1, -3}}));
    for (const double post : {0.0, kInfinity})
      CHECK(is(of(ReduceOp::kMax, 2, post, type),
               {.op = ncclMax, .before = {.pre = 2}, .after = {.post = post}}));
  }
  // Infinite as the float that is computed with.
  CHECK(
      is(of(ReduceOp::kMax, 1, 1e200, Type::kBfloat16), {.op = ncclMax, .after = {.post = 1e200}}));
}

}  // namespace hvd
