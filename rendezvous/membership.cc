#include "rendezvous/membership.h"

#include <algorithm>
#include <climits>
#include <csignal>
#include <cstdio>
#include <map>
#include <utility>

#include "runtime/base/error.h"

namespace hvd {
namespace {

// What survivors get between a rank's failure and TERM, when they can notice it: to throw, catch
// and print.
constexpr std::chrono::milliseconds kLastWords{300};
constexpr size_t kNamesMax = 8;

std::string seconds(std::chrono::milliseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", double(time.count()) / 1e3);
  return text;
}

}  // namespace

Membership::Membership(std::vector<Host> hosts, std::vector<Slot> slots, MembershipOptions options,
                       TimePoint now)
    : options_(options), gpus_unseen_(options.gpus_unseen) {
  if (!options.hosts_come) agents_deadline_ = now + options.start_timeout;
  for (Host& host : hosts) hosts_.emplace_back().host = std::move(host);
  take(std::move(slots));
}

void Membership::take(std::vector<Slot> slots) {
  for (HostState& one : hosts_) one.has_workers = false;
  ranks_.clear();
  for (Slot& slot : slots) {
    HVD_CHECK(slot.world.rank == int(ranks_.size()), "slots come in the order of their ranks");
    hosts_.at(size_t(slot.host)).has_workers = true;
    ranks_.emplace_back(std::move(slot));
  }
}

std::vector<Action> Membership::seat(std::vector<Slot> slots, bool network_unproven,
                                     TimePoint now) {
  if (ending()) return {};
  take(std::move(slots));
  network_unproven_ = network_unproven;
  agents_deadline_ = now + options_.start_timeout;
  decide_start(now);
  return std::exchange(actions_, {});
}

std::vector<Action> Membership::begin(TimePoint now) {
  const auto has_workers = [](const HostState& h) { return h.has_workers; };
  const auto used = std::find_if(hosts_.begin(), hosts_.end(), has_workers);
  const auto more = std::count_if(hosts_.begin(), hosts_.end(), has_workers);
  if (more == 1 && !used->host.remote && !gpus_unseen_) start_workers(now);
  return std::exchange(actions_, {});
}

std::vector<Action> Membership::apply(const Event& event, TimePoint now) {
  std::visit([&](const auto& one) { on(one, now); }, event);
  return std::exchange(actions_, {});
}

std::optional<TimePoint> Membership::next_deadline() const {
  std::optional<TimePoint> soonest;
  for (const auto& one : {agents_deadline_, workers_deadline_, init_deadline_})
    if (one) soonest = soonest ? std::min(*soonest, *one) : *one;
  return soonest;
}

int Membership::living() const {
  return int(std::count_if(ranks_.begin(), ranks_.end(),
                           [](const Rank& r) { return r.state != State::kEnded; }));
}

void Membership::on(const event::HostAdded& event, TimePoint) {
  HVD_CHECK(options_.size_min > 0, "a job of fixed size takes no further host");
  hosts_.emplace_back().host = event.host;
  hosts_.back().has_workers = !event.slots.empty();
  hosts_.back().added = true;
  for (const Slot& slot : event.slots) {
    HVD_CHECK(slot.world.rank == int(ranks_.size()) && slot.host == int(hosts_.size()) - 1,
              "an added host's slots come behind those there are");
    ranks_.emplace_back(slot);
  }
}

void Membership::on(const event::AgentJoined& event, TimePoint now) {
  HostState& host = hosts_.at(size_t(event.host));
  host.joined = true;
  if (options_.size_min > 0 && std::exchange(host.lost, false))
    for (Rank& one : ranks_)
      if (one.slot.host == event.host && one.lost) one = Rank(std::move(one.slot));
  if (started_) start_workers(now);
  decide_start(now);
}

// A job of fixed size ends even if the ranks there had ended before: their last words may be lost.
void Membership::on(const event::AgentLost& event, TimePoint now) {
  HostState& host = hosts_.at(size_t(event.host));
  host.lost = true;
  host.joined = false;
  for (Rank& one : ranks_) {
    if (one.slot.host != event.host || one.state == State::kEnded) continue;
    one.state = State::kEnded;
    one.waits = false;
    one.lost = true;
  }
  if (options_.size_min == 0 || too_few())
    end_job(EndCause::kAgentLost, SIGTERM, last_words(), event.reason);
  decide_start(now);
  decide_epoch();
}

void Membership::on(const event::NetworkProven&, TimePoint now) {
  network_unproven_ = false;
  decide_start(now);
}

void Membership::on(const event::GpusSeen&, TimePoint now) {
  gpus_unseen_ = false;
  decide_start(now);
}

void Membership::on(const event::WorkersStarted& event, TimePoint now) {
  for (int rank : event.ranks) {
    Rank& one = ranks_.at(size_t(rank));
    if (one.state == State::kStarting) one.state = State::kRunning;
  }
  decide_start(now);
  decide_epoch();
}

void Membership::on(const event::RankClaimed& event, TimePoint) {
  ranks_.at(size_t(event.rank)).claimed = true;
}

void Membership::on(const event::EpochWanted& event, TimePoint now) {
  for (int rank : event.ranks) {
    Rank& one = ranks_.at(size_t(rank));
    if (one.state == State::kEnded) continue;
    one.claimed = one.waits = true;
    if (!init_deadline_) init_deadline_ = now + options_.start_timeout;
  }
  decide_epoch();
}

void Membership::on(const event::RankEnded& event, TimePoint now) {
  Rank& one = ranks_.at(size_t(event.rank));
  if (one.state == State::kEnded) return;
  one.state = State::kEnded;
  one.waits = false;
  one.lost = event.failed;
  if (event.failed && !ending() && too_few()) {
    end_job(EndCause::kRankFailed, SIGTERM, last_words(), event.how);
  }
  decide_start(now);
  decide_epoch();
}

void Membership::on(const event::EndAsked& event, TimePoint) {
  end_job(event.cause, event.first_signal, {}, event.reason);
}

void Membership::on(const event::TimePassed&, TimePoint now) {
  const std::string limit = seconds(options_.start_timeout) + " (--start-timeout)";
  if (agents_deadline_ && now >= *agents_deadline_) {
    agents_deadline_.reset();
    std::string missing;
    for (const HostState& one : hosts_)
      if (is_awaited(one)) missing += (missing.empty() ? "" : ", ") + one.host.name;
    end_job(EndCause::kStartTimeout, SIGTERM, {},
            (missing.empty() ? "the hosts had not found out how they reach each other"
                             : "no agent reported from " + missing) +
                " within " + limit);
  }
  if (workers_deadline_ && now >= *workers_deadline_) {
    workers_deadline_.reset();
    std::vector<int> missing;
    for (const Rank& one : ranks_)
      if (one.state == State::kStarting) missing.push_back(one.slot.world.rank);
    end_job(EndCause::kStartTimeout, SIGTERM, {},
            names(missing) + " could not be started within " + limit);
  }
  if (init_deadline_ && now >= *init_deadline_) {
    std::vector<int> missing;
    for (const Rank& one : ranks_)
      if (one.state != State::kEnded && one.state != State::kPlanned && !one.waits)
        missing.push_back(one.slot.world.rank);
    refuse_epoch(
        missing,
        names(missing) + " did not call hvd::init() within " + limit + " of the first rank's call",
        true);
  }
}

// None when nobody can notice: what libhvd knows nothing of is ended at once.
std::chrono::milliseconds Membership::last_words() const {
  const bool any = std::any_of(ranks_.begin(), ranks_.end(),
                               [](const Rank& r) { return r.claimed && r.state != State::kEnded; });
  return any ? kLastWords : std::chrono::milliseconds(0);
}

// Who has only been added may never come.
bool Membership::too_few() const {
  const auto left = std::count_if(ranks_.begin(), ranks_.end(), [this](const Rank& r) {
    const HostState& host = hosts_[size_t(r.slot.host)];
    return !r.lost && !(host.added && !host.joined);
  });
  return left < (options_.size_min > 0 ? options_.size_min : int(ranks_.size()));
}

bool Membership::is_awaited(const HostState& host) {
  return host.has_workers && !host.joined && !host.lost && !host.added;
}

// Agents and workers are waited for as long as they can still come: a lost host's cannot.
void Membership::decide_start(TimePoint now) {
  const bool all_joined = std::none_of(hosts_.begin(), hosts_.end(), is_awaited);
  if (all_joined && !network_unproven_ && !gpus_unseen_ && agents_deadline_) {
    agents_deadline_.reset();
    start_workers(now);
  }
  const bool all_started = std::none_of(ranks_.begin(), ranks_.end(),
                                        [](const Rank& r) { return r.state == State::kStarting; });
  if (all_started) workers_deadline_.reset();
}

// At first of all hosts: an agent here starts them as it begins. Later of those whose agents join.
void Membership::start_workers(TimePoint now) {
  if (ending()) return;
  for (size_t host = 0; host < hosts_.size(); ++host) {
    if ((started_ || hosts_[host].added) && !hosts_[host].joined) continue;
    action::StartWorkers start{int(host), {}};
    for (Rank& one : ranks_) {
      if (one.slot.host != int(host) || one.state != State::kPlanned) continue;
      one.state = State::kStarting;
      start.worlds.push_back(one.slot.world);
    }
    if (start.worlds.empty()) continue;
    workers_deadline_ = now + options_.start_timeout;
    actions_.emplace_back(std::move(start));
  }
  started_ = true;
}

// Every rank that runs has asked: the next epoch starts. One that can no longer ask ends the wait
// at once.
void Membership::decide_epoch() {
  std::vector<int> ended, waiting, living;
  for (const Rank& one : ranks_) {
    if (one.state != State::kEnded && one.state != State::kPlanned)
      living.push_back(one.slot.world.rank);
    else if (one.state == State::kEnded && (!one.lost || options_.size_min == 0))
      ended.push_back(one.slot.world.rank);
    if (one.waits) waiting.push_back(one.slot.world.rank);
  }
  if (waiting.empty()) {
    init_deadline_.reset();
    return;
  }
  if (ending()) {
    refuse_epoch(ended, "the job is ending: " + end_reason_);
  } else if (!ended.empty()) {
    const bool none_called =
        std::ranges::none_of(ended, [&](int rank) { return ranks_[size_t(rank)].claimed; });
    refuse_epoch(ended, names(ended) + (ended.size() == 1 ? " has" : " have") + " ended " +
                            (none_called ? "without a call of hvd::init()"
                                         : "and cannot take part in the next epoch"));
  } else if (waiting.size() == living.size()) {
    start_epoch();
  }
}

// Who was in the previous epoch keeps its place before the others: the state that all go on from is
// rank 0's.
void Membership::start_epoch() {
  std::vector<Rank*> members;
  for (Rank& one : ranks_)
    if (one.waits) members.push_back(&one);
  std::ranges::sort(members, {}, [this](const Rank* one) {
    const bool survived = epoch_ > 0 && one->world.epoch == epoch_;
    return std::pair(survived ? one->world.rank : INT_MAX, one->slot.world.rank);
  });
  std::map<int, int> local_size, cross_size;  // by host; by local rank
  ++epoch_;
  for (size_t i = 0; i < members.size(); ++i) {
    World& world = members[i]->world;
    world = members[i]->slot.world;
    world.epoch = epoch_;
    world.rank = int(i);
    world.size = int(members.size());
    world.local_rank = local_size[members[i]->slot.host]++;
    world.cross_rank = cross_size[world.local_rank]++;
  }
  action::StartEpoch start{epoch_, {}};
  for (Rank* one : members) {
    one->waits = false;
    one->world.local_size = local_size[one->slot.host];
    one->world.cross_size = cross_size[one->world.local_rank];
    start.members.push_back({one->slot.world.rank, one->world, one->slot.host});
  }
  actions_.emplace_back(std::move(start));
  init_deadline_.reset();
}

void Membership::refuse_epoch(const std::vector<int>& missing, const std::string& reason,
                              bool timed_out) {
  for (size_t host = 0; host < hosts_.size(); ++host) {
    bool waits = false;
    for (Rank& one : ranks_) waits |= one.slot.host == int(host) && std::exchange(one.waits, false);
    if (waits) actions_.emplace_back(action::RefuseEpoch{int(host), missing, reason, timed_out});
  }
  init_deadline_.reset();
}

void Membership::end_job(EndCause cause, int first_signal, std::chrono::milliseconds after,
                         std::string reason) {
  if (cause_ == EndCause::kNone) {
    cause_ = cause;
    end_reason_ = reason;
  }
  agents_deadline_.reset();
  workers_deadline_.reset();
  actions_.emplace_back(action::EndJob{cause, first_signal, after, std::move(reason)});
}

std::string Membership::names(const std::vector<int>& ranks) const {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size() && i < kNamesMax; ++i) {
    const Host& host = hosts_[size_t(ranks_[size_t(ranks[i])].slot.host)].host;
    text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
    if (hosts_.size() > 1) text += " (" + host.name + ")";
  }
  if (ranks.size() > kNamesMax)
    text += " and " + std::to_string(ranks.size() - kNamesMax) + " more";
  return text;
}

}  // namespace hvd
