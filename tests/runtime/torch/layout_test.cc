// Bucket planning, with literals.
#include "runtime/torch/layout.h"

#include "tests/support/catch.h"

namespace hvd {
namespace {

const std::vector<GradientShape> kMlp = {{"a.weight", {50, 20}, DataType::kFloat32},
                                         {"a.bias", {10}, DataType::kFloat32},
                                         {"b.weight", {10, 50}, DataType::kFloat32},
                                         {"b.bias", {5}, DataType::kFloat32}};

}  // namespace

TEST_CASE("layout: fills buckets in reverse order up to the size asked for") {
  const Layout layout = plan_buckets(kMlp, 2200);
  REQUIRE(layout.buckets.size() == 2);
  // b.bias and b.weight and a.bias fit into 2200 bytes, a.weight does not any more.
  CHECK(layout.placements[3].bucket == 0);
  CHECK(layout.placements[3].offset == 0);
  CHECK(layout.placements[2].bucket == 0);
  CHECK(layout.placements[2].offset == 16);
  CHECK(layout.placements[1].bucket == 0);
  CHECK(layout.placements[1].offset == 16 + 512);
  CHECK(layout.buckets[0].count == 16 + 512 + 16);
  CHECK(layout.placements[0].bucket == 1);
  CHECK(layout.buckets[1].count == 1008);
}

TEST_CASE("layout: gives a gradient larger than a bucket one of its own") {
  const Layout layout = plan_buckets(kMlp, 1);
  CHECK(layout.buckets.size() == 4);
}

TEST_CASE("layout: never mixes element types in a bucket") {
  const std::vector<GradientShape> mixed = {{"a", {8}, DataType::kFloat32},
                                            {"b", {8}, DataType::kFloat64},
                                            {"c", {8}, DataType::kFloat32},
                                            {"d", {8}, DataType::kFloat16}};
  const Layout layout = plan_buckets(mixed, 1 << 20);
  REQUIRE(layout.buckets.size() == 3);
  for (size_t i = 0; i < mixed.size(); ++i)
    CHECK(layout.buckets[size_t(layout.placements[i].bucket)].type == mixed[i].type);
  CHECK(layout.placements[0].bucket == layout.placements[2].bucket);
}

TEST_CASE("layout: starts every gradient on a cache line, and no two overlap") {
  std::vector<GradientShape> shapes;
  for (int64_t count = 0; count < 200; count += 7)
    shapes.push_back({"p" + std::to_string(count),
                      {count},
                      count % 2 ? DataType::kFloat64 : DataType::kFloat16});
  const Layout layout = plan_buckets(shapes, 1024);
  for (size_t i = 0; i < shapes.size(); ++i) {
    const auto [bucket, offset] = layout.placements[i];
    CHECK(offset * size_of(shapes[i].type) % 64 == 0);
    CHECK(offset + shapes[i].count() <= layout.buckets[size_t(bucket)].count);
    for (size_t j = 0; j < i; ++j) {
      if (layout.placements[j].bucket != bucket) continue;
      // Later registered ones lie in front.
      CHECK(offset + shapes[i].count() <= layout.placements[j].offset);
    }
  }
}

TEST_CASE("layout: has no bucket for no gradients") {
  CHECK(plan_buckets({}, 1024).buckets.empty());
}

TEST_CASE("layout: the words change with every part that has to agree") {
  const std::string words = describe_layout(kMlp, "op Average");
  CHECK(words ==
        "op Average\n"
        "a.weight float32 [50, 20]\n"
        "a.bias float32 [10]\n"
        "b.weight float32 [10, 50]\n"
        "b.bias float32 [5]");
  CHECK(words != describe_layout(kMlp, "op Sum"));
  for (size_t i = 0; i < kMlp.size(); ++i) {
    std::vector<GradientShape> other = kMlp;
    other[i].name += "x";
    CHECK(words != describe_layout(other, "op Average"));
    other = kMlp;
    ++other[i].sizes[0];
    CHECK(words != describe_layout(other, "op Average"));
    other = kMlp;
    other[i].type = DataType::kFloat16;
    CHECK(words != describe_layout(other, "op Average"));
  }
  std::vector<GradientShape> swapped = kMlp;
  std::swap(swapped[0].sizes[0], swapped[0].sizes[1]);
  CHECK(words != describe_layout(swapped, "op Average"));
}

TEST_CASE("layout: strides are told where they are not row-major and say something") {
  const auto words = [](std::vector<int64_t> sizes, std::vector<int64_t> strides) {
    const GradientShape shape{"w", std::move(sizes), DataType::kFloat32, std::move(strides)};
    return describe_layout({&shape, 1}, "");
  };
  CHECK(words({3, 4}, {4, 1}) == "\nw float32 [3, 4]");
  CHECK(words({3, 4}, {1, 3}) == "\nw float32 [3, 4] with strides [1, 3]");
  CHECK(words({2, 3, 4, 4}, {48, 1, 12, 3}) ==
        "\nw float32 [2, 3, 4, 4] with strides [48, 1, 12, 3]");
  // Of dimensions of size 1 they say nothing.
  CHECK(words({8, 1, 3, 3}, {9, 1, 3, 1}) == words({8, 1, 3, 3}, {9, 9, 3, 1}));
  CHECK(words({8, 1, 3, 3}, {9, 1, 3, 1}) == "\nw float32 [8, 1, 3, 3]");
  CHECK(words({3, 1, 4}, {1, 1, 3}) == words({3, 1, 4}, {1, 77, 3}));
  CHECK(words({3, 1, 4}, {1, 77, 3}) == "\nw float32 [3, 1, 4] with strides [1, 1, 3]");
  CHECK(words({0, 4}, {1, 9}) == "\nw float32 [0, 4]");
  CHECK(words({}, {}) == "\nw float32 []");
}

}  // namespace hvd
