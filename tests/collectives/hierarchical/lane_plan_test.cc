#include "collectives/hierarchical/lane_plan.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "collectives/hierarchical/areas.h"
#include "tests/support/catch.h"

using namespace hvd;

namespace {

// What a list is, range by range.
std::vector<ByteRange> ranges_of(const RangeList& list) {
  std::vector<ByteRange> ranges;
  list.each(0, list.bytes(), [&](const ByteRange& range, size_t) { ranges.push_back(range); });
  return ranges;
}

const std::vector<std::vector<int>> kWorlds = {{1}, {3}, {1, 1}, {2, 2}, {1, 3}, {2, 1, 2}, {4, 4}};

}  // namespace

TEST_CASE("host_map: every slice has one leader on every host, every rank leads one at least") {
  for (const std::vector<int>& hosts : kWorlds) {
    const HostMap map(hosts);
    CHECK(map.ranks() == std::accumulate(hosts.begin(), hosts.end(), 0));
    CHECK(map.slices() == *std::max_element(hosts.begin(), hosts.end()));
    for (int host = 0; host < map.hosts(); ++host) {
      std::multiset<int> led;
      for (int local = 0; local < map.ranks_of(host); ++local) {
        const int rank = map.first_rank(host) + local;
        CHECK(map.host_of(rank) == host);
        CHECK_FALSE(map.led_by(local, host).empty());
        for (int slice : map.led_by(local, host)) {
          led.insert(slice);
          CHECK(map.leader(slice, host) == rank);
          CHECK(map.leaders(slice)[static_cast<size_t>(host)] == rank);
        }
      }
      CHECK(led.size() == static_cast<size_t>(map.slices()));
      CHECK(std::set<int>(led.begin(), led.end()).size() == led.size());
    }
  }
}

TEST_CASE("lane_plan: the slices of an allreduce cover the tensor once, on every host alike") {
  for (const std::vector<int>& hosts : kWorlds)
    for (size_t count : {0, 1, 17, 1000, 100'003}) {
      const HostMap map(hosts);
      std::vector<int> covered(count * 4);
      for (int slice = 0; slice < map.slices(); ++slice) {
        const LanePlan first =
            plan_allreduce(map, 0, slice, count, DataType::kFloat32, kRingChunkBytes);
        for (const ByteRange& part : first.parts)
          for (size_t i = part.begin; i < part.end; ++i) ++covered[i];
        for (int host = 0; host < map.hosts(); ++host) {
          const LanePlan plan =
              plan_allreduce(map, host, slice, count, DataType::kFloat32, kRingChunkBytes);
          CHECK(plan.parts == first.parts);
          size_t bytes = 0;
          for (const ByteRange& part : plan.parts) bytes += part.bytes();
          CHECK(plan.own.bytes() + plan.rest.bytes() == bytes);
          CHECK(plan.results.bytes() == bytes);
        }
      }
      CHECK(std::ranges::all_of(covered, [](int times) { return times == 1; }));
    }
}

TEST_CASE("lane_plan: parts come in and get whole in the order of the ring") {
  const HostMap map({2, 2, 2});
  const LanePlan plan = plan_allreduce(map, 1, 0, 96, DataType::kFloat32, kRingChunkBytes);
  CHECK(plan.parts == std::vector<ByteRange>{{0, 64}, {64, 128}, {128, 192}});
  CHECK(ranges_of(plan.own) == std::vector<ByteRange>{{64, 128}});
  CHECK(ranges_of(plan.rest) == std::vector<ByteRange>{{0, 64}, {128, 192}});
  CHECK(ranges_of(plan.results) == std::vector<ByteRange>{{128, 192}, {64, 128}, {0, 64}});
}

TEST_CASE("lane_plan: long parts come in and get whole in chunks, in the order of the ring") {
  const LanePlan two = plan_allreduce(HostMap({2, 2}), 0, 0, 192, DataType::kFloat32, 64);
  CHECK(two.parts == std::vector<ByteRange>{{0, 192}, {192, 384}});
  CHECK(ranges_of(two.rest) == std::vector<ByteRange>{{192, 256}, {256, 320}, {320, 384}});
  CHECK(ranges_of(two.results) ==
        std::vector<ByteRange>{{192, 256}, {256, 320}, {0, 64}, {320, 384}, {64, 128}, {128, 192}});
  const LanePlan three = plan_allreduce(HostMap({1, 1, 1}), 1, 0, 96, DataType::kFloat32, 64);
  CHECK(three.parts == std::vector<ByteRange>{{0, 128}, {128, 256}, {256, 384}});
  CHECK(ranges_of(three.rest) ==
        std::vector<ByteRange>{{0, 64}, {64, 128}, {256, 320}, {320, 384}});
  CHECK(three.own_every == 3);
  // A part that is no longer than a chunk, or goes whole, is sent while the next one comes in.
  for (size_t chunk : {size_t{128}, kWholeParts})
    CHECK(plan_allreduce(HostMap({1, 1, 1}), 1, 0, 96, DataType::kFloat32, chunk).own_every == 2);
}

TEST_CASE("lane_plan: what is broadcast goes round in the slice of its root") {
  const HostMap map({1, 3});
  for (int slice = 0; slice < 3; ++slice) {
    const LanePlan plan = plan_broadcast(map, 0, slice, 3, 10);
    CHECK(plan.results.bytes() == (slice == 2 ? 10 : 0));
    CHECK(plan.own.bytes() == 0);
    CHECK(plan_broadcast(map, 1, slice, 3, 10).own.bytes() == (slice == 2 ? 10 : 0));
  }
}

TEST_CASE("lane_plan: of what is gathered each slice has one rank of each host") {
  const HostMap map({1, 3});
  const std::vector<uint64_t> counts = {5, 0, 2, 1};
  CHECK(plan_allgather(map, 1, 0, counts, 4).parts == std::vector<ByteRange>{{0, 20}, {20, 20}});
  CHECK(plan_allgather(map, 1, 1, counts, 4).parts == std::vector<ByteRange>{{0, 0}, {20, 28}});
  const LanePlan last = plan_allgather(map, 1, 2, counts, 4);
  CHECK(last.parts == std::vector<ByteRange>{{0, 0}, {28, 32}});
  CHECK(ranges_of(last.results) == std::vector<ByteRange>{{28, 32}});
}

TEST_CASE("lane_plan: rounds take both streams in once, each in its turn while there are both") {
  const uint64_t own_every = GENERATE(2, 3, 8);
  for (size_t own : {0, 1, 64, 100, 640})
    for (size_t rest : {0, 1, 64, 100, 640, 2000}) {
      LanePlan plan;
      plan.own_every = own_every;
      plan.own.add({0, own});
      plan.rest.add({5000, 5000 + rest});
      size_t own_at = 0, rest_at = 0;
      const uint64_t rounds = input_rounds(plan, 64);
      for (uint64_t round = 0; round < rounds + 3; ++round) {
        const InputBlock block = input_block(plan, 64, round);
        size_t& at = block.own ? own_at : rest_at;
        CHECK((round >= rounds ? block.begin == block.end : block.begin == at));
        if (own_at < own && rest_at < rest) CHECK(block.own == (round % own_every == 0));
        if (round < rounds) at = block.end;
      }
      CHECK(own_at == own);
      CHECK(rest_at == rest);
    }
}

TEST_CASE("lane_plan: a stretch of a stream is what lies there of every range") {
  RangeList list;
  list.add({10, 14});
  list.add({0, 0});
  list.add({2, 8});
  std::vector<ByteRange> ranges;
  std::vector<size_t> begins;
  list.each(3, 7, [&](const ByteRange& range, size_t at) {
    ranges.push_back(range);
    begins.push_back(at);
  });
  CHECK(ranges == std::vector<ByteRange>{{13, 14}, {2, 5}});
  CHECK(begins == std::vector<size_t>{3, 4});
}

TEST_CASE("areas: whatever the hosts, three rounds fit, as long on every host") {
  auto worlds = kWorlds;
  worlds.insert(worlds.end(), {{342, 1}, {1, 342}, {4096, 1, 4096}, {10'000, 10'000}});
  for (const std::vector<int>& hosts : worlds)
    for (const bool staging : {false, true}) {
      CAPTURE(hosts, staging);
      const HostMap map(hosts);
      for (int host = 0; host < map.hosts(); ++host) {
        const auto [input, output] = areas_of(map, host, staging);
        const size_t lanes = map.led_by(0, host).size();
        CHECK(output.block_bytes >= 64);
        CHECK(output.block_bytes % 64 == 0);
        CHECK(output.slots >= 3);
        CHECK(output.slots * lanes * output.block_bytes <= output.bytes);
        CHECK(output.bytes == areas_of(map, 0, staging).output.bytes);
        CHECK(input.block_bytes >= 64);
        CHECK(input.block_bytes % 64 == 0);
        CHECK(input.slots >= (staging ? 3 : 0));
        CHECK(input.slots * static_cast<size_t>(map.slices()) * input.block_bytes <= input.bytes);
        CHECK(input.bytes == areas_of(map, 0, staging).input.bytes);
      }
    }
}
