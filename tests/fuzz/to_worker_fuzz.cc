// Fuzz target: what an agent sends to a worker. Whatever comes, each call of the connection returns
// what was asked for, or throws; when the agent has ended, none waits.
//
// The first byte says whether the packets are all that the agent sends, or come behind a claim that
// it granted and an epoch that it started. A packet's own bits: how many descriptors come with it,
// and whether they are of memory as large as a status page or of none.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "rendezvous/agent_socket.h"
#include "runtime/agent_connection.h"
#include "runtime/base/control_block.h"
#include "runtime/base/error.h"
#include "runtime/base/status_page.h"
#include "tests/fuzz/packets.h"

namespace {

using namespace hvd;

constexpr uint8_t kDescriptors = 3, kNoMemory = 4;
constexpr uint32_t kEpoch = 1, kSegment = 1, kLinks = 7;
constexpr size_t kLocalSize = 2;
const World kWorld{kEpoch, 0, 3, 0, int(kLocalSize), 0, 2, "here"};

UniqueFd memory_of(size_t bytes) {
  UniqueFd memory(memfd_create("fuzz", MFD_CLOEXEC));
  HVD_CHECK(memory && ftruncate(memory.get(), off_t(bytes)) == 0, "memory to pass");
  return memory;
}

class FuzzedAgent {
 public:
  FuzzedAgent() : listener_(listen_at(address_.name)) {}

  const AgentAddress& address() const { return address_; }

  void accept_one() {
    pollfd polled{listener_.get(), POLLIN, 0};
    poll(&polled, 1, -1);  // the worker connects, or the fuzzer's own limit of time ends us
    socket_ = AgentSocket(
        UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)));
  }

  void send_all(std::string_view input) {
    PacketReader packets(input);
    for (Packet packet; packets.next(packet);) {
      const int fd = packet.control & kNoMemory ? none_.get() : page_.get();
      const std::array<int, kDescriptors> fds{fd, fd, fd};
      send_packet(socket_, packet, std::span(fds).first(packet.control & kDescriptors));
    }
  }

  void begin_honestly() {
    AgentMessage message;
    message.kind = AgentMessage::kClaimed;
    const int page = page_.get();
    socket_.send(message, std::span(&page, 1));
    message.kind = AgentMessage::kWorld;
    message.epoch = kEpoch;
    message.key = kWorld.host;
    message.body = encode(kWorld);
    socket_.send(message, std::span(&page, 1));
    message.kind = AgentMessage::kDoorbells;
    const std::vector<int> doorbells(kLocalSize * kSleepers, bell_.get());
    socket_.send(message, doorbells);
  }

  void end() { shutdown(socket_.fd(), SHUT_WR); }

 private:
  const AgentAddress address_{make_agent_name(), 0};
  const UniqueFd listener_;
  const UniqueFd page_ = memory_of(sizeof(StatusPage)), none_ = memory_of(0);
  const UniqueFd bell_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  AgentSocket socket_;
};

// Throws are answers, too.
void attempt(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error&) {
  }
}

void join(AgentConnection& connection) {
  const AgentConnection::Epoch epoch = connection.join();
  HVD_CHECK(epoch.world.rank < epoch.world.size && epoch.block, "an epoch without a place in it");
  HVD_CHECK(epoch.doorbells.size() == size_t(epoch.world.local_size) * kSleepers,
            "an epoch without its doorbells");
}

// Nobody waits here for ever: the agent has said all.
void ask_for_everything(AgentConnection& connection) {
  attempt([&] {
    AgentMessage question;
    question.kind = AgentMessage::kStoreGet;
    question.epoch = kEpoch;
    question.key = "key";
    const AgentMessage answer = connection.ask(std::move(question));
    HVD_CHECK(answer.kind == AgentMessage::kStoreAnswer && answer.id == 1, "no answer to that");
  });
  attempt([&] {
    if (const auto pieces = connection.take_segment(kSegment))
      HVD_CHECK(pieces->size() == kLocalSize, "not a piece for each rank");
  });
  attempt([&] {
    const size_t missing = connection.missing_links(kLinks).size();
    const auto links = connection.take_links(kLinks);
    if (!links) return;
    HVD_CHECK(links->size() == 2 && missing == 0, "not a link for each rank");
    for (const UniqueFd& link : *links) HVD_CHECK(link, "a link without a socket");
  });
  attempt([&] { join(connection); });
  HVD_CHECK(!connection.lost().empty(), "an agent that has ended is not lost");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  if (count == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(bytes) + 1, count - 1);
  const bool honest = bytes[0] % 2 == 1;
  FuzzedAgent agent;
  std::jthread accepts([&] {
    agent.accept_one();
    if (honest) return agent.begin_honestly();
    agent.send_all(rest);
    agent.end();
  });
  attempt([&] {
    AgentConnection connection(agent.address());
    connection.on_segment(&agent, [] {});
    if (honest) {
      join(connection);
      accepts.join();
      connection.expect_links(kLinks, std::array{1, 2});
      agent.send_all(rest);
      agent.end();
    } else {
      attempt([&] { join(connection); });
    }
    ask_for_everything(connection);
  });
  return 0;
}
