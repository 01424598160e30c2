// Unique ids by way of the Store, among threads.
#include "collectives/nccl/shared_ids.h"

#include <cstring>
#include <memory>

#include "rendezvous/memory_store.h"
#include "runtime/base/error.h"
#include "tests/support/catch.h"
#include "tests/support/until.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

ncclUniqueId id_of(int rank) {
  ncclUniqueId id;
  std::memset(&id, rank + 1, sizeof id);
  return id;
}

std::unique_ptr<SharedIds> share(Store& store, int rank, int ranks, int ids,
                                 const std::string& name = "hvd") {
  return std::make_unique<SharedIds>(store, name, rank, ranks, ids, id_of(rank));
}

bool is(const ncclUniqueId& id, int rank) {
  const ncclUniqueId wanted = id_of(rank);
  return std::memcmp(&id, &wanted, sizeof id) == 0;
}

class RefusingStore final : public Store {
 public:
  explicit RefusingStore(bool broken) : broken_(broken) {}
  void set(const std::string&, Bytes) override { refuse(); }
  Bytes get(const std::string&, Deadline) override { refuse(); }
  void wait(std::span<const std::string>, Deadline) override { refuse(); }
  int64_t add(const std::string&, int64_t) override { refuse(); }
  std::atomic<bool> asked{false};

 private:
  [[noreturn]] void refuse() {
    asked = true;
    if (broken_) throw CommFailure("rank 3 died", true);
    throw Error(ErrorCode::kInvalidArgument, "the store is full");
  }
  const bool broken_;
};

}  // namespace

TEST_CASE("shared ids: all ranks have those of all that make one, in one order") {
  MemoryStore store;
  std::vector<std::unique_ptr<SharedIds>> ranks;
  for (int rank = 4; rank >= 0; --rank) ranks.push_back(share(store, rank, 5, 2));
  for (const auto& one : ranks) {
    until("all ids", [&] { return one->have_come(); });
    REQUIRE(one->all().size() == 2);
    CHECK(is(one->all()[0], 0));
    CHECK(is(one->all()[1], 3));
    CHECK(one->missing().empty());
  }
}

TEST_CASE("shared ids: communicators of two names do not get each other's") {
  MemoryStore store;
  const auto first = share(store, 0, 2, 1, "first"), other = share(store, 1, 2, 1, "second");
  until("the own one", [&] { return first->have_come(); });
  CHECK_FALSE(other->have_come());
  CHECK(other->missing() == std::vector<int>{0});
}

TEST_CASE(
    "shared ids: who has not published is missing, and nobody waits for it longer than asked") {
  MemoryStore store;
  auto rank = share(store, 4, 5, 2);
  const auto last = share(store, 3, 5, 2);
  until("its own", [&] { return last->missing() == std::vector<int>{0}; });
  CHECK_FALSE(rank->have_come());
  CHECK(rank->missing() == std::vector<int>{0, 3});
  const TimePoint begin = Clock::now();
  rank.reset();
  CHECK(Clock::now() - begin < 10s);
}

TEST_CASE("shared ids: what the Store refuses is thrown, but for the end of the epoch") {
  RefusingStore full(false), broken(true);
  const auto refused = share(full, 0, 2, 1), ended = share(broken, 0, 2, 1);
  CHECK_THROWS_WITH(until("the refusal", [&] { return refused->have_come(); }),
                    "the store is full");
  until("the question", [&] { return broken.asked.load(); });
  CHECK_FALSE(ended->have_come());
}
