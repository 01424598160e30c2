// Two ranks' layouts, with literals.
#include "runtime/engine/layout_difference.h"

#include "tests/support/catch.h"

using namespace hvd;

namespace {

std::string between(const std::string& first, const std::string& second) {
  return layout_difference({0, first}, {3, second});
}

}  // namespace

TEST_CASE("layout difference: names the first parameter that differs, as both have it") {
  CHECK(between("op Sum\na float32 [3]\nb float32 [4]\n2 parameters",
                "op Sum\na float32 [3]\nb float64 [4]\n2 parameters") ==
        "rank 0 has b float32 [4], parameter 2 of 2; rank 3 has b float64 [4], parameter 2 of 2");
}

TEST_CASE("layout difference: settings and what is said of all parameters have no number") {
  CHECK(between("op Sum\na\n1 parameters", "op Average\nb\n1 parameters") ==
        "rank 0 has op Sum; rank 3 has op Average");
  CHECK(between("op Sum\na\n1 parameters", "op Sum\na\nb\n2 parameters") ==
        "rank 0 has no more than 1 parameter; rank 3 has b, parameter 2 of 2");
  CHECK(between("op Sum\na\nb\n2 parameters", "op Sum\na\n1 parameters") ==
        "rank 0 has b, parameter 2 of 2; rank 3 has no more than 1 parameter");
  CHECK(between("op Sum\na\nin one bucket", "op Sum\na\nin two buckets") ==
        "rank 0 has in one bucket; rank 3 has in two buckets");
  CHECK(between("op Sum", "op Sum\na") == "rank 0 has ; rank 3 has a");
}

TEST_CASE("layout difference: of a long line shows what is around the difference") {
  const std::string before(1000, 'x'), after(1000, 'y');
  const std::string said = between("s\n" + before + "1" + after + "\nend",  //
                                   "s\n" + before + "2" + after + "\nend");
  CHECK_THAT(said, Catch::Contains("rank 0 has …xxx") && Catch::Contains("xxx1yyy") &&
                       Catch::Contains("xxx2yyy") && Catch::Contains("yyy…, parameter 1 of 1"));
  CHECK(said.size() < 600);
  // One ends where the other goes on.
  CHECK_THAT(between("s\n" + before + "\nend", "s\n" + before + "2\nend"),
             Catch::Contains("xxx, parameter 1 of 1; ") && Catch::Contains("xxx2, parameter 1"));
}
