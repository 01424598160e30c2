#include "tests/support/hosts_job.h"

#include <algorithm>

#include "cli/messages.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

constexpr auto kLinkPatience = 30'000ms;

proto::ListenForLinks listen_order() {
  proto::ListenForLinks order;
  order.set_secret("the test's");
  order.add_addresses("127.0.0.1");
  order.set_patience_ms(kLinkPatience.count());
  return order;
}

}  // namespace

HostsJob::HostsJob(const HostsJobOptions& options)
    : relay_([this](int host, const proto::ToAgent& order) { deliver(host, order); }) {
  for (const int ranks : options.hosts) add_host(options, ranks);
}

void HostsJob::add_host(const HostsJobOptions& options, int ranks) {
  const int number = static_cast<int>(hosts_.size());
  Host& host = hosts_.emplace_back();
  host.first_rank = this->ranks();
  host.ranks = ranks;
  host.others = std::make_unique<OtherHosts>(
      loop_, int(number), listen_order(), /*kept_port=*/uint16_t{0},
      OtherHosts::Callbacks{
          [this, number](const proto::FromAgent& message) { said_.emplace_back(number, message); },
          [](const std::string&) {}});
  HostJobOptions own;
  own.ranks = ranks;
  own.program = options.program;
  own.environment = options.environment;
  own.loop = &loop_;
  for (int slot = 0; slot < ranks; ++slot) {
    const int rank = host.first_rank + slot;
    host_of_.push_back(hosts_.size() - 1);
    own.memory.ranks.push_back(rank);
    if (const auto its = options.rank_environment.find(rank); its != options.rank_environment.end())
      own.rank_environment[slot] = its->second;
  }
  own.epoch_wanted = [&host](const std::vector<int>& slots, bool all) {
    if (all) host.asked = slots;
  };
  own.add_events = [&host, ids = own.memory.ranks](HostMemoryEvents& events) {
    host.others->add_to(events, ids);
  };
  host.job = std::make_unique<HostJob>(std::move(own));
  host.others->use(host.job->memory());
}

bool HostsJob::run(std::chrono::milliseconds limit) {
  return run_until(
      [this] {
        for (int k = 0; k < ranks(); ++k)
          if (!rank(k).status) return false;
        return true;
      },
      limit);
}

bool HostsJob::run_until(const std::function<bool()>& done, std::chrono::milliseconds limit) {
  const Deadline deadline = Deadline::in(limit);
  while (!done()) {
    if (deadline.passed()) return false;
    turn(deadline.when());
  }
  return true;
}

void HostsJob::turn(TimePoint at_latest) {
  // A condition that only ranks change (a board) is looked at now and then.
  TimePoint next = std::min(at_latest, Clock::now() + 5ms);
  for (const Host& host : hosts_) {
    next = std::min(next, host.job->memory().deadline().value_or(next));
    next = std::min(next, host.others->next_deadline().value_or(next));
  }
  next = std::min(next, relay_.deadline().value_or(next));
  loop_.turn(next);
  const TimePoint now = Clock::now();
  for (const Host& host : hosts_) {
    host.job->memory().tick(now);
    host.others->tick(now);
  }
  hear();
  relay_.tick(now);
  relay_.flush();
  if (!started_) start_epoch();
}

// What agents said, and what hvdrun hears of them besides: which ranks have ended.
void HostsJob::hear() {
  const TimePoint now = Clock::now();
  for (; !said_.empty(); said_.pop_front()) {
    const auto& [host, message] = said_.front();
    if (message.has_listening()) relay_.note(host, message.listening());
    if (message.has_died()) relay_.note(host, message.died());
    if (message.has_broken()) relay_.note(host, message.broken());
    if (message.has_store_question()) relay_.note(host, message.store_question(), now);
  }
  for (int k = 0; k < ranks(); ++k)
    if (rank(k).status && ended_.insert(k).second) relay_.note_end(k);
}

// Once all who live wait for it: ranks are numbered as they were started, without those who ended.
void HostsJob::start_epoch() {
  action::StartEpoch start{1, {}};
  for (size_t number = 0; number < hosts_.size(); ++number) {
    const Host& host = hosts_[number];
    for (int slot = 0; slot < host.ranks && host.asked.empty(); ++slot)
      if (!host.job->rank(slot).status) return;
    World world;
    world.epoch = start.epoch;
    world.local_size = static_cast<int>(host.asked.size());
    world.host = "host" + std::to_string(number);
    for (const int slot : host.asked) {
      world.rank = static_cast<int>(start.members.size());
      start.members.push_back({host.first_rank + slot, world, static_cast<int>(number)});
      ++world.local_rank;
    }
  }
  if (start.members.empty()) return;
  for (action::Member& member : start.members)
    member.world.size = static_cast<int>(start.members.size());
  started_ = true;
  relay_.start(start);
}

void HostsJob::deliver(int number, const proto::ToAgent& order) {
  Host& host = hosts_[static_cast<size_t>(number)];
  if (order.has_start_epoch()) {
    const proto::StartEpoch& start = order.start_epoch();
    std::vector<EpochMember> members;
    for (int i = 0; i < start.ranks_size(); ++i)
      members.push_back({start.ranks(i) - host.first_rank, from_proto(start.worlds(i))});
    host.others->start_epoch(start);
    host.job->memory().start_epoch(members, started_as(start));
  }
  if (order.has_died()) host.others->on(order.died());
  if (order.has_broken()) host.others->on(order.broken());
  if (order.has_store_answer()) host.others->on(order.store_answer());
}

std::string HostsJob::describe() {
  std::string text;
  for (const Host& host : hosts_)
    text += "\nranks from " + std::to_string(host.first_rank) + ": " + host.job->describe();
  return text;
}

}  // namespace hvd
