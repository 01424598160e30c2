// The communicators between hosts: what ranks that differ are told, and what ends a link.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "collectives/gather_room.h"
#include "collectives/tcp/cube.h"
#include "collectives/tcp/frame.h"
#include "collectives/tcp/ring.h"
#include "hvd/error.h"
#include "runtime/base/deadline.h"
#include "tests/collectives/calls.h"
#include "tests/support/catch.h"
#include "tests/support/extent.h"
#include "tests/support/memory_limit_folder.h"
#include "tests/support/ranks.h"

using namespace hvd;

namespace {

std::vector<int> hosts_of_one(int ranks) { return std::vector<int>(static_cast<size_t>(ranks), 1); }

// Ranks of each host, and what they have between them.
struct Setting {
  std::string name;
  std::vector<int> hosts;
  CommunicatorFactory factory;
  bool flat = false;

  int ranks() const { return std::accumulate(hosts.begin(), hosts.end(), 0); }
};

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (int ranks : {2, 3, 4, 5, 6, 8})
    all.push_back({"tcp", hosts_of_one(ranks), tcp_factory(), true});
  for (const std::vector<int>& hosts : {std::vector{2, 2}, {3}, {1, 3}, {2, 1, 2}, {2, 2, 2, 2}})
    all.push_back({"hierarchical", hosts, hierarchical_factory(hosts)});
  for (Setting& setting : all) {
    setting.name += ", hosts of";
    for (int ranks : setting.hosts) setting.name += " " + std::to_string(ranks);
  }
  std::erase_if(all, [](const Setting& setting) { return setting.ranks() > ranks_max(); });
  return all;
}

void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

// An end of a link in the hands of the test, which plays rank 1 of 2, each on a host of its own.
class PlayedRank {
 public:
  explicit PlayedRank(const CommunicatorFactory& factory = tcp_factory())
      : ranks_(hosts_of_one(2), nobody) {
    peers_ = ranks_.world().peers(1);
    peers_->request_links(0, std::vector{0});
    ranks_.rank(0).communicator = factory(ranks_.rank(0));
    socket_ = std::move(peers_->take_links(0)->front());
  }

  Rank& rank() { return ranks_.rank(0); }
  ControlBlock& block() { return ranks_.world().host(0).block(); }
  std::string reason() { return block().rank(0).reason; }
  void say(const void* bytes, size_t count) {
    REQUIRE(send(socket_.get(), bytes, count, MSG_NOSIGNAL) == static_cast<ssize_t>(count));
  }
  void say(const FrameHeader& header) { say(&header, sizeof header); }
  // What rank 0 sent first.
  FrameHeader hear() {
    FrameHeader header;
    rank().advance_until(
        [&] { return recv(socket_.get(), &header, sizeof header, MSG_DONTWAIT) == sizeof header; });
    return header;
  }
  // So many bytes more come of what rank 0 sends by itself.
  void expect_bytes(size_t count) {
    size_t came = 0;
    std::vector<std::byte> into(64 * 1024);
    const auto come = [&] {
      const ssize_t got = recv(socket_.get(), into.data(), into.size(), MSG_DONTWAIT);
      if (got > 0) came += static_cast<size_t>(got);
      return got > 0;
    };
    rank().advance_until([&] { return !come() && came >= count; });
    while (rank().communicator->progress() || come()) continue;
    CHECK(came == count);
  }
  void hang_up(bool reset) {
    const linger at_once{1, 0};
    if (reset) setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    socket_.reset();
  }
  // Rank 0 starts this and goes on until the epoch is broken; its outcome and what was said.
  Outcome break_in(Operation& operation) {
    Rank& zero = rank();
    const TimePoint began = Clock::now();
    zero.advance_until([&] { return block().trouble != 0; });
    CHECK(Clock::now() - began < std::chrono::seconds(1));
    ranks_.world().host(1).block().rank(0).quiet = 1;
    zero.leave_broken_epoch();
    return operation.outcome;
  }

 private:
  static std::unique_ptr<Communicator> nobody(Rank&) { return nullptr; }

  RankThreads ranks_;
  std::unique_ptr<Peers> peers_;
  UniqueFd socket_;
};

// Who may have that one for a peer.
CommunicatorFactory flat_or_not() {
  return GENERATE(false, true) ? hierarchical_factory(hosts_of_one(2)) : tcp_factory();
}

}  // namespace

TEST_CASE("between hosts: different calls are refused on every rank, both named, nothing touched") {
  const Setting setting = GENERATE(from_range(settings()));
  const int size = setting.ranks();
  INFO(setting.name);
  RankThreads ranks(setting.hosts, setting.factory);
  for (const Shape& one : kShapes)
    for (const Shape& other : kShapes) {
      if (&one == &other || (&one - kShapes + 5 * (&other - kShapes)) % every(3) != 0) continue;
      const int odd = static_cast<int>((&one - kShapes + 3 * (&other - kShapes)) % size);
      INFO(size << " ranks, rank " << odd << " calls " << other.text << ", not " << one.text);
      REQUIRE_NOTHROW(ranks.run([&](Rank& rank) {
        const uint32_t segments = rank.next_segment;
        const auto call = make_call(rank, rank.rank == odd ? other : one);
        expect(rank.run(call->operation) == Outcome::kRefused, "not refused");
        const std::string& error = call->operation.error;
        expect(call->operation.disagreed, "agreed: " + error);
        const int first = odd == 0 ? 1 : 0;
        expect(error.find("rank " + std::to_string(first) + " called " + one.text) !=
                   std::string::npos,
               error);
        expect(error.find("rank " + std::to_string(odd) + " called " + other.text) !=
                   std::string::npos,
               error);
        expect(call->data == call->before, "touched");
        expect(!call->allocated, "allocated");
        expect(!rank.arena.has(segments), "a segment stayed");
        rank.next_segment = segments + 1;
        // The world lives.
        const auto next = make_call(rank, kShapes[1]);
        rank.complete(next->operation);
      }));
    }
}

TEST_CASE("between hosts: a rank that cannot add a segment says why to all") {
  const Setting setting = GENERATE(from_range(settings()));
  const bool by_agent = GENERATE(true, false);
  const int size = setting.ranks();
  INFO(setting.name);
  const MemoryLimitFolder limit(0);
  RankThreads ranks(setting.hosts, setting.factory);
  InProcessHost& host = ranks.world().host(ranks.world().hosts() - 1);
  by_agent ? host.limit_segments(100, "that host is full") : host.limit_memory(limit.path());
  const std::string why = by_agent
                              ? "that host is full"
                              : "cannot take 4096 bytes of shared memory: of the 1024000 bytes of "
                                "this machine 1024000 are in use; ask for less, or start fewer "
                                "ranks on this host";
  const std::string unable = "rank " + std::to_string(size - setting.hosts.back()) + ": " + why;
  ranks.run([&](Rank& rank) {
    const auto call = make_call(rank, kShapes[7]);
    expect(rank.run(call->operation) == Outcome::kRefused, "not refused");
    expect(call->operation.error == unable, call->operation.error);
    expect(call->operation.code == ErrorCode::kUnavailable, "another code");
    expect(!rank.arena.has(1), "a segment stayed");
    rank.complete(make_call(rank, kShapes[0])->operation);
  });
}

TEST_CASE("between hosts: who has no room for what is gathered is refused alone") {
  const Setting setting = GENERATE(from_range(settings()));
  const int size = setting.ranks();
  INFO(setting.name);
  RankThreads ranks(setting.hosts, setting.factory);
  ranks.run([&](Rank& rank) {
    for (int poor = 0; poor < size; ++poor) {
      const auto call = make_call(rank, kShapes[5]);
      if (rank.rank == poor)
        call->operation.allocate = [](std::span<const uint64_t>) -> void* {
          throw std::runtime_error("not a byte");
        };
      const Outcome outcome = rank.run(call->operation);
      expect(outcome == (rank.rank == poor ? Outcome::kRefused : Outcome::kComplete), "outcome");
      if (rank.rank == poor) {
        expect(call->operation.error.find("not a byte") != std::string::npos, "why");
        continue;
      }
      for (size_t i = 0; i < call->gathered.size(); ++i) {
        const size_t from = i / 20'000;
        expect(call->gathered[i] == static_cast<float>(i % 20'000 % 97 + from), "wrong part");
      }
    }
  });
}

TEST_CASE(
    "between hosts: who has no room for more than it may hand on ends the epoch, and says why") {
  const std::vector<int> hosts = GENERATE(std::vector{1, 1}, std::vector{2, 2});
  const size_t count = kHandedOnMost / sizeof(float) + 1;
  RankThreads ranks(hosts, hosts[0] == 1 ? tcp_factory() : hierarchical_factory(hosts));
  ranks.run([&](Rank& rank) {
    const auto call = make_call(rank, kShapes[5]);
    std::unique_ptr<float[]> part, result;  // hardly any of it is ever touched
    if (rank.rank == 0) {
      part.reset(new float[count]);
      call->operation.input = {part.get(), count, DataType::kFloat32};
    }
    call->operation.allocate = [&](std::span<const uint64_t> counts) -> void* {
      if (rank.rank == 1) throw std::runtime_error("not a byte");
      result.reset(new float[std::accumulate(counts.begin(), counts.end(), size_t{0})]);
      return result.get();
    };
    rank.communicator->start(call->operation);
    rank.leave_broken_epoch();
    expect(call->operation.outcome == Outcome::kFailedUndefined, "outcome");
    const std::string text = reason_of(rank);
    expect(text.starts_with("rank 1: allgather: no room for a result of 268") &&
               text.ends_with("bytes: not a byte"),
           text);
  });
}

TEST_CASE("between hosts: a rank that left is named by who needs it") {
  const Setting setting = GENERATE(from_range(settings()));
  INFO(setting.name);
  RankThreads ranks(setting.hosts, setting.factory);
  ranks.run([&](Rank& rank) {
    rank.complete(make_call(rank, kShapes[0])->operation);
    if (rank.rank == 1) {
      rank.communicator->close();
      expect(rank.communicator->drained(), "not drained");
      RankWords& words = rank.peers->block().rank(rank.peers->world().local_rank);
      words.quiet = words.left = 1;
      return;
    }
    const auto call = make_call(rank, kShapes[2]);
    rank.communicator->start(call->operation);
    rank.leave_broken_epoch();
    expect(call->operation.outcome == Outcome::kFailedUndefined, "outcome");
    const std::string text = reason_of(rank);
    expect(text == "rank 1 called shutdown() while other ranks went on", text);
  });
}

TEST_CASE("between hosts: ranks that are missing are those of whom nobody has heard") {
  const Setting setting = GENERATE(from_range(settings()));
  const int size = setting.ranks();
  const int late = GENERATE(0, 1, 2, 3, 5);
  if (late >= size) return;
  RankThreads ranks(setting.hosts, setting.factory);
  std::vector<std::unique_ptr<Call>> calls;
  for (int k = 0; k < size; ++k) {
    calls.push_back(make_call(ranks.rank(k), kShapes[0]));
    if (k != late) ranks.rank(k).communicator->start(calls.back()->operation);
  }
  // Who swaps with it first knows all others, unless one waits for it as for its stand-in.
  bool exact = setting.flat && late + cube_corners(size) < size;
  const Deadline deadline = Deadline::in(std::chrono::seconds(60));
  do {
    for (int k = 0; k < size; ++k) ranks.rank(k).communicator->progress();
    for (int k = 0; k < size; ++k) {
      if (k == late) continue;
      const std::vector<int> missing = ranks.rank(k).communicator->missing_ranks();
      INFO(setting.name << ", rank " << k << ", late " << late);
      REQUIRE(std::ranges::find(missing, late) != missing.end());
      REQUIRE(std::ranges::find(missing, k) == missing.end());
      exact |= missing == std::vector{late};
    }
  } while (!exact && !deadline.passed());
  CHECK(exact);
  ranks.rank(late).communicator->start(calls[static_cast<size_t>(late)]->operation);
  ranks.run([](Rank& rank) {
    rank.advance_until([&] { return rank.communicator->idle(); });
    expect(rank.communicator->missing_ranks().empty(), "still missing");
  });
}

TEST_CASE("between hosts: what is no message of this operation breaks the epoch and is named") {
  struct Lie {
    void (*change)(FrameHeader&);
    const char* text;
  };
  const Lie lie = GENERATE(
      Lie{[](FrameHeader& h) { h.magic = 0; }, "bytes that are no message"},
      Lie{[](FrameHeader& h) { h.epoch = 7; }, "a message of epoch 7 where 1 was due"},
      Lie{[](FrameHeader& h) { h.sequence = 4; }, "a message of operation 4 where 1 was due"},
      Lie{[](FrameHeader& h) { h.from = 0; }, "a message of rank 0 where 1 was due"},
      Lie{[](FrameHeader& h) { h.part = 0; }, "a message of part 0 where 512 was due"},
      Lie{[](FrameHeader& h) { h.bytes = 1; }, "a message that does not fit"},
      Lie{[](FrameHeader& h) { ++h.hash, h.bytes = uint64_t{1} << 40; },
          "a message that does not fit"});
  PlayedRank played(flat_or_not());
  const auto call = make_call(played.rank(), kShapes[0]);
  played.rank().communicator->start(call->operation);
  FrameHeader header = played.hear();
  header.from = 1;
  lie.change(header);
  played.say(header);
  CHECK(played.break_in(call->operation) == Outcome::kFailedUndefined);
  CHECK(played.reason() == "rank 0 got " + std::string(lie.text) + " on its link to rank 1");
  CHECK(call->data == call->before);
}

TEST_CASE("between hosts: a long sum goes in chunks, but in whole parts if a link is far") {
  const bool far = GENERATE(false, true);
  PlayedRank played(flat_or_not());
  const auto call = make_call(played.rank(), kShapes[2]);
  played.rank().communicator->start(call->operation);
  FrameHeader header = played.hear();
  CHECK((header.flags & kFar) == 0);
  if (far) header.flags |= kFar;
  header.from = 1;
  played.say(header);
  FrameHeader ring = played.hear();
  CHECK(ring.part == (far ? kRingPart : kChunksPart));
  CHECK(ring.bytes == 2'400'000);
  played.expect_bytes(far ? 1'200'000 : 2 * kRingChunkBytes);  // before any come
  ring.part = far ? kChunksPart : kRingPart;                   // in an order that is not due
  ring.from = 1;
  played.say(ring);
  played.break_in(call->operation);
  CHECK(played.reason().find("a message of part") != std::string::npos);
}

TEST_CASE("between hosts: who has the data of a short broadcast cannot bring none") {
  PlayedRank played(flat_or_not());
  auto call = make_call(played.rank(), kShapes[3]);
  call->operation.root = 1;
  played.rank().communicator->start(call->operation);
  FrameHeader header = played.hear();
  CHECK(header.bytes == 0);
  header.from = 1;
  played.say(header);
  CHECK(played.break_in(call->operation) == Outcome::kFailedUndefined);
  CHECK(played.reason() == "rank 0 got a message that does not fit on its link to rank 1");
  CHECK(call->data == call->before);
}

TEST_CASE("between hosts: a lie behind an honest exchange is found, too") {
  const CommunicatorFactory factory = flat_or_not();
  for (const Shape& shape : {kShapes[2], kShapes[4], kShapes[5]}) {
    PlayedRank played(factory);
    auto call = make_call(played.rank(), shape);
    call->operation.root = 1;  // of the broadcast: the data come from the played rank
    played.rank().communicator->start(call->operation);
    FrameHeader header = played.hear();
    header.from = 1;
    std::vector<std::byte> payload(header.bytes);
    played.say(header);
    if (shape.kind == OperationKind::kAllgather) {
      const uint64_t counts[] = {~uint64_t{0}, 5};
      std::memcpy(payload.data(), counts, sizeof counts);
    }
    if (!payload.empty()) played.say(payload.data(), payload.size());
    const std::string garbage(100, 'x');
    played.say(garbage.data(), garbage.size());
    INFO(shape.text);
    CHECK(played.break_in(call->operation) == Outcome::kFailedUndefined);
    CHECK(played.reason() == "rank 0 got bytes that are no message on its link to rank 1");
  }
}

TEST_CASE("tcp: counts that nobody can have are found before there is room for them") {
  const uint64_t lie = GENERATE(~uint64_t{0}, uint64_t{1} << 62);
  PlayedRank played;
  const auto call = make_call(played.rank(), kShapes[5]);
  played.rank().communicator->start(call->operation);
  FrameHeader header = played.hear();
  header.from = 1;
  const uint64_t counts[] = {~uint64_t{0}, lie};
  played.say(header);
  played.say(counts, sizeof counts);
  CHECK(played.break_in(call->operation) == Outcome::kFailedUndefined);
  CHECK(played.reason() == "rank 0 got counts that are none on its link to rank 1");
  CHECK_FALSE(call->allocated);
}

TEST_CASE("tcp: of its own part nobody is believed but the rank itself") {
  PlayedRank played;
  const auto call = make_call(played.rank(), kShapes[5]);
  played.rank().communicator->start(call->operation);
  FrameHeader header = played.hear();
  header.from = 1;
  const uint64_t counts[] = {1, 5};  // rank 0 brings 20,000
  played.say(header);
  played.say(counts, sizeof counts);
  played.hang_up(false);
  played.break_in(call->operation);
  CHECK(call->gathered.size() == 20'005);
}

TEST_CASE("between hosts: a link that ends while both ranks live breaks the epoch and is named") {
  const bool reset = GENERATE(false, true);
  const bool before = GENERATE(false, true);
  PlayedRank played(flat_or_not());
  const auto call = make_call(played.rank(), kShapes[2]);
  if (before) played.hang_up(reset);
  played.rank().communicator->start(call->operation);
  if (!before) {
    played.hear();
    played.hang_up(reset);
  }
  CHECK(played.break_in(call->operation) == Outcome::kFailedUndefined);
  CHECK(played.reason().starts_with("rank 0 lost its link to rank 1 ("));
  CHECK(played.reason().ends_with("look at the network between their hosts"));
}

TEST_CASE("tcp: links that cannot be had break the epoch with the reason") {
  RankThreads ranks(hosts_of_one(2), [](Rank&) { return nullptr; });
  ranks.world().refuse_links("host b cannot be reached from host a");
  ranks.run([](Rank& rank) {
    rank.communicator = tcp_factory()(rank);
    const auto call = make_call(rank, kShapes[0]);
    rank.communicator->start(call->operation);
    rank.leave_broken_epoch();
    expect(call->operation.outcome == Outcome::kFailedUndefined, "outcome");
  });
  const std::string text = ranks.world().host(0).block().rank(0).reason;
  const std::string other = ranks.world().host(1).block().rank(0).reason;
  CHECK((text.ends_with("got no links to other ranks: host b cannot be reached from host a") ||
         other.ends_with("got no links to other ranks: host b cannot be reached from host a")));
}

TEST_CASE("between hosts: abort() on one rank ends what is under way on all") {
  const Setting setting = GENERATE(from_range(settings()));
  INFO(setting.name);
  RankThreads ranks(setting.hosts, setting.factory);
  ranks.run([&](Rank& rank) {
    rank.complete(make_call(rank, kShapes[1])->operation);
    const auto call = make_call(rank, kShapes[2]);
    if (rank.rank == 0)
      rank.communicator->abort();
    else
      rank.communicator->start(call->operation);
    rank.leave_broken_epoch();
    expect(rank.rank == 0 || call->operation.outcome == Outcome::kFailedUndefined, "outcome");
    const auto late = make_call(rank, kShapes[0]);
    expect(rank.run(late->operation) == Outcome::kFailedUntouched, "late");
  });
}
