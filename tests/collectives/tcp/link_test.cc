// How much the kernel holds for a link, by what the network between its ends is like, and in what
// order long sums go over far ones.
#include "collectives/tcp/link.h"

#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/collectives/calls.h"
#include "tests/support/catch.h"
#include "tests/support/in_process_world.h"
#include "tests/support/left_out.h"
#include "tests/support/ranks.h"
#include "tests/support/slow_network.h"

using namespace hvd;

namespace {

// Were the sizes set, so that the kernel adapts them no more? Nothing, where it cannot tell.
std::optional<bool> is_set([[maybe_unused]] const UniqueFd& socket) {
#ifdef SO_BUF_LOCK  // Linux 5.15
  int locked = 0;
  socklen_t bytes = sizeof locked;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_BUF_LOCK, &locked, &bytes) != 0) {
    REQUIRE(errno == ENOPROTOOPT);
    return std::nullopt;
  }
  REQUIRE((locked == 0 || locked == 3));  // for neither way, or for both
  return locked != 0;
#else
  return std::nullopt;
#endif
}

constexpr char kCannotTell[] = "only Linux 5.15 and later tell whether sizes were set";

}  // namespace

TEST_CASE("link: a near one holds half a MiB each way") {
  bool set = false;
  for (int tries = 0; tries < 100 && !set; ++tries) {  // another process may come between
    const auto [one, other] = connected_pair();
    const bool near = prepare_link(one.get());
    const auto is = is_set(one);
    if (!is) return note_left_out("link_test: a near link", kCannotTell);
    CHECK(*is == near);
    set = *is;
  }
  CHECK(set);
}

TEST_CASE("link: a far one has the sizes to which the kernel makes it grow") {
  SlowNetwork network;
  if (!network.unable().empty()) return note_left_out("link_test: a far link", network.unable());
  const auto [one, other] = network.connect();
  for (const UniqueFd* end : {&one, &other}) {
    CHECK_FALSE(prepare_link(end->get()));
    const auto is = is_set(*end);
    if (!is) return note_left_out("link_test: a far link", kCannotTell);
    CHECK_FALSE(*is);
  }
}

// Else the ring's bytes would go in an order that others do not expect.
TEST_CASE("link: one that is far is heard of by all who agree") {
  const bool shares_hosts = GENERATE(false, true);
  const std::vector<int> hosts = shares_hosts ? std::vector{2, 1, 2} : std::vector{1, 1, 1};
  SlowNetwork network;
  if (!network.unable().empty())
    return note_left_out("link_test: ranks with a far link", network.unable());
  RankThreads ranks(hosts, [](Rank&) { return nullptr; });
  std::atomic<int> links = 0;
  ranks.world().make_links_by([&] {
    if (links == 1) network.speed_up();
    ++links;
    return network.connect();
  });
  const CommunicatorFactory factory = shares_hosts ? hierarchical_factory(hosts) : tcp_factory();
  ranks.run([&](Rank& rank) {
    rank.communicator = factory(rank);
    const auto call = make_call(rank, kShapes[2]);
    rank.complete(call->operation);
    const auto size = static_cast<size_t>(rank.size);
    for (size_t i = 0; i < call->data.size(); ++i)
      if (call->data[i] != static_cast<float>(size * (i % 97) + size * (size - 1) / 2))
        throw std::runtime_error("a wrong sum at " + std::to_string(i));
  });
  CHECK(links > 1);
}
