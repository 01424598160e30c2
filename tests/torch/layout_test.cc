// Bucket planning, with literals.
#include "runtime/torch/layout.h"

#include "tests/support/catch.h"

namespace hvd {
namespace {

const std::vector<GradientShape> kMlp = {{"a.weight", 1000, DataType::kFloat32},
                                         {"a.bias", 10, DataType::kFloat32},
                                         {"b.weight", 500, DataType::kFloat32},
                                         {"b.bias", 5, DataType::kFloat32}};

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
  const std::vector<GradientShape> mixed = {{"a", 8, DataType::kFloat32},
                                            {"b", 8, DataType::kFloat64},
                                            {"c", 8, DataType::kFloat32},
                                            {"d", 8, DataType::kFloat16}};
  const Layout layout = plan_buckets(mixed, 1 << 20);
  REQUIRE(layout.buckets.size() == 3);
  for (size_t i = 0; i < mixed.size(); ++i)
    CHECK(layout.buckets[size_t(layout.placements[i].bucket)].type == mixed[i].type);
  CHECK(layout.placements[0].bucket == layout.placements[2].bucket);
}

TEST_CASE("layout: starts every gradient on a cache line, and no two overlap") {
  std::vector<GradientShape> shapes;
  for (size_t count = 0; count < 200; count += 7)
    shapes.push_back(
        {"p" + std::to_string(count), count, count % 2 ? DataType::kFloat64 : DataType::kFloat16});
  const Layout layout = plan_buckets(shapes, 1024);
  for (size_t i = 0; i < shapes.size(); ++i) {
    const auto [bucket, offset] = layout.placements[i];
    CHECK(offset * size_of(shapes[i].type) % 64 == 0);
    CHECK(offset + shapes[i].count <= layout.buckets[size_t(bucket)].count);
    for (size_t j = 0; j < i; ++j) {
      if (layout.placements[j].bucket != bucket) continue;
      // Later registered ones lie in front.
      CHECK(offset + shapes[i].count <= layout.placements[j].offset);
    }
  }
}

TEST_CASE("layout: has no bucket for no gradients") {
  CHECK(plan_buckets({}, 1024).buckets.empty());
}

TEST_CASE("layout: the identity changes with every part that has to agree") {
  const uint64_t hash = identify(kMlp, "op Average").hash;
  CHECK(hash == identify(kMlp, "op Average").hash);
  CHECK(hash != identify(kMlp, "op Sum").hash);
  for (size_t i = 0; i < kMlp.size(); ++i) {
    std::vector<GradientShape> other = kMlp;
    other[i].name += "x";
    CHECK(hash != identify(other, "op Average").hash);
    other = kMlp;
    ++other[i].count;
    CHECK(hash != identify(other, "op Average").hash);
    other = kMlp;
    other[i].type = DataType::kFloat16;
    CHECK(hash != identify(other, "op Average").hash);
  }
}

TEST_CASE("layout: the identity's text is short, its hash covers all of it") {
  std::vector<GradientShape> many(1000, {"layer.weight", 10, DataType::kFloat32});
  const LayoutIdentity one = identify(many, "");
  many.back().count = 11;
  const LayoutIdentity other = identify(many, "");
  CHECK(one.text == other.text);
  CHECK(one.text.size() < 1100);
  CHECK(one.hash != other.hash);
}

}  // namespace hvd
