// Membership under random events.
#include <algorithm>
#include <csignal>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "rendezvous/membership.h"
#include "tests/rendezvous/membership_jobs.h"
#include "tests/support/catch.h"

namespace hvd {
namespace {

// Plays random events against a Membership and holds it to its invariants.
class Random {
 public:
  explicit Random(unsigned seed)
      : random_(seed),
        hosts_(1 + int(random_() % 3)),
        each_(1 + int(random_() % 3)),
        size_(hosts_ * each_),
        first_hosts_(hosts_),
        size_min_(random_() % 2 ? 0 : 1 + int(random_() % unsigned(size_))),
        membership_(job(hosts_, each_, size_min_)),
        state_(size_t(size_), kPlanned),
        lost_ranks_(size_t(size_)),
        joined_(size_t(hosts_)),
        lost_hosts_(size_t(hosts_)) {}

  void play() {
    take(membership_.begin(now_));
    for (int i = 0; i < 200; ++i) {
      now_ += std::chrono::milliseconds(random_() % 3000);
      take(membership_.apply(next_event(), now_));
      check_deadline();
    }
  }

 private:
  enum State { kPlanned, kOrdered, kRunning, kWaiting, kInEpoch, kEnded };

  int some_rank() { return int(random_() % unsigned(size_)); }

  Event lose(int host) {
    lost_hosts_[size_t(host)] = true;
    joined_[size_t(host)] = false;
    for (int rank = host * each_; rank < (host + 1) * each_; ++rank)
      if (std::exchange(state_[size_t(rank)], kEnded) != kEnded) lost_ranks_[size_t(rank)] = true;
    return event::AgentLost{host, "host" + std::to_string(host) + " is gone"};
  }

  Event join(int host) {
    joined_[size_t(host)] = true;
    if (std::exchange(lost_hosts_[size_t(host)], false))
      for (int rank = host * each_; rank < (host + 1) * each_; ++rank)
        if (std::exchange(lost_ranks_[size_t(rank)], false)) {
          state_[size_t(rank)] = kPlanned;
          anew_.insert(rank);
        }
    return event::AgentJoined{host};
  }

  Event add() {
    std::vector<Host> hosts;
    for (int i = 0; i <= hosts_; ++i) hosts.push_back({"host" + std::to_string(i), "", each_});
    std::vector<Slot> slots = assign_slots(hosts, size_ + each_);
    slots.erase(slots.begin(), slots.begin() + size_);
    ++hosts_;
    size_ += each_;
    state_.resize(size_t(size_), kPlanned);
    lost_ranks_.resize(size_t(size_));
    joined_.push_back(false);
    lost_hosts_.push_back(false);
    return event::HostAdded{hosts.back(), std::move(slots)};
  }

  Event next_event() {
    const int rank = some_rank(), host = rank / each_;
    State& state = state_[size_t(rank)];
    switch (random_() % 13) {
      case 0:
        if (lost_hosts_[size_t(host)] && (size_min_ == 0 || membership_.ending())) break;
        return join(host);
      case 1:
      case 2:
      case 3:
        if (state == kOrdered) {
          state = kRunning;
          return event::WorkersStarted{{rank}};
        }
        break;
      case 4:
      case 5:
      case 6:
      case 7:
        if (state == kRunning || state == kInEpoch) {
          state = kWaiting;
          return event::EpochWanted{{rank}};
        }
        break;
      case 8:
        if (state == kRunning) return event::RankClaimed{rank};
        break;
      case 9:
        if (state >= kOrdered && state < kEnded && random_() % 4 == 0) {
          const bool failed = state == kOrdered || random_() % 2 == 0;
          lost_ranks_[size_t(rank)] = failed;
          state = kEnded;
          return event::RankEnded{rank, failed, "rank " + std::to_string(rank) + " ended"};
        }
        break;
      case 10:
        if (random_() % 40 == 0)
          return event::EndAsked{EndCause::kInterrupted, SIGINT, "interrupted"};
        break;
      case 11:
        if (random_() % 20 == 0) return lose(host);
        break;
      case 12:
        if (size_min_ > 0 && hosts_ < 6 && random_() % 10 == 0) return add();
        break;
    }
    return event::TimePassed{};
  }

  void take(const std::vector<Action>& actions) {
    std::map<int, World> members;
    for (const Action& action : actions) {
      if (const auto* start = std::get_if<action::StartWorkers>(&action)) on(*start);
      if (const auto* refuse = std::get_if<action::RefuseEpoch>(&action)) on(*refuse);
      if (const auto* end = std::get_if<action::EndJob>(&action)) on(*end);
      const auto* start = std::get_if<action::StartEpoch>(&action);
      if (start == nullptr) continue;
      REQUIRE(start->epoch == membership_.epoch());
      for (const action::Member& member : start->members) {
        REQUIRE_FALSE(lost_hosts_[size_t(member.host)]);
        REQUIRE(member.rank / each_ == member.host);
        REQUIRE(members.emplace(member.rank, member.world).second);
      }
    }
    if (!members.empty()) on_epoch(members);
    REQUIRE((membership_.ending() || !too_few()));  // a job never goes on with too few
    // Workers are started as soon as all agents that can still join have; later with their agent.
    bool all = true;
    for (size_t host = 0; host < size_t(first_hosts_); ++host)
      all &= joined_[host] || lost_hosts_[host];
    if (all && !membership_.ending()) REQUIRE(started_);
    for (int rank = 0; rank < size_ && started_ && !membership_.ending(); ++rank)
      REQUIRE((state_[size_t(rank)] != kPlanned || !joined_[size_t(rank / each_)]));
    // Nor is anybody waited for who cannot come.
    if (all && std::count(state_.begin(), state_.end(), kEnded) == size_)
      REQUIRE_FALSE(membership_.next_deadline());
    // Whoever waits is either waited for, or was answered: nobody is forgotten.
    if (std::count(state_.begin(), state_.end(), kWaiting) > 0)
      REQUIRE(membership_.next_deadline());
  }

  bool too_few() const {
    int left = 0;  // who has only been added may never come
    for (int rank = 0; rank < size_; ++rank)
      left += !lost_ranks_[size_t(rank)] &&
              (rank / each_ < first_hosts_ || joined_[size_t(rank / each_)]);
    return left < (size_min_ > 0 ? size_min_ : size_);
  }

  void on(const action::EndJob& end) {
    REQUIRE_FALSE(end.reason.empty());
    if (end.cause == EndCause::kRankFailed) REQUIRE(too_few());
    if (end.cause == EndCause::kAgentLost) REQUIRE((too_few() || size_min_ == 0));
  }

  void on(const action::StartWorkers& start) {
    REQUIRE_FALSE(membership_.ending());
    REQUIRE_FALSE(lost_hosts_[size_t(start.host)]);
    REQUIRE((start.host < first_hosts_ || joined_[size_t(start.host)]));
    started_ = true;
    for (const World& world : start.worlds) {
      REQUIRE(state_[size_t(world.rank)] == kPlanned);  // nobody is started twice
      state_[size_t(world.rank)] = kOrdered;
    }
  }

  void on(const action::RefuseEpoch& refuse) {
    REQUIRE_FALSE(refuse.reason.empty());
    REQUIRE_FALSE(lost_hosts_[size_t(refuse.host)]);
    for (int rank = refuse.host * each_; rank < (refuse.host + 1) * each_; ++rank)
      if (state_[size_t(rank)] == kWaiting) state_[size_t(rank)] = kRunning;
  }

  void on_epoch(const std::map<int, World>& members) {
    REQUIRE_FALSE(membership_.ending());
    REQUIRE(membership_.epoch() == ++epoch_);
    REQUIRE(int(members.size()) >= size_min_);
    std::vector<int> order(members.size(), -1);  // by the rank in the epoch
    std::set<std::pair<int, int>> places;
    for (const auto& [rank, world] : members) {
      REQUIRE(state_[size_t(rank)] == kWaiting);
      state_[size_t(rank)] = kInEpoch;
      REQUIRE(world.epoch == epoch_);
      REQUIRE(std::exchange(order.at(size_t(world.rank)), rank) == -1);
      REQUIRE(world.size == int(members.size()));
      REQUIRE(world.local_rank < world.local_size);
      REQUIRE(world.cross_rank < world.cross_size);
      REQUIRE(places.emplace(rank / each_, world.local_rank).second);
    }
    for (int rank = 0; rank < size_; ++rank)  // every rank that runs is in
      REQUIRE((state_[size_t(rank)] == kEnded || state_[size_t(rank)] == kPlanned ||
               members.contains(rank)));
    // Who was in the previous one first, in its order there, then the others in theirs.
    const auto place = [&](int rank) {
      const auto before = previous_.find(rank);
      return before != previous_.end() && !anew_.contains(rank) ? std::pair(0, before->second.rank)
                                                                : std::pair(1, rank);
    };
    REQUIRE(std::ranges::is_sorted(order, {}, place));
    anew_.clear();
    previous_ = members;
  }

  void check_deadline() {
    const auto deadline = membership_.next_deadline();
    if (!deadline || now_ < *deadline) return;
    take(membership_.apply(event::TimePassed{}, now_));
    const auto next = membership_.next_deadline();
    REQUIRE((!next || *next > now_));  // a deadline that passed is dealt with, or a loop would spin
  }

  std::mt19937 random_;
  int hosts_;
  const int each_;
  int size_;
  const int first_hosts_, size_min_;
  Membership membership_;
  std::vector<State> state_;
  std::vector<char> lost_ranks_, joined_, lost_hosts_;
  std::set<int> anew_;  // started again since the last epoch
  bool started_ = false;
  TimePoint now_ = kStart;
  uint32_t epoch_ = 0;
  std::map<int, World> previous_;
};

}  // namespace

TEST_CASE("membership: keeps its invariants under random events") {
  for (unsigned seed = 1; seed <= 3000; ++seed) {
    CAPTURE(seed);
    Random(seed).play();
  }
}

}  // namespace hvd
