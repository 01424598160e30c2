// That the stand-in's reductions are those that its header tells, bit for bit.
#include <algorithm>
#include <cmath>

#include "tests/collectives/nccl/standin/nccl_reduce.h"
#include "tests/collectives/nccl/standin_ranks.h"
#include "tests/collectives/reference.h"
#include "tests/support/catch.h"

namespace hvd {
namespace {

struct Types {
  DataType ours;
  ncclDataType_t type;
};
constexpr Types kTypes[] = {
    {DataType::kUint8, ncclUint8},     {DataType::kInt8, ncclInt8},
    {DataType::kInt32, ncclInt32},     {DataType::kInt64, ncclInt64},
    {DataType::kFloat16, ncclFloat16}, {DataType::kBfloat16, ncclBfloat16},
    {DataType::kFloat32, ncclFloat32}, {DataType::kFloat64, ncclFloat64},
};
struct Ops {
  ReduceOp ours;
  ncclRedOp_t op;
};
constexpr Ops kOps[] = {{ReduceOp::kSum, ncclSum},
                        {ReduceOp::kProduct, ncclProd},
                        {ReduceOp::kMin, ncclMin},
                        {ReduceOp::kMax, ncclMax}};

// Each rank's result; throws where they differ. `prepare` makes the operation.
using Prepare = std::function<ncclRedOp_t(ncclComm_t comm)>;
ByteVector reduce_by_ranks(ncclDataType_t type, size_t count, const std::vector<ByteVector>& inputs,
                           const Prepare& prepare) {
  std::vector<ByteVector> results(inputs.size());
  run_communicator(static_cast<int>(inputs.size()), [&](int rank, Device& device, ncclComm_t comm) {
    const auto k = static_cast<size_t>(rank);
    const DeviceArray<std::byte> values(inputs[k], device.stream());
    const ncclRedOp_t op = prepare(comm);
    expect(settle(comm, ncclAllReduce(values.data(), values.data(), count, type, op, comm,
                                      device.stream())),
           "ncclAllReduce");
    results[k] = values.read(device.stream());
    if (op >= ncclNumOps) expect(ncclRedOpDestroy(op, comm), "ncclRedOpDestroy");
  });
  for (const ByteVector& result : results) require(result == results[0], "all have the same");
  return results[0];
}

template <class Value>
ByteVector bytes_of_values(const std::vector<Value>& values) {
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  return {bytes, bytes + values.size() * sizeof(Value)};
}

template <class Value>
std::vector<Value> values_of(const ByteVector& bytes) {
  std::vector<Value> values(bytes.size() / sizeof(Value));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace

TEST_CASE("standin reduce: takes the ranks from the last one down") {
  const Settings settings;
  constexpr size_t kCount = 1003;
  for (const auto& [ours, type] : kTypes)
    for (const auto& [our_op, op] : kOps) {
      std::vector<ByteVector> inputs;
      for (uint64_t rank = 0; rank < 3; ++rank)
        inputs.push_back(random_values(ours, kCount, rank + 1, Values::kPlain));
      const ByteVector result =
          reduce_by_ranks(type, kCount, inputs, [=](ncclComm_t) { return op; });
      std::reverse(inputs.begin(), inputs.end());
      INFO(name_of(ours) << " with op " << op);
      CHECK(result == reference_reduce(ours, {.op = our_op}, inputs));
    }
}

TEST_CASE("standin reduce: another order than ours gives other bits") {
  const Settings settings;
  const std::vector<ByteVector> inputs = {bytes_of_values(std::vector{1.0F}),
                                          bytes_of_values(std::vector{1e8F}),
                                          bytes_of_values(std::vector{-1e8F})};
  const ByteVector result =
      reduce_by_ranks(ncclFloat32, 1, inputs, [](ncclComm_t) { return ncclSum; });
  CHECK(values_of<float>(result) == std::vector{1.0F});
  CHECK(values_of<float>(reference_reduce(DataType::kFloat32, {.op = ReduceOp::kSum}, inputs)) ==
        std::vector{0.0F});
}

TEST_CASE("standin reduce: averages and factors come before the sum, or as an integer after it") {
  const Settings settings;
  const auto average = [](ncclComm_t) { return ncclAvg; };
  const std::vector<ByteVector> floats = {bytes_of_values(std::vector{1.1F, 7.3F}),
                                          bytes_of_values(std::vector{2.7F, -1.9F}),
                                          bytes_of_values(std::vector{0.3F, 5e7F})};
  const float third = 1.0F / 3.0F;
  CHECK(values_of<float>(reduce_by_ranks(ncclFloat32, 2, floats, average)) ==
        std::vector{(0.3F * third + 2.7F * third) + 1.1F * third,
                    (5e7F * third + -1.9F * third) + 7.3F * third});

  const auto factor = [](ncclComm_t comm) {
    float scalar = 0.25F;
    ncclRedOp_t op = ncclSum;
    expect(ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat32, ncclScalarHostImmediate, comm),
           "ncclRedOpCreatePreMulSum");
    return op;
  };
  CHECK(values_of<float>(reduce_by_ranks(ncclFloat32, 2, floats, factor)) ==
        std::vector{(0.3F * 0.25F + 2.7F * 0.25F) + 1.1F * 0.25F,
                    (5e7F * 0.25F + -1.9F * 0.25F) + 7.3F * 0.25F});

  // 1/3 and 100/3 as bfloat16: 33.5, of which 33.25 would be the nearest.
  const std::vector<ByteVector> shorts = {bytes_of_values(std::vector<uint16_t>{0x42c8}),
                                          bytes_of_values(std::vector<uint16_t>{0}),
                                          bytes_of_values(std::vector<uint16_t>{0})};
  CHECK(values_of<uint16_t>(reduce_by_ranks(ncclBfloat16, 1, shorts, average)) ==
        std::vector<uint16_t>{0x4206});

  const std::vector<ByteVector> integers = {bytes_of_values(std::vector{-4, 5}),
                                            bytes_of_values(std::vector{-3, 6})};
  CHECK(values_of<int>(reduce_by_ranks(ncclInt32, 2, integers, average)) == std::vector{-3, 5});
}

TEST_CASE("standin reduce: an operation is for its communicator and type alone") {
  const Settings settings;
  run_ranks(1, [](int, Device& device) {
    ncclComm_t comm = make_communicator(unique_id(), 1, 0);
    const DeviceArray<int> values({1}, device.stream());
    double scalar = 2;
    ncclRedOp_t op = ncclSum, gone = ncclSum;
    for (ncclRedOp_t* made : {&gone, &op})
      expect(ncclRedOpCreatePreMulSum(made, &scalar, ncclFloat64, ncclScalarHostImmediate, comm),
             "ncclRedOpCreatePreMulSum");
    expect(ncclRedOpDestroy(gone, comm), "ncclRedOpDestroy");
    require(ncclRedOpDestroy(gone, comm) == ncclInvalidArgument, "it is gone");
    require(ncclRedOpDestroy(ncclSum, comm) == ncclInvalidArgument, "it is NCCL's own");
    require(ncclAllReduce(values.data(), values.data(), 1, ncclInt32, op, comm, device.stream()) ==
                ncclInvalidArgument,
            "another type is refused");
    expect(ncclCommAbort(comm), "ncclCommAbort");
  });
}

TEST_CASE("standin reduce: is the same for a test that links it") {
  const std::vector<float> a = {1, 2}, b = {3, 5};
  const auto sum = reduce(ncclFloat32, ncclSum, 2,
                          {{reinterpret_cast<const std::byte*>(a.data()), 0},
                           {reinterpret_cast<const std::byte*>(b.data()), 0}});
  CHECK(values_of<float>(sum) == std::vector{4.0F, 7.0F});
}

}  // namespace hvd
