#include "collectives/tcp/cube.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "collectives/tcp/frame.h"
#include "collectives/tcp/sides.h"
#include "tests/support/catch.h"

using namespace hvd;

TEST_CASE("cube: every message has a reader that waits for it, and everybody hears of everybody") {
  for (int ranks = 1; ranks <= 40; ++ranks) {
    std::vector<std::vector<CubeStep>> steps;
    std::vector<std::set<int>> heard;
    for (int k = 0; k < ranks; ++k) {
      steps.push_back(cube_steps(k, ranks));
      heard.push_back({k});
    }
    // As ranks would run: whoever's next step has its partner there makes it.
    std::vector<size_t> at(steps.size());
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t k = 0; k < steps.size(); ++k) {
        if (at[k] == steps[k].size()) continue;
        const CubeStep& mine = steps[k][at[k]];
        const auto peer = static_cast<size_t>(mine.peer);
        if (at[peer] == steps[peer].size()) continue;
        const CubeStep& theirs = steps[peer][at[peer]];
        if (theirs.peer != static_cast<int>(k) || theirs.part != mine.part) continue;
        REQUIRE(mine.sends == theirs.receives);
        REQUIRE(mine.receives == theirs.sends);
        const std::set<int> from_me = heard[k], from_them = heard[peer];
        if (mine.receives) heard[k].insert(from_them.begin(), from_them.end());
        if (mine.sends) heard[peer].insert(from_me.begin(), from_me.end());
        ++at[k];
        ++at[peer];
        moved = true;
      }
    }
    INFO(ranks << " ranks");
    for (size_t k = 0; k < steps.size(); ++k) {
      CHECK(at[k] == steps[k].size());
      CHECK(heard[k].size() == steps.size());
    }
  }
}

TEST_CASE("cube: the last swap is the last one, and subcubes are who was heard of") {
  for (int ranks : {2, 3, 4, 6, 8, 13}) {
    for (int rank = 0; rank < cube_corners(ranks); ++rank) {
      int swaps = 0;
      for (const CubeStep& step : cube_steps(rank, ranks)) {
        if (step.part < kSwapPart || step.part >= kResultPart) continue;
        CHECK(step.last_swap == (++swaps == cube_swaps(ranks)));
      }
      std::vector<int> all(static_cast<size_t>(ranks));
      std::iota(all.begin(), all.end(), 0);
      CHECK(subcube(rank, ranks, swaps) == all);
    }
  }
  CHECK(subcube(1, 6, 0) == std::vector{1, 5});
  CHECK(subcube(1, 6, 1) == std::vector{0, 1, 4, 5});
  CHECK(subcube(5, 6, 1) == std::vector{0, 1, 4, 5});
}

TEST_CASE("cube: halves that are kept cover everything once") {
  for (int ranks : {2, 4, 8, 16})
    for (size_t count : {size_t{0}, size_t{1}, size_t{17}, size_t{1000}, size_t{65537}}) {
      std::vector<Slice> kept;
      for (int k = 0; k < ranks; ++k)
        kept.push_back(kept_after(k, cube_swaps(ranks), count, DataType::kFloat32));
      std::ranges::sort(kept, {}, [](const Slice& s) { return std::pair(s.begin, s.end); });
      size_t at = 0;
      for (const Slice& slice : kept) {
        CHECK(slice.begin == at);
        at = slice.end;
      }
      CHECK(at == count);
      // What one keeps its neighbour gives away.
      const Slice low = kept_after(0, 1, count, DataType::kFloat32);
      const Slice high = kept_after(1, 1, count, DataType::kFloat32);
      CHECK((low.begin == 0 && low.end == high.begin && high.end == count));
    }
}

TEST_CASE("frames: what is due is taken, all else is named") {
  const FrameHeader due{.epoch = 2, .sequence = 7, .hash = 5, .from = 3, .part = 9, .bytes = 8};
  const auto fault = [&](auto change) {
    FrameHeader got = due;
    change(got);
    return frame_fault(got, due);
  };
  CHECK(fault([](FrameHeader&) {}).empty());
  CHECK(fault([](FrameHeader& h) { h.magic = 0x20504f48; }) == "bytes that are no message");
  CHECK(fault([](FrameHeader& h) { h.epoch = 1; }) == "a message of epoch 1 where 2 was due");
  CHECK(fault([](FrameHeader& h) { h.from = 4; }) == "a message of rank 4 where 3 was due");
  CHECK(fault([](FrameHeader& h) { h.sequence = 8; }) ==
        "a message of operation 8 where 7 was due");
  CHECK(fault([](FrameHeader& h) { h.part = 1; }) == "a message of part 1 where 9 was due");
  // What ranks may differ in before they have agreed, and what a goodbye is.
  CHECK(fault([](FrameHeader& h) { h.hash = 6; }).empty());
  CHECK(fault([](FrameHeader& h) { h.bytes = 0; }).empty());
  CHECK(fault([](FrameHeader& h) { h.sequence = 99, h.flags = kGoodbye; }).empty());
  FrameHeader other = due;
  other.hash = 6;
  CHECK(agreed_frame_fault(other, due) == "a message that does not fit");
  CHECK(agreed_frame_fault(due, due).empty());
}

TEST_CASE("sides: merged the same in any order, and read back as written") {
  const std::vector<Side> low = {{0, 11, false, "a"}, {4, 12, false, "b"}};
  const std::vector<Side> high = {{1, 12, false, "c"}, {2, 13, true, "d"}, {3, 11, false, "e"}};
  const auto merged = merge_sides(low, high), swapped = merge_sides(high, low);
  REQUIRE(merged.size() == 3);
  CHECK((merged[0].rank == 0 && merged[1].rank == 1 && merged[2].rank == 2));
  REQUIRE(swapped.size() == 3);
  for (size_t i = 0; i < merged.size(); ++i) CHECK(swapped[i].text == merged[i].text);
  const std::vector<std::byte> bytes = encode_sides(merged);
  CHECK(bytes.size() <= kSidesMost * kSideBytesMost);
  const auto read = decode_sides(bytes);
  REQUIRE(read);
  REQUIRE(read->size() == 3);
  CHECK((read->at(2).unable && read->at(2).hash == 13 && read->at(2).text == "d"));
  for (size_t cut = 1; cut < bytes.size(); ++cut) {
    const auto part = decode_sides(std::span(bytes).first(bytes.size() - cut));
    CHECK((!part || part->size() < 3));
  }
  std::vector<std::byte> lying = bytes;
  lying[16] = std::byte{0xff};  // the first text's length
  lying[17] = std::byte{0xff};
  CHECK_FALSE(decode_sides(lying));
  CHECK(decode_sides({})->empty());
}
