// The coordinator's decisions, by literals and by seeded random ranks against a model.
#include "runtime/engine/coordinator.h"

#include <map>
#include <random>
#include <set>

#include "runtime/base/error.h"
#include "runtime/engine/unnamed.h"
#include "tests/support/catch.h"

using namespace hvd;
using Kind = LogEntry::Kind;

namespace {

Announcement announcement(const std::string& name, uint64_t hash) {
  return {name, hash, "operation " + std::to_string(hash)};
}

// One rank's end, as simple as can be: what it knows, what it has flipped, how far it has read.
struct ModelRank {
  std::map<std::string, std::pair<uint32_t, uint64_t>> known;  // name: id, hash
  std::map<uint32_t, std::string> name_of_id;
  std::map<std::string, uint64_t> in_flight;  // name: hash
  std::vector<uint64_t> bits = std::vector<uint64_t>(1);
  size_t read = 0;
};

struct Model {
  explicit Model(unsigned seed, int ranks_count, size_t names_max)
      : random(seed),
        ranks(static_cast<size_t>(ranks_count)),
        coordinator(ranks_count, names_max) {}

  void submit(int rank, const std::string& name, uint64_t hash) {
    ModelRank& r = ranks[static_cast<size_t>(rank)];
    if (!r.in_flight.emplace(name, hash).second) return;
    ++asked[name][rank];
    const auto known = r.known.find(name);
    if (known != r.known.end() && known->second.second == hash) {
      r.bits[0] ^= uint64_t{1} << known->second.first;
      flipped.insert(rank);
    } else {
      coordinator.announce(rank, announcement(name, hash));
      ++described;
    }
  }

  void coordinate() {
    for (int rank : flipped) coordinator.observe(rank, 0, ranks[static_cast<size_t>(rank)].bits[0]);
    flipped.clear();
    while (auto entry = coordinator.next()) log.push_back(*entry);
  }

  // The rank reads one entry; its submission of that name is answered.
  void read_one(int rank) {
    ModelRank& r = ranks[static_cast<size_t>(rank)];
    if (r.read == log.size()) return;
    const LogEntry& entry = log[r.read++];
    const std::string name = entry.kind == Kind::kRun ? r.name_of_id.at(entry.id) : entry.name;
    const auto mine = r.in_flight.find(name);
    REQUIRE(mine != r.in_flight.end());  // nobody is told of what it has not asked for
    answers[name][rank].push_back({entry.kind != Kind::kRefuse, mine->second});
    if (entry.kind == Kind::kBind) {
      r.known[name] = {entry.id, mine->second};
      r.name_of_id[entry.id] = name;
    }
    r.in_flight.erase(mine);
  }

  struct Answer {
    bool runs;
    uint64_t hash;
  };
  std::mt19937 random;
  std::vector<ModelRank> ranks;
  Coordinator coordinator;
  std::set<int> flipped;
  std::vector<LogEntry> log;
  std::map<std::string, std::map<int, int>> asked;
  std::map<std::string, std::map<int, std::vector<Answer>>> answers;
  int described = 0;
};

}  // namespace

TEST_CASE("coordinator: runs a name once all ranks have asked, by bit the second time") {
  Coordinator coordinator(2, 8);
  coordinator.announce(1, announcement("x", 7));
  CHECK_FALSE(coordinator.next());
  REQUIRE(coordinator.waiting().size() == 1);
  CHECK(coordinator.waiting()[0].missing == std::vector<int>{0});
  coordinator.announce(0, announcement("x", 7));
  auto bound = coordinator.next();
  REQUIRE(bound);
  CHECK(bound->kind == Kind::kBind);
  CHECK(bound->name == "x");
  CHECK_FALSE(coordinator.next());
  const uint64_t bits = uint64_t{1} << bound->id;
  coordinator.observe(0, 0, bits);
  coordinator.observe(0, 0, bits);  // the same look twice asks once
  CHECK_FALSE(coordinator.next());
  coordinator.observe(1, 0, bits);
  auto run = coordinator.next();
  REQUIRE(run);
  CHECK(run->kind == Kind::kRun);
  CHECK(run->id == bound->id);
}

TEST_CASE("coordinator: a flipped bit beside a new description is the known description") {
  Coordinator coordinator(2, 8);
  for (int rank : {0, 1}) coordinator.announce(rank, announcement("x", 7));
  REQUIRE(coordinator.next()->kind == Kind::kBind);
  const uint64_t bits = 1;
  coordinator.observe(0, 0, bits);
  coordinator.announce(1, announcement("x", 9));
  auto refused = coordinator.next();
  REQUIRE(refused);
  CHECK(refused->kind == Kind::kRefuse);
  CHECK_THAT(refused->text, Catch::Contains("rank 0 submitted operation 7") &&
                                Catch::Contains("rank 1 submitted operation 9") &&
                                Catch::Contains("\"x\""));
  for (int rank : {1, 0}) coordinator.announce(rank, announcement("x", 9));  // agreed anew
  CHECK(coordinator.next()->kind == Kind::kBind);
  coordinator.observe(1, 0, bits);
  const uint64_t back = 0;
  coordinator.observe(0, 0, back);
  CHECK(coordinator.next()->kind == Kind::kRun);
}

TEST_CASE("coordinator: a rank that is apart is told to all, that time only") {
  Coordinator coordinator(2, 1);
  Announcement apart = announcement("x", 7);
  apart.apart = true;
  coordinator.announce(0, announcement("x", 7));
  coordinator.announce(1, apart);
  const auto first = coordinator.next();
  REQUIRE(first);
  CHECK(first->kind == Kind::kBind);
  CHECK(first->apart);
  coordinator.observe(1, 0, 1);
  coordinator.announce(0, apart);
  const auto second = coordinator.next();
  REQUIRE(second);
  CHECK(second->kind == Kind::kBind);
  CHECK(second->id == first->id);
  CHECK(second->apart);
  for (const int rank : {0, 1}) coordinator.observe(rank, 0, rank == 0);
  const auto third = coordinator.next();
  REQUIRE(third);
  CHECK(third->kind == Kind::kRun);
  CHECK_FALSE(third->apart);
  for (const int rank : {0, 1}) {  // of a name without a bit, too
    Announcement other = announcement("y", 7);
    other.apart = rank == 1;
    coordinator.announce(rank, other);
  }
  const auto once = coordinator.next();
  REQUIRE(once);
  CHECK(once->kind == Kind::kOnce);
  CHECK(once->apart);
}

TEST_CASE("coordinator: what has no name of the program's uses up no bit") {
  Coordinator coordinator(1, 2);
  const auto kind_of = [&](const std::string& name) {
    coordinator.announce(0, announcement(name, 1));
    return coordinator.next()->kind;
  };
  for (uint64_t i = 1; i <= 3; ++i) CHECK(kind_of(unnamed("allreduce", i)) == Kind::kOnce);
  for (const char* name : {"a.noname.", "a.noname.1b"}) CHECK(kind_of(name) == Kind::kBind);
}

TEST_CASE("coordinator: names beyond the limit run without a bit") {
  Coordinator coordinator(1, 2);
  Kind kinds[] = {Kind::kBind, Kind::kBind, Kind::kOnce, Kind::kOnce};
  for (int i = 0; i < 4; ++i) {
    coordinator.announce(0, announcement("n" + std::to_string(i), 1));
    CHECK(coordinator.next()->kind == kinds[i]);
  }
}

TEST_CASE("coordinator: an entry waits for whoever has not acted on so many") {
  Coordinator coordinator(2, 2);
  const auto decide = [&](const std::string& name, bool agree) {
    for (const int rank : {0, 1}) coordinator.announce(rank, announcement(name, agree ? 1 : rank));
    REQUIRE(coordinator.next());
  };
  decide("a", true), decide("b", true), decide("refused", false), decide("a", true);
  CHECK(coordinator.entries() == 4);
  const auto look = [&](uint64_t entry, std::vector<uint64_t> acted) {
    const WaitingName waiting = coordinator.waiting_entry(entry, acted);
    return std::pair(waiting.name, waiting.missing);
  };
  using Seen = std::pair<std::string, std::vector<int>>;
  CHECK(look(2, {4, 1, 2}) == Seen("b", {1}));
  CHECK(look(3, {4, 1, 2}) == Seen("refused", {1, 2}));
  CHECK(look(4, {4, 4, 4}) == Seen("a", {}));
  CHECK(look(1, {1, 0, 1}) == Seen("entry 1 of the log", {1}));  // its name has a later one
  CHECK(coordinator.waiting_entry(2, {}).round != coordinator.waiting_entry(4, {}).round);
}

TEST_CASE("coordinator: a bit of nobody and a name asked twice are our own faults") {
  Coordinator coordinator(2, 8);
  const uint64_t bits = 2;
  CHECK_THROWS_AS(coordinator.observe(0, 0, bits), Error);
  coordinator.announce(0, announcement("x", 1));
  CHECK_THROWS_AS(coordinator.announce(0, announcement("x", 1)), Error);
}

TEST_CASE("coordinator: seeded random ranks are answered alike, once for each time they asked") {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    std::mt19937 shape(seed);
    const int ranks = 1 + static_cast<int>(shape() % 5);
    Model model(seed, ranks, 1 + shape() % 6);
    auto pick = [&](size_t n) { return static_cast<int>(model.random() % n); };
    // Each rank submits the same rounds of the same names in an order of its own.
    const int rounds = 6, names = 8;
    std::vector<std::vector<int>> left(static_cast<size_t>(ranks), std::vector<int>(names, rounds));
    auto hash = [&](int name, int round, int rank) -> uint64_t {
      const unsigned h = static_cast<unsigned>(name * 31 + round * 7) + seed;
      const bool differs = h % 5 == 0 && rank == static_cast<int>(h % 3);
      return differs ? 900 : h % 3;  // now and then a new description, or a mismatch
    };
    size_t answered = 0;
    const size_t all = static_cast<size_t>(ranks) * rounds * names;
    for (int turn = 0; answered < all; ++turn) {
      REQUIRE(turn < 100'000);
      const int rank = pick(ranks), name = pick(names);
      const std::string text = "n" + std::to_string(name);
      auto& mine = left[static_cast<size_t>(rank)];
      if (mine[name] > 0 && !model.ranks[static_cast<size_t>(rank)].in_flight.contains(text)) {
        model.submit(rank, text, hash(name, rounds - mine[name], rank));
        --mine[name];
      }
      if (pick(3) == 0) model.coordinate();
      const int reader = pick(ranks);
      const size_t before = model.ranks[static_cast<size_t>(reader)].read;
      model.read_one(reader);
      answered += model.ranks[static_cast<size_t>(reader)].read - before;
    }
    for (auto& [name, by_rank] : model.answers) {
      CAPTURE(name);
      for (int round = 0; round < rounds; ++round) {
        std::set<uint64_t> hashes;
        for (int rank = 0; rank < ranks; ++rank) {
          REQUIRE(by_rank[rank].size() == rounds);
          hashes.insert(by_rank[rank][static_cast<size_t>(round)].hash);
          CHECK(by_rank[rank][static_cast<size_t>(round)].runs ==
                by_rank[0][static_cast<size_t>(round)].runs);
        }
        CHECK(by_rank[0][static_cast<size_t>(round)].runs == (hashes.size() == 1));
      }
    }
    CHECK(model.coordinator.waiting().empty());
  }
}

TEST_CASE("coordinator: two uses of a name have two rounds, also of one without a bit") {
  Coordinator coordinator(2, 1);
  const auto use = [&](const std::string& name) {
    coordinator.announce(0, {name, 1, ""});
    const uint64_t round = coordinator.waiting().front().round;
    coordinator.announce(1, {name, 1, ""});
    REQUIRE(coordinator.next());
    return round;
  };
  for (const std::string name : {"bound", "once"}) {
    const uint64_t first = use(name), second = use(name);
    CHECK(first < second);
  }
}

TEST_CASE("coordinator: an entry that waits in the log has its name, bound or not") {
  Coordinator coordinator(1, 1);
  const std::vector<uint64_t> acted{0};
  for (const char* name : {"bound", "beyond", "allreduce.noname.1"}) {
    coordinator.announce(0, announcement(name, 1));
    REQUIRE(coordinator.next());
    CHECK(coordinator.waiting_entry(coordinator.entries(), acted).name == name);
  }
}
