// Fuzz target: what workers send to their agent. Whatever comes over one rank's socket, or that of
// who is none, it is answered, refused or dropped, and another rank is served as before.
//
// The first byte says whether the world has a rank on another host. A packet's own bits: kStranger,
// over a socket that no rank has; kAgain, over a new one of that kind; kDescriptor, with one.
#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "cli/agent/host_memory.h"
#include "cli/loop.h"
#include "rendezvous/agent_socket.h"
#include "runtime/base/error.h"
#include "tests/fuzz/packets.h"

namespace {

using namespace hvd;
using namespace std::chrono_literals;

constexpr uint8_t kStranger = 1, kAgain = 2, kDescriptor = 4;
constexpr uint32_t kEpoch = 1, kQuestion = 54'321;
constexpr int kElsewhere = 2;  // the rank on another host

// Place 0 is the one whose packets these are, 1 is honest, and 2 may still be claimed.
class Host {
 public:
  explicit Host(bool elsewhere) : memory_(loop_, options(), events(elsewhere)) {
    for (int slot = 0; slot < 3; ++slot) memory_.started(slot, getpid());
    std::vector<EpochMember> members;
    for (int slot = 0; slot < 2; ++slot) {
      ranks_[slot] = connect();
      tell(ranks_[slot], AgentMessage::kClaim, 0, uint32_t(slot));
      tell(ranks_[slot], AgentMessage::kWantEpoch, 0, 0);
      members.push_back({slot, {kEpoch, slot, elsewhere ? 3 : 2, slot, 2, 0, 1, "here"}});
    }
    settle();
    HVD_CHECK(wanted_ == 2, "two ranks wait for their epoch");
    if (elsewhere) memory_.know_hosts({0, 0, kElsewhere}, {{0, "here"}, {kElsewhere, "there"}});
    memory_.start_epoch(members);
    stranger_ = connect();
  }

  void take(const Packet& packet) {
    if (packet.control & kAgain) stranger_ = connect();
    AgentSocket& from = packet.control & kStranger ? stranger_ : ranks_[0];
    const int one = STDIN_FILENO;
    send_packet(from, packet, std::span(&one, packet.control & kDescriptor ? 1 : 0));
    settle();
  }

  void check_the_other() {
    tell(ranks_[1], AgentMessage::kStoreAdd, kEpoch, kQuestion);
    settle();
    HVD_CHECK(served_, "a rank is not served for what another one sent");
    HVD_CHECK(!ranks_[1].ended(), "a rank is cut off for what another one sent");
  }

 private:
  // Nobody is given up here: the ranks are this very process.
  static HostMemoryOptions options() {
    return {.slots = 3, .stopped_grace = 1h, .grace = 1h, .segment_bytes_max = 1 << 20};
  }

  HostMemoryEvents events(bool elsewhere) {
    HostMemoryEvents events;
    events.epoch_wanted = [this](const std::vector<int>& slots, bool) { wanted_ = slots.size(); };
    if (!elsewhere) return events;
    events.links_wanted = [this](const LinksWanted& wanted) {
      HVD_CHECK(wanted.slot == 0 && wanted.epoch == kEpoch, "links for who did not ask");
      HVD_CHECK(wanted.remote_ranks == std::vector<int>{kElsewhere}, "links to no rank elsewhere");
      if (wanted.id % 2 == 0) return memory_.refuse_links(wanted, "no");
      memory_.give_link(wanted, 0, UniqueFd(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)));
    };
    events.store_asked = [this](int slot, const AgentMessage& question) {
      HVD_CHECK(question.epoch == kEpoch && question.kind >= AgentMessage::kStoreSet &&
                    question.kind <= AgentMessage::kStoreAdd,
                "this is no question");
      HVD_CHECK(slot == 0 || question.id == kQuestion, "a question of who did not ask");
      AgentMessage answer;
      answer.kind = AgentMessage::kStoreAnswer;
      answer.epoch = question.epoch;
      answer.id = question.id;
      memory_.answer_store(slot, answer);
    };
    return events;
  }

  AgentSocket connect() {
    return AgentSocket(connect_to(AgentAddress::parse(memory_.address(0)).name));
  }

  static void tell(AgentSocket& from, AgentMessage::Kind kind, uint32_t epoch, uint32_t id) {
    AgentMessage message;
    message.kind = kind;
    message.epoch = epoch;
    message.id = id;
    message.key = "key";
    message.value = kind == AgentMessage::kWantEpoch ? 0 : 1;  // what stands in the status page
    from.send(message);
  }

  void settle() {
    do {
      loop_.turn(Clock::now());
      for (AgentSocket* one : {&ranks_[0], &ranks_[1], &stranger_})
        while (const auto answer = one->fd() < 0 ? std::nullopt : one->receive()) check(*answer);
    } while (loop_.pending());
  }

  // What cannot be read as an agent's message is an exception, and nobody takes it here.
  void check(const AgentMessage& answer) {
    HVD_CHECK(answer.kind > AgentMessage::kStoreAdd, "an agent says what only workers say");
    const bool of_all =
        answer.kind == AgentMessage::kClaimed || answer.kind == AgentMessage::kRefused;
    HVD_CHECK(of_all || answer.epoch == kEpoch, "an answer of another epoch");
    const bool of_store =
        answer.kind == AgentMessage::kStoreAnswer || answer.kind == AgentMessage::kStoreRefused;
    served_ = served_ || (of_store && answer.id == kQuestion);
  }

  Loop loop_;
  HostMemory memory_;
  AgentSocket ranks_[2], stranger_;
  size_t wanted_ = 0;
  bool served_ = false;
};

int lowest_free() { return UniqueFd(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)).get(); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  if (count == 0) return 0;
  const int before = lowest_free();
  {
    Host host(bytes[0] % 2 == 1);
    PacketReader packets({reinterpret_cast<const char*>(bytes) + 1, count - 1});
    for (Packet packet; packets.next(packet);) host.take(packet);
    host.check_the_other();
  }
  HVD_CHECK(lowest_free() == before, "a descriptor is left");
  return 0;
}
