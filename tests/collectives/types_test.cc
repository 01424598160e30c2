#include "collectives/types.h"

#include <string>

#include "hvd/error.h"
#include "tests/support/catch.h"

using namespace hvd;

TEST_CASE("types: every element type has a name and a size") {
  CHECK(std::string(name_of(DataType::kUint8)) == "uint8");
  CHECK(std::string(name_of(DataType::kBfloat16)) == "bfloat16");
  CHECK(std::string(name_of(DataType::kBool)) == "bool");
  CHECK(size_of(DataType::kFloat16) == 2);
  CHECK(size_of(DataType::kInt64) == 8);
  CHECK(std::string(name_of(ReduceOp::kAverage)) == "Average");
  CHECK(std::string(name_of(ReduceOp::kProduct)) == "Product");
}

TEST_CASE("types: reductions without a meaning are refused with a way out") {
  CHECK_NOTHROW(check_reduction({.op = ReduceOp::kAverage}, DataType::kInt32));
  CHECK_NOTHROW(check_reduction({.op = ReduceOp::kMax}, DataType::kBool));
  CHECK_NOTHROW(check_reduction({.op = ReduceOp::kSum, .prescale = 0.5}, DataType::kUint8));
  CHECK_THROWS_WITH(check_reduction({.op = ReduceOp::kAverage}, DataType::kBool),
                    Catch::Contains("use Sum or Max"));
  CHECK_THROWS_WITH(check_reduction({.op = ReduceOp::kSum, .postscale = 2}, DataType::kBool),
                    Catch::Contains("leave prescale and postscale at 1"));
  CHECK_THROWS_WITH(check_reduction({.op = ReduceOp::kAdasum}, DataType::kFloat32),
                    Catch::Contains("not supported yet"));
  CHECK_THROWS_WITH(check_reduction({.op = ReduceOp{17}}, DataType::kFloat32),
                    Catch::Contains("ReduceOp 17 does not exist; it is one of Average (0)"));
  CHECK(std::string(name_of(ReduceOp{17})) == "an operation unknown to hvd");
}
