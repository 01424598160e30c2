// Fuzz target: what hvdrun sends an agent over ssh: who signs, what is signed, where hvdrun is, and
// the ranks' places. Whatever comes, it is taken or refused with words that can be shown.
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "cli/agent/worker_environment.h"
#include "cli/messages.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/credentials.h"
#include "rendezvous/socket_address.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"

namespace {

using namespace hvd;

template <typename Call>
void may_refuse(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    HVD_CHECK(error.code() == ErrorCode::kInvalidArgument, "an error of our own");
    HVD_CHECK(is_shown(error.what()), "an error that cannot be shown");
  }
}

void place_ranks(const proto::StartWorkers& start, const std::string& job) {
  const std::vector<std::string> users(start.environment().begin(), start.environment().end()),
      chosen(start.chosen().begin(), start.chosen().end());
  for (const proto::World& world : start.worlds()) {
    WorkerPlace place{};
    place.world = from_proto(world);
    place.job = job;
    const std::vector<std::string> all = worker_environment(users, chosen, place);
    const std::string rank = std::to_string(world.rank());
    HVD_CHECK(value_in(all, "HVD_RANK", "") == rank, "a rank has another place");
    std::set<std::string> names;  // each once
    for (const std::string& entry : all)
      if (is_of_place(entry.substr(0, entry.find('='))))
        HVD_CHECK(names.insert(entry.substr(0, entry.find('='))).second, "a place is said twice");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  static const AgentKey key;
  proto::Bootstrap bootstrap;
  if (!bootstrap.ParseFromArray(bytes, int(count))) return 0;
  const std::string why = clock_objection(clock_of(bootstrap.clock_s()), WallClock::now());
  HVD_CHECK(is_shown(why), "an objection that cannot be shown");
  for (const std::string& address : bootstrap.addresses())
    may_refuse([&] { SocketAddress::parse(address); });
  may_refuse([&] { key.with(bootstrap.authority(), bootstrap.certificate()); });
  place_ranks(bootstrap.start(), bootstrap.job());
  return 0;
}
