// A rank without an engine, for the end-to-end tests of what agents do for ranks of several hosts:
// `bare_worker WHAT RANK SLOTS`, where each host has SLOTS ranks. All meet over links first.
//
// - greet: tells each rank of another host who it is over their link, and says whom it has heard
// - store: RANK sets what all others read, and all count
// - much: once there is /tmp/go_on, all set 60,000 bytes at once, and count
// - die: RANK kills itself; the others say why their epoch broke, and after how long
// - desert: RANK ends with exit code 0; likewise
// - blame: RANK sleeps, and a rank of another host breaks the epoch off, having waited for it in
// vain
// - ask: RANK sleeps, and the others ask the Store for what nobody sets
// - wait: all wait until their epoch breaks
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "hvd/error.h"
#include "runtime/base/job_clock.h"
#include "tests/cli/agent/bare_rank.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

void say(const std::string& words) {
  std::printf("%s\n", words.c_str());
  std::fflush(stdout);
}

int64_t now_ms() {
  return std::chrono::duration_cast<milliseconds>(Clock::now().time_since_epoch()).count();
}

class Rank {
 public:
  explicit Rank(int slots) : peers_(connect_to_agent()), slots_(slots) {
    for (int rank = 0; rank < world().size; ++rank)
      if (rank / slots_ != world().rank / slots_) elsewhere_.push_back(rank);
  }
  const World& world() const { return peers_.world(); }
  Peers& peers() { return peers_; }

  // Links to every rank of another host, each with its number sent to and fro.
  std::string meet(uint32_t id) {
    if (elsewhere_.empty()) return "";
    peers_.request_links(id, elsewhere_);
    wait_for(peers_, [&] {
      auto links = peers_.take_links(id);
      if (links) links_ = std::move(*links);
      return links.has_value();
    });
    tell_all(world().rank);
    std::string heard;
    for (size_t i = 0; i < links_.size(); ++i) heard += " " + std::to_string(hear(i));
    return heard;
  }
  void tell_all(int64_t number) {
    for (const UniqueFd& link : links_)
      if (send(link.get(), &number, sizeof number, MSG_NOSIGNAL) != sizeof number) std::abort();
  }
  int64_t hear(size_t link) {
    int64_t number = -1;
    pollfd readable{links_[link].get(), POLLIN, 0};
    if (poll(&readable, 1, 30'000) != 1 ||
        recv(links_[link].get(), &number, sizeof number, 0) != sizeof number)
      std::abort();
    return number;
  }
  int64_t hear_from(int rank) {
    for (size_t i = 0; i < elsewhere_.size(); ++i)
      if (elsewhere_[i] == rank) return hear(i);
    return -1;
  }

  void wait_for_trouble() {
    wait_for(peers_, [&] { return peers_.block().trouble != 0; });
  }
  std::string reason() {
    ControlBlock& block = peers_.block();
    const uint32_t word = block.reason;
    const int who = int(word >> 8);
    switch (TroubleReason(word & 0xff)) {
      case TroubleReason::kDeath:
        return "local rank " + std::to_string(who) + " died";
      case TroubleReason::kElsewhere:
        return std::string("elsewhere: ") + block.elsewhere;
      default:
        return block.rank(who).reason;
    }
  }
  // The way out of a broken epoch, as the engine takes it: the program is told then.
  int give_up() {
    ControlBlock& block = peers_.block();
    RankWords& mine = block.rank(world().local_rank);
    peers_.report_broken();
    mine.seen = block.trouble.load();
    mine.quiet = 1;
    wait_for(peers_, [&] {
      mine.seen = block.trouble.load();
      for (int k = 0; k < world().local_size; ++k)
        if (block.rank(k).dead == 0 && block.rank(k).quiet == 0) return false;
      return true;
    });
    peers_.status_page().told = 1;
    return 3;
  }

 private:
  AgentPeers peers_;
  const int slots_;
  std::vector<int> elsewhere_;
  std::vector<UniqueFd> links_;
};

int run(const std::string& what, int chosen, int slots) {
  Rank rank(slots);
  const bool here = rank.world().rank == chosen;
  const std::string heard = rank.meet(0);
  if (what == "greet") {
    say("heard" + heard + ", and" + rank.meet(7));
    leave(rank.peers());
    return 0;
  }
  if (what == "store") {
    Store& store = rank.peers().store();
    if (here) store.set("from", to_bytes(std::to_string(chosen)));
    const Bytes from = store.get("from", Deadline::in(seconds(30)));
    const std::string last = "last of " + std::to_string(rank.world().size);
    if (store.add("count", 1) == rank.world().size) store.set(last, {});
    store.wait(std::vector{last}, Deadline::in(seconds(30)));
    say(std::string(reinterpret_cast<const char*>(from.data()), from.size()));
    leave(rank.peers());
    return 0;
  }
  if (what == "much") {
    say("going");
    while (access("/tmp/go_on", F_OK) != 0) poll(nullptr, 0, 5);
    Store& store = rank.peers().store();
    store.set("of " + std::to_string(rank.world().rank), Bytes(60'000));
    if (store.add("count", 1) == rank.world().size) store.set("all", {});
    store.wait(std::vector<std::string>{"all"}, Deadline::in(seconds(60)));
    leave(rank.peers());
    return 0;
  }
  if (what == "die" && here) {
    rank.tell_all(now_ms());
    raise(SIGKILL);
  }
  // As libhvd, which keeps its connection to the process's very end: to close it and go on, as for
  // the leaks that a sanitizer looks for, is to have lost it.
  if (what == "desert" && here) _exit(0);
  if ((what == "blame" || what == "ask") && here) pause();
  if (what == "ask") rank.peers().store().get("port", Deadline::in(milliseconds(100)));
  if (what == "blame" && rank.world().rank == (chosen < slots ? slots : 0))
    raise_trouble(rank.peers(), TroubleReason::kTimeout,
                  "rank " + std::to_string(rank.world().rank) + " waited for rank " +
                      std::to_string(chosen) + " in vain",
                  std::vector{chosen});
  if (what == "wait") say("waiting");
  rank.wait_for_trouble();
  const int64_t seen_at = now_ms();
  std::string words = rank.reason();
  if (what == "die")
    if (const int64_t since = rank.hear_from(chosen); since > 0)
      words += "; after " + std::to_string(seen_at - since) + " ms";
  say(words);
  return rank.give_up();
}

}  // namespace
}  // namespace hvd

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    return hvd::run(argv[1], std::atoi(argv[2]), std::atoi(argv[3]));
  } catch (const hvd::Error& error) {
    std::fprintf(stderr, "bare_worker: %s\n", error.what());
    return 4;
  }
}
