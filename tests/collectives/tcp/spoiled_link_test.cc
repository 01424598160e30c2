// On one link between two ranks of many comes what is no message, or it ends: every operation
// completes, or fails with a reason that names the link, and no rank waits for long.
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <map>
#include <mutex>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "collectives/tcp/frame.h"
#include "runtime/base/deadline.h"
#include "tests/collectives/calls.h"
#include "tests/support/catch.h"
#include "tests/support/extent.h"
#include "tests/support/ranks.h"

using namespace hvd;

namespace {

struct Spoil {
  const char* text;
  void (*link)(int socket, int rank);  // its end in the hands of that rank
  int turns = 0;                       // of a long sum before, or all is at rest
};

void say(int socket, const void* bytes, size_t count) {
  if (send(socket, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT) != static_cast<ssize_t>(count))
    throw std::runtime_error("nothing can be said on a link");
}

FrameHeader header_from(int rank) {
  return {.epoch = 1, .sequence = 2, .from = static_cast<uint32_t>(rank), .part = kSwapPart};
}

constexpr Spoil kSpoils[] = {
    {"bytes that are no message",
     [](int socket, int) { say(socket, std::string(100, 'x').data(), 100); }},
    {"a message of epoch 7 where 1 was due",
     [](int socket, int rank) {
       FrameHeader header = header_from(rank);
       header.epoch = 7;
       say(socket, &header, sizeof header);
     }},
    {"a message of operation 2000000 where",
     [](int socket, int rank) {
       FrameHeader header = header_from(rank);
       header.sequence = 2'000'000;
       say(socket, &header, sizeof header);
     }},
    {"lost its link to rank", [](int socket, int) { shutdown(socket, SHUT_RDWR); }},
    {"lost its link to rank", [](int socket, int) { shutdown(socket, SHUT_RDWR); }, 20},
};

constexpr size_t kLongSum = 2;

// A machine may be busy with other things: what is late is played again, and not late each time.
constexpr std::chrono::seconds kEndLimit{kSanitized ? 20 : 1};
constexpr int kPlaysMax = 3;

// Calls of all kinds, until one fails; in a long sum that link is spoiled, if there is one. False
// if none does: the other end only sends.
bool breaks_off(Rank& rank, const Spoil& spoil, const int* spoiled) {
  const std::atomic<uint32_t>& trouble = rank.peers->block().trouble;
  for (const size_t k : {0, 2, 5, 4, 3, 1, 2, 0}) {
    const auto call = make_call(rank, kShapes[k]);
    rank.communicator->start(call->operation);
    if (k == kLongSum && spoiled != nullptr) {
      for (int i = 0; i < spoil.turns; ++i) rank.communicator->progress();
      spoil.link(*std::exchange(spoiled, nullptr), rank.rank);
    }
    rank.advance_until(
        [&] { return call->operation.outcome != Outcome::kPending || trouble != 0; });
    const bool broken = trouble != 0;
    if (broken) rank.leave_broken_epoch();
    if (call->operation.outcome == Outcome::kComplete) verify(rank, kShapes[k], *call);
    if (!broken) continue;
    const std::string reason = reason_of(rank);
    if (reason.find(spoil.text) == std::string::npos) throw std::runtime_error(reason);
    return true;
  }
  return false;
}

enum class Played { kNoSuchLink, kNoneFailed, kBrokenOff };

struct Play {
  Played what;
  Clock::duration longest{};  // of a rank, until it had the end of what it waited for
};

Play play(const std::vector<int>& hosts, const CommunicatorFactory& factory, int spoiler,
          size_t link, const Spoil& spoil) {
  std::mutex mutex;
  std::vector<int> sockets;
  RankThreads ranks(hosts, [](Rank&) { return nullptr; });
  ranks.world().on_links([&](uint32_t, int rank, std::span<const UniqueFd> taken) {
    const std::lock_guard lock(mutex);
    for (const UniqueFd& socket : taken)
      if (rank == spoiler) sockets.push_back(socket.get());
  });
  std::barrier met(ranks.size());
  std::atomic<int> broken_off = 0;
  std::vector<Clock::duration> took(static_cast<size_t>(ranks.size()));
  ranks.run([&](Rank& rank) {
    rank.communicator = factory(rank);
    rank.complete(make_call(rank, kShapes[1])->operation);
    rank.complete(make_call(rank, kShapes[2])->operation);
    met.arrive_and_wait();
    const int* spoiled = rank.rank == spoiler && link < sockets.size() ? &sockets[link] : nullptr;
    if (spoiled != nullptr && spoil.turns == 0)
      spoil.link(*std::exchange(spoiled, nullptr), spoiler);
    met.arrive_and_wait();
    if (link >= sockets.size()) return;
    const TimePoint began = Clock::now();
    broken_off += breaks_off(rank, spoil, spoiled) ? 1 : 0;
    took[static_cast<size_t>(rank.rank)] = Clock::now() - began;
  });
  if (link >= sockets.size()) return {Played::kNoSuchLink};
  const Clock::duration longest = std::ranges::max(took);
  if (broken_off == 0) return {Played::kNoneFailed, longest};
  CHECK(broken_off == ranks.size());
  return {Played::kBrokenOff, longest};
}

}  // namespace

TEST_CASE(
    "between hosts: one link of many that is spoiled ends no operation wrongly, and no wait") {
  std::vector<int> hosts =
      GENERATE(std::vector{1, 1, 1}, std::vector{1, 1, 1, 1}, std::vector(8, 1), std::vector{2, 2},
               std::vector{2, 1, 2}, std::vector{2, 2, 2, 2});
  const int size = std::accumulate(hosts.begin(), hosts.end(), 0);
  if (size > ranks_max()) return;
  const bool flat = static_cast<int>(hosts.size()) == size;
  const CommunicatorFactory factory = flat ? tcp_factory() : hierarchical_factory(hosts);
  int broken_off = 0;
  for (int spoiler = 0; spoiler < size; ++spoiler)
    for (const Spoil& spoil : kSpoils) {
      if (!thorough() && (spoiler + size) % 5 != &spoil - kSpoils) continue;
      for (size_t link = 0;; ++link) {
        INFO(size << " ranks on " << hosts.size() << " hosts, rank " << spoiler << ", its link "
                  << link << ": " << spoil.text);
        Play played{};
        for (int i = 0; i < kPlaysMax && (i == 0 || played.longest >= kEndLimit); ++i)
          REQUIRE_NOTHROW(played = play(hosts, factory, spoiler, link, spoil));
        CHECK(played.longest < kEndLimit);
        if (played.what == Played::kNoSuchLink) break;
        broken_off += played.what == Played::kBrokenOff ? 1 : 0;
      }
    }
  CHECK(broken_off >= size);
}
