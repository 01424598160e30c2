#include "cli/agent/host_memory.h"

#include <algorithm>

#include "cli/agent/host_memory_impl.h"
#include "cli/agent/process_state.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"

namespace hvd {
namespace {

std::string no_shared_memory(int rank, pid_t pid) {
  return "rank " + std::to_string(rank) + " (process " + std::to_string(pid) +
         ") runs on the host of its agent, but they share no memory: what the rank stores in it "
         "does not arrive; run the rank outside of what keeps its memory apart, such as a sandbox "
         "or a preloaded library";
}

}  // namespace

HostMemory::Impl::Impl(Loop& its_loop, HostMemoryOptions its_options, HostMemoryEvents its_events)
    : loop(its_loop),
      options(std::move(its_options)),
      events(std::move(its_events)),
      name(make_agent_name()),
      listener(listen_at(name)),
      slots(static_cast<size_t>(options.slots)),
      watch(loop, [this](int slot, pid_t pid, DeathWatch::Finding finding) {
        found(slot, pid, finding);
      }) {
  for (size_t i = 0; i < slots.size(); ++i)
    slots[i].rank = i < options.ranks.size() ? options.ranks[i] : static_cast<int>(i);
  loop.watch(listener.get(), EPOLLIN, [this](uint32_t) { accept_workers(); });
}

HostMemory::Impl::~Impl() {
  loop.unwatch(listener.get());
  for (const Connection& connection : connections) loop.unwatch(connection.socket.fd());
  for (const Slot& slot : slots)
    if (slot.pidfd) loop.unwatch(slot.pidfd.get());
}

void HostMemory::Impl::want_epoch(Slot& slot, const AgentMessage& message) {
  if (slot.dead) return;
  if (StatusPage& page = slot.status(); page.shown.load() != message.value) {
    page.phase = static_cast<uint32_t>(Phase::kInitFailed);  // which the rank cannot tell us
    throw Error(ErrorCode::kUnavailable, no_shared_memory(slot.rank, slot.pid));
  }
  slot.asked = true;
  tell_who_wants();
}

void HostMemory::Impl::tell_who_wants() {
  std::vector<int> asked;
  bool all = true;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].asked)
      asked.push_back(static_cast<int>(i));
    else if (slots[i].living())
      all = false;
  }
  if (!asked.empty() && events.epoch_wanted) events.epoch_wanted(asked, all);
}

void HostMemory::Impl::start_epoch(std::span<const EpochMember> wanted,
                                   std::span<const int> its_started_as) {
  check_epoch(wanted, its_started_as);
  const uint32_t number = wanted.front().world.epoch;
  for (Slot& slot : slots) slot.local_rank = -1;
  members.clear();
  ranks.clear();
  for (const EpochMember& one : wanted) {
    Slot& slot = slots[static_cast<size_t>(one.slot)];
    slot.local_rank = one.world.local_rank;
    slot.epoch = number;
    slot.links_asked.clear();
    members.push_back(one.slot);
    ranks.push_back(one.world.rank);
  }
  const int local_size = static_cast<int>(wanted.size());
  epoch = std::make_unique<EpochMemory>(number, local_size, wanted.front().world.size,
                                        options.segment_bytes_max);
  epoch->block().machine_ranks = static_cast<uint32_t>(std::max(local_size, options.machine_ranks));
  start_elsewhere(its_started_as);
  write_hosts();
  store = std::make_unique<StoreService>(number, ranks,
                                         [this](int local_rank, const AgentMessage& answer) {
                                           const Slot* slot = member(local_rank);
                                           if (slot != nullptr && slot->connection != nullptr)
                                             send(*slot->connection, answer);
                                         });
  tell_clock();
  questions.emplace(local_size, options.stopped_grace, options.grace);
  for (const EpochMember& one : wanted) greet(one);
  // Who died between its wish and the start is dead in this epoch from its beginning.
  for (const EpochMember& one : wanted) {
    const Slot& slot = slots[static_cast<size_t>(one.slot)];
    if (slot.dead || !slot.speaks()) freeze(slot);
  }
}

// What comes from the launcher is believed only as far as this host can follow it.
void HostMemory::Impl::check_epoch(std::span<const EpochMember> wanted,
                                   std::span<const int> its_started_as) const {
  const auto refuse_it = [](const std::string& why) {
    throw Error(ErrorCode::kInternal, "an epoch cannot start on this host: " + why);
  };
  if (wanted.empty() || wanted.size() > static_cast<size_t>(kLocalRanksMax))
    refuse_it(std::to_string(wanted.size()) + " members");
  const uint32_t number = wanted.front().world.epoch;
  const int size = wanted.front().world.size;
  for (const EpochMember& one : wanted)
    if (one.world.rank < 0 || one.world.rank >= size)
      refuse_it("rank " + std::to_string(one.world.rank));
  if (size < static_cast<int>(wanted.size()) || size > kWorldSizeMax)
    refuse_it("a world of " + std::to_string(size));
  if (!its_started_as.empty() && its_started_as.size() != static_cast<size_t>(size))
    refuse_it(std::to_string(its_started_as.size()) + " ranks in a world of " +
              std::to_string(size));
  if (number == 0 || (epoch && number <= epoch->epoch()))
    refuse_it("its number " + std::to_string(number) + " is not new");
  std::vector<bool> taken(slots.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto at = static_cast<size_t>(wanted[i].slot);
    if (at >= slots.size() || taken[at] || wanted[i].world.local_rank != static_cast<int>(i) ||
        wanted[i].world.epoch != number || wanted[i].world.size != size)
      refuse_it("member " + std::to_string(i) + " does not fit");
    taken[at] = true;
  }
}

void HostMemory::Impl::tell_clock() const {
  if (epoch) epoch->block().clock.store(clock.word(), std::memory_order_release);
}

// The worker, or what speaks for it behind a wrapper; 0: neither is held.
pid_t HostMemory::Impl::held_process(const Slot& slot) {
  if (slot.speaks() && !slot.dead && held_by_debugger(slot.pid)) return slot.pid;
  return slot.worker != 0 && !slot.worker_ended && held_by_debugger(slot.worker) ? slot.worker : 0;
}

HostMemory::Impl::Slot* HostMemory::Impl::member(int local_rank) {
  Slot& slot = slots[static_cast<size_t>(members[static_cast<size_t>(local_rank)])];
  return slot.local_rank == local_rank ? &slot : nullptr;
}

void HostMemory::Impl::greet(const EpochMember& one) {
  Slot& slot = slots[static_cast<size_t>(one.slot)];
  slot.asked = slot.left = slot.stranded_others = false;
  slot.given_up.clear();
  if (slot.dead || !slot.speaks()) return;
  watch.watch(one.slot, slot.pid, epoch->mapping(), &words(slot).life);
  if (slot.connection == nullptr) {  // which it ended, maybe before anybody looked
    watch.suspect(one.slot, slot.pid);
    return;
  }
  AgentMessage message;
  message.kind = AgentMessage::kWorld;
  message.epoch = one.world.epoch;
  message.key = one.world.host;
  message.body = encode(one.world);
  add_hosts(message, host_names);
  const int block = epoch->block_fd();
  send(*slot.connection, message, std::span(&block, 1));
  AgentMessage doorbells;
  doorbells.kind = AgentMessage::kDoorbells;
  doorbells.epoch = one.world.epoch;
  send_descriptors(*slot.connection, doorbells, epoch->doorbells());
}

void HostMemory::Impl::refuse_init(const std::string& text, bool timed_out) {
  AgentMessage refusal;
  refusal.kind = AgentMessage::kRefused;
  refusal.value = timed_out ? static_cast<int64_t>(ErrorCode::kTimeout) : kCommFailureCode;
  refusal.body = to_bytes(std::string(head_of(text, kAgentMessageBodyMax)));
  for (Slot& slot : slots) {
    if (!slot.asked) continue;
    slot.asked = false;
    if (slot.connection != nullptr) send(*slot.connection, refusal);
  }
}

void HostMemory::Impl::give_segment(Slot& slot, const AgentMessage& message) {
  AgentMessage answer;
  answer.kind = AgentMessage::kSegment;
  answer.epoch = message.epoch;
  answer.id = message.id;
  answer.value = message.value;
  try {
    const auto bytes = static_cast<uint64_t>(std::max<int64_t>(message.value, 0));
    send_descriptors(*slot.connection, answer, epoch->segment(message.id, bytes));
    epoch->given(message.id, slot.local_rank);
  } catch (const Error& error) {
    answer.kind = AgentMessage::kSegmentRefused;
    answer.body = to_bytes(error.what());
    send(*slot.connection, answer);
  }
}

HostMemory::HostMemory(Loop& loop, HostMemoryOptions options, HostMemoryEvents events)
    : impl_(std::make_unique<Impl>(loop, std::move(options), std::move(events))) {}
HostMemory::~HostMemory() = default;

std::string HostMemory::address(int slot) const { return AgentAddress{impl_->name, slot}.text(); }

void HostMemory::started(int slot, pid_t pid) {
  impl_->slots.at(static_cast<size_t>(slot)).worker = pid;
}

void HostMemory::ended(int slot, bool well) { impl_->ended(slot, well); }

void HostMemory::start_epoch(std::span<const EpochMember> members,
                             std::span<const int> started_as) {
  impl_->start_epoch(members, started_as);
}

void HostMemory::refuse_init(const std::string& text, bool timed_out) {
  impl_->refuse_init(text, timed_out);
}

void HostMemory::suspend() {
  impl_->suspended = true;
  impl_->clock.stand(JobClock::kSuspended, Clock::now());
  impl_->tell_clock();
}

void HostMemory::resume() {
  if (!impl_->suspended) return;
  const TimePoint now = Clock::now();
  impl_->suspended = false;
  impl_->clock.go_on(JobClock::kSuspended, now);
  impl_->tell_clock();
  if (impl_->questions) impl_->questions->restart(now);
}

void HostMemory::look_for_debuggers() {
  std::vector<Held> held;
  for (size_t i = 0; i < impl_->slots.size(); ++i)
    if (const pid_t pid = Impl::held_process(impl_->slots[i])) held.push_back({int(i), pid});
  if (held == impl_->held) return;
  impl_->held = std::move(held);
  if (impl_->held.empty())
    impl_->clock.go_on(JobClock::kDebugger, Clock::now());
  else
    impl_->clock.stand(JobClock::kDebugger, Clock::now());
  impl_->tell_clock();
  if (impl_->events.held) impl_->events.held(impl_->held);
}

void HostMemory::hold_elsewhere(bool any) {
  if (any)
    impl_->clock.stand(JobClock::kDebuggerElsewhere, Clock::now());
  else
    impl_->clock.go_on(JobClock::kDebuggerElsewhere, Clock::now());
  impl_->tell_clock();
}

std::optional<TimePoint> HostMemory::deadline() const {
  std::optional<TimePoint> first;
  auto consider = [&](std::optional<TimePoint> when) {
    if (when && (!first || *when < *first)) first = when;
  };
  consider(impl_->next_try);
  if (impl_->suspended) return first;
  if (impl_->questions) consider(impl_->questions->next_look());
  if (const auto at = impl_->store ? impl_->store->deadline() : std::nullopt)
    consider(impl_->clock.when(*at));
  return first;
}

void HostMemory::tick(TimePoint now) {
  if (impl_->next_try && now >= *impl_->next_try) impl_->retry();
  if (impl_->suspended) return;
  impl_->look(now);
  if (impl_->store) impl_->store->tick(impl_->clock.time(now));
}

RankFacts HostMemory::facts(int id) const {
  const Impl::Slot& slot = impl_->slots.at(static_cast<size_t>(id));
  RankFacts facts;
  facts.claimed = slot.claimed();
  facts.pid = slot.pid;
  facts.epoch = slot.epoch;
  facts.dead = slot.dead;
  facts.given_up = slot.given_up;
  facts.asked = slot.asked;
  facts.stranded_others = slot.stranded_others;
  facts.left = slot.left ||
               (impl_->in_epoch(slot) && impl_->words(slot).left.load(std::memory_order_acquire));
  if (impl_->in_epoch(slot)) impl_->add_waited_in_vain(facts);
  if (slot.page.mapping) facts.status = read_status(slot.status());
  facts.doing = slot.doing.empty() ? describe(facts.status, Clock::now()) : slot.doing;
  return facts;
}

bool HostMemory::anyone_claimed() const {
  return std::any_of(impl_->slots.begin(), impl_->slots.end(),
                     [](const Impl::Slot& slot) { return slot.claimed(); });
}

}  // namespace hvd
