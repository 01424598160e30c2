// The backends on CPUs.
#include "collectives/schedule.h"
#include "tests/collectives/conformance.h"
#include "tests/support/extent.h"

namespace hvd {
namespace {

ByteVector shared_memory_reference(DataType type, const Reduction& reduction,
                                   const std::vector<ByteVector>& inputs, const Hosts&) {
  return reference_reduce(type, reduction, inputs);
}

// Between hosts the order of additions depends on the length, as the schedule says.
ByteVector tcp_reference(DataType type, const Reduction& reduction,
                         const std::vector<ByteVector>& inputs, const Hosts&) {
  const size_t count = inputs[0].size() / size_of(type);
  const int ranks = static_cast<int>(inputs.size());
  if (ranks == 1) return reference_reduce(type, reduction, inputs);
  return allreduce_way(count, type, ranks) == AllreduceWay::kRing
             ? reference_ring(type, reduction, inputs)
             : reference_cube(type, reduction, inputs);
}

ByteVector hierarchical_reference(DataType type, const Reduction& reduction,
                                  const std::vector<ByteVector>& inputs, const Hosts& hosts) {
  return host_sums_ride(inputs[0].size()) ? reference_host_cube(type, reduction, inputs, hosts)
                                          : reference_host_rings(type, reduction, inputs, hosts);
}

std::unique_ptr<Communicator> another_in_shared_memory(Rank& rank) {
  rank.add_segment(communicator_bytes(true));
  return make_communicator(*rank.peers, rank.arena, {.segment = 1, .offset = 0, .seed = 2});
}

CommunicatorFactory another_hierarchical(const Hosts& hosts) {
  return [hosts](Rank& rank) {
    rank.add_segment(hierarchical_bytes(hosts, true));
    return make_hierarchical_communicator(
        *rank.peers, rank.arena,
        {.segment = 1, .links = hierarchical_links(hosts), .hosts = hosts, .seed = 2});
  };
}

}  // namespace

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (int ranks : {1, 2, 3, 4, 8}) {
    const std::string text = ", " + std::to_string(ranks) + " ranks";
    all.push_back({"shared memory" + text,
                   {ranks},
                   shared_memory_factory(),
                   shared_memory_reference,
                   another_in_shared_memory});
    all.push_back({"tcp" + text, Hosts(static_cast<size_t>(ranks), 1), tcp_factory(), tcp_reference,
                   tcp_factory(1)});
  }
  for (const Hosts& hosts : {Hosts{1}, {2}, {1, 1}, {2, 2}, {1, 1, 1}, {1, 3}, {2, 2, 2, 2}}) {
    std::string text = "hierarchical, hosts of";
    for (int ranks : hosts) text += " " + std::to_string(ranks);
    all.push_back({text, hosts, hierarchical_factory(hosts), hierarchical_reference,
                   another_hierarchical(hosts)});
  }
  std::erase_if(all, [](const Setting& setting) { return setting.ranks() > ranks_max(); });
  return all;
}

}  // namespace hvd
