// Which elements share memory, with literals and by trying all small tensors.
#include "runtime/torch/strides.h"

#include <set>
#include <vector>

#include "tests/support/catch.h"

namespace hvd {
namespace {

using Numbers = std::vector<int64_t>;

bool overlaps(const Numbers& sizes, const Numbers& strides) {
  std::set<int64_t> seen;
  for (int64_t i = 0; i < sizes[0]; ++i)
    for (int64_t j = 0; j < sizes[1]; ++j)
      for (int64_t k = 0; k < sizes[2]; ++k)
        if (!seen.insert(i * strides[0] + j * strides[1] + k * strides[2]).second) return true;
  return false;
}

}  // namespace

TEST_CASE("strides: what is dense or has gaps between its elements does not overlap") {
  CHECK(!may_overlap(Numbers{}, Numbers{}));
  CHECK(!may_overlap(Numbers{50}, Numbers{1}));
  CHECK(!may_overlap(Numbers{50}, Numbers{2}));
  CHECK(!may_overlap(Numbers{4, 6}, Numbers{6, 1}));
  CHECK(!may_overlap(Numbers{4, 6}, Numbers{1, 4}));
  CHECK(!may_overlap(Numbers{4, 6}, Numbers{12, 1}));                // slice() of [4, 12]
  CHECK(!may_overlap(Numbers{2, 3, 4, 4}, Numbers{48, 1, 12, 3}));   // channels last
  CHECK(!may_overlap(Numbers{4, 1, 6, 1}, Numbers{6, 0, 1, 1000}));  // one element shares nothing
  CHECK(!may_overlap(Numbers{1}, Numbers{0}));
  CHECK(!may_overlap(Numbers{50, 0}, Numbers{0, 0}));  // nor do none
}

TEST_CASE("strides: the same, but for dimensions of size 1") {
  CHECK(same_strides(Numbers{}, Numbers{}, Numbers{}));
  CHECK(same_strides(Numbers{4, 6}, Numbers{6, 1}, Numbers{6, 1}));
  CHECK(same_strides(Numbers{4, 1, 6}, Numbers{6, 0, 1}, Numbers{6, 1000, 1}));
  CHECK(!same_strides(Numbers{4, 6}, Numbers{6, 1}, Numbers{1, 4}));
  CHECK(!same_strides(Numbers{2, 2}, Numbers{2, 1}, Numbers{4, 1}));
}

TEST_CASE("strides: what shares memory overlaps, whatever the stride") {
  CHECK(may_overlap(Numbers{50}, Numbers{0}));             // expand()
  CHECK(may_overlap(Numbers{4, 50}, Numbers{0, 1}));       // expand()
  CHECK(may_overlap(Numbers{49, 2}, Numbers{1, 1}));       // unfold(0, 2, 1)
  CHECK(may_overlap(Numbers{9, 4}, Numbers{3, 1}));        // unfold(0, 4, 3)
  CHECK(may_overlap(Numbers{5, 5, 2}, Numbers{5, 1, 5}));  // of rows
  CHECK(may_overlap(Numbers{3, 4}, Numbers{3, 1}));        // as_strided()
}

TEST_CASE("strides: of all small tensors none that overlaps is taken for one that does not") {
  int overlapping = 0, unclear = 0, total = 0;
  for (int n = 0; n < 4 * 4 * 4 * 7 * 7 * 7; ++n) {
    int rest = n;
    const auto take = [&](int choices) {
      const int taken = rest % choices;
      rest /= choices;
      return int64_t{taken};
    };
    const Numbers sizes = {take(4), take(4), take(4)}, strides = {take(7), take(7), take(7)};
    const bool does = overlaps(sizes, strides), may = may_overlap(sizes, strides);
    if (does && !may) FAIL("tensor " << n << " overlaps");
    overlapping += does;
    unclear += may && !does;
    ++total;
  }
  CHECK(overlapping > total / 10);
  CHECK(unclear < total / 10);
}

}  // namespace hvd
