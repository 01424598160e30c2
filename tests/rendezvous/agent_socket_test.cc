// Messages and descriptors between a worker and its agent.
#include "rendezvous/agent_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <cstring>

#include "runtime/base/error.h"
#include "tests/support/catch.h"

using namespace hvd;

namespace {

struct Pair {
  AgentSocket worker, agent;
  UniqueFd raw;  // a third descriptor of the worker's end, to write what no AgentSocket would
  Pair() {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    raw.reset(fcntl(ends[0], F_DUPFD_CLOEXEC, 0));
    worker = AgentSocket(UniqueFd(ends[0]));
    agent = AgentSocket(UniqueFd(ends[1]));
  }
};

AgentMessage message(AgentMessage::Kind kind, uint32_t id) {
  AgentMessage made;
  made.kind = kind;
  made.epoch = 7;
  made.id = id;
  return made;
}

bool same_file(int one, int other) {
  struct stat a, b;
  REQUIRE(fstat(one, &a) == 0);
  REQUIRE(fstat(other, &b) == 0);
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

}  // namespace

TEST_CASE("agent socket: a message arrives as it was sent") {
  Pair pair;
  AgentMessage sent = message(AgentMessage::kStoreSet, 3);
  sent.value = -5'000'000'000;
  sent.key = "key";
  sent.body = to_bytes("value");
  pair.worker.send(sent);
  const auto got = pair.agent.receive();
  REQUIRE(got);
  CHECK(got->kind == AgentMessage::kStoreSet);
  CHECK(got->epoch == 7);
  CHECK(got->id == 3);
  CHECK(got->value == -5'000'000'000);
  CHECK(got->key == "key");
  CHECK(got->text() == "value");
  CHECK_FALSE(pair.agent.receive());
  CHECK_FALSE(pair.agent.ended());
}

TEST_CASE("agent socket: as many descriptors as a message takes arrive in order, close-on-exec") {
  Pair pair;
  UniqueFd first(eventfd(0, EFD_CLOEXEC));
  UniqueFd last(open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::vector<int> fds(kAgentMessageFdsMax, first.get());
  fds.back() = last.get();
  pair.agent.send(message(AgentMessage::kSegment, 0), fds);
  const auto got = pair.worker.receive();
  REQUIRE(got);
  REQUIRE(got->fds.size() == kAgentMessageFdsMax);
  CHECK(same_file(got->fds.back().get(), last.get()));
  CHECK(same_file(got->fds.front().get(), first.get()));
  CHECK((fcntl(got->fds.front().get(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("agent socket: what does not fit waits with its descriptors, and nothing is lost") {
  Pair pair;
  UniqueFd event(eventfd(0, EFD_CLOEXEC));
  const int passed = event.get();
  AgentMessage big = message(AgentMessage::kStoreAnswer, 0);
  big.body.resize(kAgentMessageBodyMax);
  for (uint32_t i = 0; i < 20; ++i) {
    big.id = i;
    pair.agent.send(big, std::span(&passed, 1));
  }
  REQUIRE(pair.agent.waiting());
  event.reset();  // the queue keeps its own
  for (uint32_t i = 0; i < 20; ++i) {
    auto got = pair.worker.receive();
    REQUIRE(got);
    CHECK(got->id == i);
    CHECK(got->body.size() == kAgentMessageBodyMax);
    CHECK(got->fds.size() == 1);
    pair.agent.flush();
  }
  CHECK_FALSE(pair.agent.waiting());
}

TEST_CASE("agent socket: a reader that never reads is an error, not endless memory") {
  Pair pair;
  AgentMessage big = message(AgentMessage::kStoreAnswer, 0);
  big.body.resize(1000);
  auto fill = [&] {
    for (int i = 0; i < 10'000; ++i) pair.agent.send(big);
  };
  CHECK_THROWS_WITH(fill(), Catch::Contains("unread"));
}

TEST_CASE("agent socket: messages sent before the end are read, then it has ended") {
  Pair pair;
  pair.worker.send(message(AgentMessage::kBroken, 0));
  pair.agent.send(message(AgentMessage::kClaimed, 0));
  pair.raw.reset();
  pair.worker.close();
  const auto got = pair.agent.receive();
  REQUIRE(got);
  CHECK(got->kind == AgentMessage::kBroken);
  CHECK_FALSE(pair.agent.receive());
  CHECK(pair.agent.ended());
  CHECK_NOTHROW(pair.agent.send(message(AgentMessage::kClaimed, 0)));
}

TEST_CASE("agent socket: another version, a short and a torn message are refused") {
  Pair pair;
  pair.worker.send(message(AgentMessage::kBroken, 0));
  std::array<unsigned char, 256> bytes{};
  const ssize_t length = recv(pair.agent.fd(), bytes.data(), bytes.size(), 0);
  REQUIRE(length > 8);
  auto replay = [&](size_t count) {
    REQUIRE(send(pair.raw.get(), bytes.data(), count, 0) == static_cast<ssize_t>(count));
  };
  replay(8);
  CHECK_THROWS_WITH(pair.agent.receive(), Catch::Contains("too short"));
  replay(static_cast<size_t>(length) + 1);
  CHECK_THROWS_WITH(pair.agent.receive(), Catch::Contains("malformed"));
  bytes[4] ^= 0x40;
  replay(static_cast<size_t>(length));
  CHECK_THROWS_WITH(pair.agent.receive(), Catch::Contains("different versions"));
}

TEST_CASE("agent socket: any bytes are refused or read, never more") {
  Pair pair;
  uint64_t state = 20261121;
  for (int i = 0; i < 20'000; ++i) {
    std::array<unsigned char, 96> bytes;
    for (auto& byte : bytes) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      byte = static_cast<unsigned char>(state >> 56);
    }
    const uint32_t magic = 0x68766441, version = 1;
    if (i % 2 == 0)
      std::memcpy(bytes.data(), &magic, 4), std::memcpy(bytes.data() + 4, &version, 2);
    if (i % 4 == 0) bytes[6] %= AgentMessage::kKinds, bytes[7] = 0;
    if (i % 8 == 0) std::memset(bytes.data() + 24, 0, 8), bytes[24] = bytes[28] = i % 32;
    REQUIRE(send(pair.raw.get(), bytes.data(), 32 + i % 64, 0) == 32 + i % 64);
    try {
      pair.agent.receive();
    } catch (const Error& error) {
      REQUIRE(error.code() == ErrorCode::kInvalidArgument);
    }
  }
}

TEST_CASE("agent socket: a world survives the wire, nonsense does not") {
  World world{.epoch = 3,
              .rank = 5,
              .size = 8,
              .local_rank = 1,
              .local_size = 4,
              .cross_rank = 1,
              .cross_size = 2,
              .host = "gpu7"};
  AgentMessage sent = message(AgentMessage::kWorld, 0);
  sent.key = world.host;
  sent.body = encode(world);
  CHECK(decode_world(sent) == world);
  CHECK(decode_hosts(sent).empty());
  const HostNames names{{0, "gpu 6"}, {4, "gpu7"}};
  add_hosts(sent, names);
  CHECK(decode_world(sent) == world);
  CHECK(decode_hosts(sent) == names);
  add_hosts(sent, {{8, std::string(kAgentMessageBodyMax, 'x')}});  // no room
  CHECK(decode_hosts(sent) == names);
  for (const char* nonsense : {"x", "4", "4 no end", "four gpu7\n", "-4 gpu7\n", " gpu7\n"}) {
    sent.body = encode(world);
    for (const std::byte byte : to_bytes(nonsense)) sent.body.push_back(byte);
    CHECK_THROWS_AS(decode_hosts(sent), Error);
  }
  world.rank = 8;
  sent.body = encode(world);
  CHECK_THROWS_AS(decode_world(sent), Error);
  sent.body.pop_back();
  CHECK_THROWS_AS(decode_world(sent), Error);
}

TEST_CASE("agent socket: an address is parsed whole or refused") {
  const AgentAddress address{make_agent_name(), 12};
  CHECK(address.name.size() == 32);
  CHECK(make_agent_name() != address.name);
  const AgentAddress parsed = AgentAddress::parse(address.text());
  CHECK(parsed.name == address.name);
  CHECK(parsed.slot == 12);
  for (const char* wrong :
       {"", ":", "abc:1", "0123456789abcdef0123456789abcdef",
        "0123456789abcdef0123456789abcdef:", "0123456789abcdef0123456789abcdef:-1",
        "0123456789abcdef0123456789abcdef:1x", "0123456789ABCDEF0123456789abcdef:1"}) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH(AgentAddress::parse(wrong), Catch::Contains("HVD_AGENT="));
  }
}

TEST_CASE("agent socket: who connects is known to the one who accepts") {
  const std::string name = make_agent_name();
  CHECK_THROWS_WITH(connect_to(name), Catch::Contains("no agent answers"));
  UniqueFd listener = listen_at(name);
  UniqueFd worker = connect_to(name);
  UniqueFd accepted(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  REQUIRE(accepted);
  CHECK(identity_of(accepted.get()).pid == getpid());
  CHECK(identity_of(accepted.get()).uid == getuid());
}
