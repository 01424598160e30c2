// The worker's end of its socket, with an agent that says what the test wants.
#include "runtime/agent_connection.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "runtime/agent_peers.h"
#include "runtime/base/control_block.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"
#include "runtime/engine/progress.h"
#include "tests/support/catch.h"
#include "tests/support/extent.h"
#include "tests/support/few_descriptors.h"
#include "tests/support/rank_program.h"
#include "tests/support/until.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

// Listens, accepts one worker, and follows the script on a thread of its own.
class ScriptedAgent {
 public:
  using Script = std::function<void(ScriptedAgent&)>;
  explicit ScriptedAgent(Script script)
      : listener_(listen_at(address_.name)), thread_([this, script = std::move(script)] {
          if (!wait_readable(listener_.get())) return;
          socket_ = AgentSocket(
              UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)));
          script(*this);
          socket_.close();
        }) {}

  const AgentAddress& address() const { return address_; }

  // The next message of that kind; nothing when the worker is gone, or has said nothing for a
  // minute: then the script goes on, and its end ends whatever the worker waits for.
  std::optional<AgentMessage> expect(AgentMessage::Kind kind) {
    while (!socket_.ended()) {
      if (auto message = socket_.receive(); message && message->kind == kind) return message;
      if (!wait_readable(socket_.fd())) break;
    }
    return std::nullopt;
  }
  std::optional<AgentMessage> receive() { return socket_.receive(); }
  void send(AgentMessage::Kind kind, uint32_t id = 0, const std::string& text = "",
            int64_t value = 0, std::span<const int> fds = {}) {
    AgentMessage message;
    message.kind = kind;
    message.epoch = 4;
    message.id = id;
    message.value = value;
    message.body = to_bytes(text);
    socket_.send(message, fds);
  }
  void welcome() {
    expect(AgentMessage::kClaim);
    const UniqueFd page(memfd_create("page", MFD_CLOEXEC));
    const int fd = ftruncate(page.get(), sizeof(StatusPage)) == 0 ? page.get() : -1;
    send(AgentMessage::kClaimed, 0, "", 0, std::span(&fd, 1));
  }
  // Two local ranks; doorbells in two messages. The control block is of no use without one.
  void start_epoch(int block = -1) {
    expect(AgentMessage::kWantEpoch);
    AgentMessage message;
    message.kind = AgentMessage::kWorld;
    message.epoch = 4;
    message.key = "localhost";
    message.body = encode({4, 1, 2, 1, 2, 0, 1, "localhost"});
    const UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    const int fds[] = {event.get(), event.get(), event.get()};
    socket_.send(message, std::span(block < 0 ? fds : &block, 1));
    send(AgentMessage::kDoorbells, 0, "", 0, fds);
    send(AgentMessage::kDoorbells, 0, "", 0, std::span(fds, 1));
  }

 private:
  static bool wait_readable(int fd) {
    pollfd polled{fd, POLLIN, 0};
    return poll(&polled, 1, 60'000) == 1;
  }

  const AgentAddress address_{make_agent_name(), 1};
  UniqueFd listener_;
  AgentSocket socket_;
  std::jthread thread_;
};

// Of the epoch that ScriptedAgent starts.
UniqueFd block_memory(uint32_t version, size_t bytes = ControlBlock::bytes(2, 2)) {
  UniqueFd memory(memfd_create("block", MFD_CLOEXEC));
  ControlBlock block{};
  block.magic = ControlBlock::kMagic;
  block.version = version;
  block.epoch = 4;
  block.local_size = block.world_size = block.machine_ranks = 2;
  if (pwrite(memory.get(), static_cast<void*>(&block), sizeof block, 0) != sizeof block ||
      ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0)
    memory.reset();
  return memory;
}

// Waits for what never comes.
const RankProgram waiting("waiting", [] {
  const AgentAddress address = AgentAddress::parse(env::get("HVD_AGENT").value_or(""));
  AgentPeers peers(std::make_shared<AgentConnection>(address));
  Progress progress(peers, {});
  const std::atomic<bool> never{false};
  Awaited awaited;
  awaited.flag = &never;
  progress.hold();
  progress.wait_and_leave(awaited);
  return 0;
});

// Its exit status, and all that it says.
std::pair<int, std::string> run_waiting_rank(const AgentAddress& address) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command =
      "HVD_AGENT=" + address.text() + " exec '" + self + "' --rank-program waiting 2>&1";
  std::FILE* output = popen(command.c_str(), "re");
  REQUIRE(output != nullptr);
  std::string said;
  for (int c; (c = std::fgetc(output)) != EOF;) said += static_cast<char>(c);
  const int status = pclose(output);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, said};
}

}  // namespace

TEST_CASE("agent connection: nobody listens") {
  CHECK_THROWS_WITH(AgentConnection({make_agent_name(), 0}), Catch::Contains("no agent answers"));
}

TEST_CASE("agent connection: a refused claim is told in the agent's words") {
  ScriptedAgent agent([](ScriptedAgent& self) {
    self.expect(AgentMessage::kClaim);
    self.send(AgentMessage::kRefused, 0, "rank 1 is taken",
              static_cast<int64_t>(ErrorCode::kUnavailable));
  });
  CHECK_THROWS_WITH(AgentConnection(agent.address()), Catch::Equals("rank 1 is taken"));
}

TEST_CASE("agent connection: an agent that ends ends every wait") {
  SECTION("while the rank is claimed") {
    ScriptedAgent agent([](ScriptedAgent& self) { self.expect(AgentMessage::kClaim); });
    CHECK_THROWS_WITH(AgentConnection(agent.address()), Catch::Contains("has ended"));
  }
  SECTION("while init() waits") {
    ScriptedAgent agent([](ScriptedAgent& self) {
      self.welcome();
      self.expect(AgentMessage::kWantEpoch);
    });
    AgentConnection connection(agent.address());
    CHECK_THROWS_WITH(connection.join(), Catch::Contains("has ended"));
  }
  SECTION("while the Store is asked") {
    ScriptedAgent agent([](ScriptedAgent& self) {
      self.welcome();
      self.expect(AgentMessage::kStoreGet);
    });
    AgentConnection connection(agent.address());
    CHECK(connection.lost().empty());
    AgentMessage question;
    question.kind = AgentMessage::kStoreGet;
    CHECK_THROWS_WITH(connection.ask(std::move(question)), Catch::Contains("has ended"));
    CHECK_THAT(connection.lost(), Catch::Contains("has ended"));
  }
}

TEST_CASE("agent connection: a program that closes libhvd's socket is told so, not of the agent") {
  ScriptedAgent agent([](ScriptedAgent& self) {
    self.welcome();
    self.expect(AgentMessage::kWantEpoch);  // until the worker is gone
  });
  AgentConnection connection(agent.address());
  CHECK(connection.lost().empty());
  const UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const UniqueFd kept(fcntl(connection.fd(), F_DUPFD_CLOEXEC, 0));
  const int fd = connection.fd();
  SECTION("and it is open no more") { close(fd); }
  SECTION("and it is another's by now") { REQUIRE(dup2(null.get(), fd) == fd); }
  CHECK_THAT(connection.lost(), Catch::Contains("the program has closed descriptors of libhvd's"));
  CHECK_THROWS_WITH(connection.join(), Catch::Contains("the program has closed"));
  REQUIRE(dup2(null.get(), fd) == fd);  // for the connection to close
}

TEST_CASE("agent connection: init() is refused, and may be tried again") {
  ScriptedAgent agent([](ScriptedAgent& self) {
    self.welcome();
    self.expect(AgentMessage::kWantEpoch);
    self.send(AgentMessage::kRefused, 0, "rank 0 has not called hvd::init()",
              static_cast<int64_t>(ErrorCode::kTimeout));
    self.start_epoch();
    self.expect(AgentMessage::kClaim);  // never comes: until the worker is gone
  });
  AgentConnection connection(agent.address());
  try {
    connection.join();
    FAIL("it has to throw");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kTimeout);
    CHECK(std::string(error.what()) == "rank 0 has not called hvd::init()");
  }
  const AgentConnection::Epoch epoch = connection.join();
  CHECK(epoch.world.epoch == 4);
  CHECK(epoch.world.local_rank == 1);
  CHECK(epoch.doorbells.size() == 2 * kSleepers);
}

TEST_CASE("agent connection: an hvdrun of another version is named as such") {
  ScriptedAgent agent([](ScriptedAgent& self) {
    self.welcome();
    self.start_epoch(block_memory(ControlBlock::kVersion + 1).get());
    self.expect(AgentMessage::kClaim);
  });
  CHECK_THROWS_WITH(AgentPeers(std::make_shared<AgentConnection>(agent.address())),
                    Catch::Contains("hvdrun and the libhvd of this program are of different "
                                    "versions (control block " +
                                    std::to_string(ControlBlock::kVersion + 1) + " and "));
}

TEST_CASE("agent connection: a control block that is too small is none, whatever its version") {
  const auto [bytes, version, said] = GENERATE(table<size_t, uint32_t, std::string>({
      {0, ControlBlock::kVersion, "too small"},
      {sizeof(ControlBlock) - 1, ControlBlock::kVersion + 1, "too small"},
      {sizeof(ControlBlock), ControlBlock::kVersion + 1, "different versions"},
      {ControlBlock::bytes(2, 2) - 1, ControlBlock::kVersion, "too small"},
  }));
  CAPTURE(bytes);
  ScriptedAgent agent([its_bytes = bytes, its_version = version](ScriptedAgent& self) {
    self.welcome();
    self.start_epoch(block_memory(its_version, its_bytes).get());
    self.expect(AgentMessage::kClaim);
  });
  CHECK_THROWS_WITH(AgentPeers(std::make_shared<AgentConnection>(agent.address())),
                    Catch::Contains(said));
}

TEST_CASE("agent connection: a segment is there when all its parts are, and once") {
  ScriptedAgent agent([](ScriptedAgent& self) {
    self.welcome();
    self.start_epoch();
    const UniqueFd memory(memfd_create("piece", MFD_CLOEXEC));
    const int fd = memory.get();
    self.expect(AgentMessage::kRequestSegment);
    self.send(AgentMessage::kSegment, 0, "", 4096, std::span(&fd, 1));
    self.expect(AgentMessage::kRequestSegment);
    self.send(AgentMessage::kSegment, 0, "", 4096, std::span(&fd, 1));
    self.send(AgentMessage::kSegmentRefused, 1, "segment 1 is too large");
    self.expect(AgentMessage::kClaim);
  });
  AgentConnection connection(agent.address());
  const AgentConnection::Epoch epoch = connection.join();
  int arrivals = 0;
  connection.on_segment(&epoch, [&] { ++arrivals; });
  AgentMessage request;
  request.kind = AgentMessage::kRequestSegment;
  connection.post(request);
  const auto wait = [&] {
    pollfd polled{connection.fd(), POLLIN, 0};
    REQUIRE(poll(&polled, 1, 30'000) == 1);
  };
  wait();
  CHECK_FALSE(connection.take_segment(0));
  CHECK(arrivals == 0);
  connection.post(request);
  std::optional<std::vector<UniqueFd>> pieces;
  while (!(pieces = connection.take_segment(0))) wait();
  CHECK(pieces->size() == 2);
  CHECK(arrivals >= 1);
  CHECK_FALSE(connection.take_segment(0));  // given out once
  const auto refused = [&] {
    for (;;) {
      if (connection.take_segment(1)) return;
      wait();
    }
  };
  CHECK_THROWS_WITH(refused(), Catch::Equals("segment 1 is too large"));
}

TEST_CASE("agent connection: without room for descriptors what needs them is refused, no more") {
  if (kSanitized) {
    WARN("left to the plain build: a sanitizer's run time needs descriptors of its own");
    return;
  }
  ScriptedAgent agent([](ScriptedAgent& self) {
    const UniqueFd memory(memfd_create("piece", MFD_CLOEXEC));
    const int pieces[] = {memory.get(), memory.get()};
    self.welcome();
    self.start_epoch();
    for (uint32_t id : {0u, 1u, 2u}) {
      self.expect(AgentMessage::kRequestSegment);
      self.send(AgentMessage::kSegment, id, "", 4096, pieces);
    }
    self.expect(AgentMessage::kRequestLinks);
    self.send(AgentMessage::kLink, 7, "", 0, std::span(pieces, 1));
    self.expect(AgentMessage::kClaim);
  });
  AgentConnection connection(agent.address());
  connection.join();
  AgentMessage request;
  request.kind = AgentMessage::kRequestSegment;
  const auto wait = [&](const auto& taken) {
    for (;;) {
      if (auto there = taken()) return std::move(*there);
      pollfd polled{connection.fd(), POLLIN, 0};
      REQUIRE(poll(&polled, 1, 30'000) == 1);
    }
  };
  connection.post(request);  // when it is answered the agent closes no descriptor any more
  CHECK(wait([&] { return connection.take_segment(0); }).size() == 2);
  {
    const FewDescriptors few(1);
    connection.post(request);
    CHECK_THROWS_WITH(wait([&] { return connection.take_segment(1); }),
                      Catch::Contains("no room") && Catch::Contains("ulimit -n"));
  }
  connection.post(request);
  CHECK(wait([&] { return connection.take_segment(2); }).size() == 2);
  const FewDescriptors none(0);
  CHECK_THROWS_WITH(connection.ask({}), Catch::Contains("ulimit -n"));
  connection.expect_links(7, std::vector{0});
  request.kind = AgentMessage::kRequestLinks;
  connection.post(request);
  CHECK_THROWS_WITH(wait([&] { return connection.take_links(7); }),
                    Catch::Contains("no room") && Catch::Contains("ulimit -n"));
  CHECK(connection.lost().empty());
}

TEST_CASE("agent connection: threads that ask at once get their own answers") {
  constexpr int kThreads = 4, kQuestions = 200;
  ScriptedAgent agent([](ScriptedAgent& self) {
    self.welcome();
    // Whatever is there, backwards, so that answers reach threads that were not reading.
    for (int answered = 0; answered < kThreads * kQuestions;) {
      std::vector<AgentMessage> questions;
      std::optional<AgentMessage> next = self.expect(AgentMessage::kStoreAdd);
      for (; next; next = self.receive()) questions.push_back(std::move(*next));
      if (questions.empty()) return;
      answered += static_cast<int>(questions.size());
      for (; !questions.empty(); questions.pop_back())
        self.send(AgentMessage::kStoreAnswer, questions.back().id, "", questions.back().value);
    }
    self.expect(AgentMessage::kClaim);
  });
  AgentConnection connection(agent.address());
  std::atomic<int> right{0};
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        for (int i = 0; i < kQuestions; ++i) {
          AgentMessage question;
          question.kind = AgentMessage::kStoreAdd;
          question.value = thread * kQuestions + i;
          right += connection.ask(std::move(question)).value == thread * kQuestions + i;
        }
      });
    }
  }
  CHECK(right == kThreads * kQuestions);
}

TEST_CASE("agent connection: an epoch that another thread takes in is its asker's all the same") {
  constexpr int kEpochs = 200;
  ScriptedAgent agent([](ScriptedAgent& self) {
    self.welcome();
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      self.start_epoch();
      self.expect(AgentMessage::kWantEpoch);
      self.send(AgentMessage::kRefused, 0, "not now", int(ErrorCode::kTimeout));
    }
    self.expect(AgentMessage::kClaim);
  });
  AgentConnection connection(agent.address());
  const std::jthread other([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) connection.lost();
  });
  int started = 0, refused = 0;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    started += connection.join().doorbells.size() == 2 * kSleepers;
    try {
      connection.join();
    } catch (const Error&) {
      ++refused;
    }
  }
  CHECK(started == kEpochs);
  CHECK(refused == kEpochs);
}

TEST_CASE("agent connection: a broken message ends the waits of threads that did not read it") {
  constexpr int kRounds = 100;
  for (int round = 0; round < kRounds; ++round) {
    CAPTURE(round);
    ScriptedAgent agent([](ScriptedAgent& self) {
      self.welcome();
      self.expect(AgentMessage::kStoreAdd);
      self.send(AgentMessage::kClaim);
      self.expect(
          AgentMessage::kClaim);  // none comes: the socket stays open until the worker's end
    });
    AgentConnection connection(agent.address());
    std::atomic<bool> refused{false};
    {
      std::jthread asking([&] {
        AgentMessage question;
        question.kind = AgentMessage::kStoreAdd;
        try {
          connection.ask(std::move(question));
        } catch (const Error& error) {
          refused = std::string_view(error.what()).find("only workers send") != std::string::npos;
        }
      });
      until("the connection is lost", [&] { return !connection.lost().empty(); });
    }
    CHECK(refused);
  }
}

TEST_CASE("agent connection: a rank that nobody would tell of deaths ends, and says why") {
  const bool ends = GENERATE(true, false);
  ScriptedAgent agent([ends](ScriptedAgent& self) {
    self.welcome();
    self.start_epoch(block_memory(ControlBlock::kVersion).get());
    if (ends) return;
    self.send(AgentMessage::kClaim);
    self.expect(AgentMessage::kClaim);  // none comes: the socket stays open until the rank's end
  });
  const auto [status, said] = run_waiting_rank(agent.address());
  CHECK(status == 125);
  CHECK(said == std::string("hvd: rank 1 ends, for nobody would tell it of deaths any more: ") +
                    (ends ? "the agent of this host has ended; the job is over\n"
                          : "the agent sent what only workers send\n"));
}
