// Order: which operation is under way, how far it is, and what ends it.
#include "collectives/hierarchical/hierarchical_communicator.h"

#include <algorithm>

#include "collectives/describe.h"
#include "runtime/base/error.h"
#include "runtime/base/fault_point.h"

namespace hvd {
namespace {

constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;

constexpr size_t rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }

size_t counts_bytes(int ranks) { return rounded(static_cast<size_t>(ranks) * sizeof(uint64_t)); }

uint64_t seed_of(const Peers& peers, const CommunicatorSpec& spec) {
  uint64_t seed = mix_hash(mix_hash(0, peers.world().epoch), spec.seed);
  for (int ranks : spec.hosts) seed = mix_hash(seed, static_cast<uint64_t>(ranks));
  return seed;
}

}  // namespace

uint64_t hierarchical_bytes(std::span<const int> hosts, bool staging) {
  const HostMap map({hosts.begin(), hosts.end()});
  const Areas areas = areas_of(map, 0, staging);
  return sizeof(HostWords) + counts_bytes(map.ranks()) + areas.input.bytes + areas.output.bytes;
}

uint32_t hierarchical_links(std::span<const int> hosts) {
  return hosts.size() < 2 ? 0 : static_cast<uint32_t>(*std::ranges::max_element(hosts));
}

std::unique_ptr<Communicator> make_hierarchical_communicator(Peers& peers, Arena& arena,
                                                             const CommunicatorSpec& spec) {
  return std::make_unique<HierarchicalCommunicator>(peers, arena, spec);
}

HierarchicalCommunicator::HierarchicalCommunicator(Peers& peers, Arena& arena,
                                                   const CommunicatorSpec& spec)
    : peers_(peers),
      arena_(arena),
      block_(peers.block()),
      map_(spec.hosts),
      host_(map_.host_of(peers.world().rank)),
      me_(peers.world().local_rank),
      local_size_(peers.world().local_size),
      name_(spec.name),
      segment_(arena.segment(spec.segment)),
      areas_(areas_of(map_, host_, spec.staging)),
      exchange_(host_, map_.leaders(0)),
      queue_(seed_of(peers, spec)) {
  const World& world = peers.world();
  HVD_CHECK(world.size == map_.ranks() && world.rank == world_rank(me_) &&
                local_size_ == map_.ranks_of(host_),
            "hosts are as the world has them");
  HVD_CHECK(spec.offset % 64 == 0 && segment_->bytes() >= spec.offset &&
                segment_->bytes() - spec.offset >= hierarchical_bytes(spec.hosts, spec.staging),
            "a communicator's words fit into its segment");
  for (int k = 0; k < local_size_; ++k)
    words_.push_back(reinterpret_cast<HostWords*>(segment_->at(k) + spec.offset));
  for (int slice : map_.led_by(me_, host_)) {
    std::vector<int> ranks = {map_.leader(slice, (host_ + 1) % map_.hosts()),
                              map_.leader(slice, (host_ + map_.hosts() - 1) % map_.hosts())};
    if (slice == 0) {
      const std::vector<int> more = exchange_.neighbours();
      ranks.insert(ranks.end(), more.begin(), more.end());
    }
    lanes_.emplace_back(slice, peers, spec.links + static_cast<uint32_t>(slice), std::move(ranks),
                        name_);
  }
  plans_.resize(static_cast<size_t>(map_.slices()));
  sources_.resize(static_cast<size_t>(local_size_));
}

std::byte* HierarchicalCommunicator::counts_area(int rank) const {
  return reinterpret_cast<std::byte*>(&words(rank) + 1);
}
std::byte* HierarchicalCommunicator::output_area(int rank) const {
  return counts_area(rank) + counts_bytes(size());
}
std::byte* HierarchicalCommunicator::input_area(int rank) const {
  return output_area(rank) + areas_.output.bytes;
}
std::byte* HierarchicalCommunicator::tensor_of(int rank) const {
  const HostEntry& said = entry(rank, under_way().sequence);
  return arena_.at(rank, {said.segment, said.offset});
}

void HierarchicalCommunicator::start_at(uint64_t sequence) {
  HVD_CHECK(queue_.started() == 0, "nothing was started yet");
  queue_.start_at(sequence);
  entered_ = sequence;
}

void HierarchicalCommunicator::start(Operation& operation) { queue_.push(operation); }

bool HierarchicalCommunicator::progress() {
  if (says_goodbye()) return lanes_.front().links.go_on_with_goodbye();
  if (closed_ || queue_.empty() || is_broken_off() || !take_links()) return false;
  const bool moved = advance(*queue_.oldest()) != Step::kWait;
  if (leaves_)
    go_on_leaving(moved);
  else if (!moved)
    for (Lane& lane : lanes_) lane.links.look();
  return moved || closed_;
}

bool HierarchicalCommunicator::take_links() {
  bool all = true;
  for (Lane& lane : lanes_) all &= lane.links.take();
  return all;
}

bool HierarchicalCommunicator::is_broken_off() const {
  return std::ranges::any_of(lanes_, [](const Lane& lane) { return lane.links.broken_off(); });
}

HierarchicalCommunicator::Step HierarchicalCommunicator::advance(Operation& operation) {
  switch (stage_) {
    case Stage::kBegin:
      return begin(operation);
    case Stage::kMeet:
      return await_entries(operation);
    case Stage::kExchange:
      return leave_exchange(operation);
    case Stage::kVerdict:
      return await_verdict(operation);
    case Stage::kTell:
      return await_tellers(operation);
    case Stage::kTellExchange:
      return leave_tell_exchange(operation);
    case Stage::kTold:
      return await_verdict(operation);
    case Stage::kRoom:
      return make_room(operation);
    case Stage::kFlow:
      return flow(operation);
    case Stage::kSettle:
      break;
  }
  return settle(operation);
}

HierarchicalCommunicator::Step HierarchicalCommunicator::begin(Operation& operation) {
  if (operation.kind == OperationKind::kSegment) {
    const NewSegment::Step step = new_segment_.prepare(operation, peers_, arena_);
    if (step != NewSegment::Step::kDone)
      return step == NewSegment::Step::kWait ? Step::kWait : Step::kMoved;
  }
  next_rank_ = 0;
  differs_ = false;
  write_entry(operation);
  stage_ = leads() ? Stage::kMeet : Stage::kVerdict;
  entered_ = operation.sequence;
  fault_point("collective_entered");
  return advance(operation);
}

// Peers may still read or write the tensor of who is done with its own part.
HierarchicalCommunicator::Step HierarchicalCommunicator::settle(Operation& operation) {
  const bool touched = operation.kind == OperationKind::kSegment ||
                       entry(me_, operation.sequence).place == TensorPlace::kArena;
  for (; touched && next_rank_ < local_size_; ++next_rank_)
    if (!has_said(next_rank_, words(next_rank_).done, stamp(operation.sequence)))
      return Step::kWait;
  finish(flow_.refused ? Outcome::kRefused : Outcome::kComplete);
  return Step::kDone;
}

void HierarchicalCommunicator::finish(Outcome outcome) {
  stage_ = Stage::kBegin;
  nowhere_.reset();
  queue_.resolve(outcome);
}

void HierarchicalCommunicator::publish(std::atomic<uint64_t>& word, uint64_t value) {
  word.store(value, kRelease);
  if (local_size_ > 1) ring_sleepers(peers_);
}

std::chrono::milliseconds HierarchicalCommunicator::watch(std::vector<pollfd>& descriptors) const {
  auto again = std::chrono::milliseconds::max();
  if (says_goodbye()) return lanes_.front().links.watch(descriptors);
  if (closed_ || queue_.empty() || is_broken_off()) return again;
  for (const Lane& lane : lanes_) again = std::min(again, lane.links.watch(descriptors));
  return again;
}

// In a whole epoch, with nothing under way, whoever waits for this rank is told: its host by a
// word, the other hosts by the leader's links.
void HierarchicalCommunicator::close() {
  if (leaves_) return;
  leaves_ = true;
  fault_point("collective_closed");
  publish(mine().closed, entered_ + 1);
  if (queue_.empty() && block_.trouble.load(kAcquire) == 0) {
    closed_ = true;
    if (leads()) lanes_.front().links.say_goodbye(queue_.started() + 1);
    return;
  }
  for (Lane& lane : lanes_) lane.links.leave();
  go_on_leaving(true);
}

// Who gives an operation up says so to its host at once, not only by being quiet: it may be long
// before it is, waiting in another communicator for just those who wait for it here.
void HierarchicalCommunicator::go_on_leaving(bool moved) {
  bool hopeless = will_not_come_;
  for (Lane& lane : lanes_) hopeless |= lane.links.is_hopeless(moved);
  if (stage_ != Stage::kBegin && !hopeless) return;
  if (stage_ != Stage::kBegin) publish(mine().closed, entered_);
  closed_ = true;
  for (Lane& lane : lanes_) lane.links.end();
}

// Never a word more of this operation from a rank that is dead or quiet, has closed before entering
// or has given it up.
bool HierarchicalCommunicator::is_frozen(int rank, uint64_t sequence) const {
  const RankWords& life = block_.rank(rank);
  const uint64_t closed = words(rank).closed.load(kAcquire);
  return life.dead.load(kAcquire) != 0 || life.quiet.load(kAcquire) != 0 ||
         (closed != 0 && closed <= sequence);
}

// Who waits for a word of its host asks here: on the way out it may be one that never comes. The
// freezing word is read before the word itself, which may have come just before it.
bool HierarchicalCommunicator::has_said(int rank, const std::atomic<uint64_t>& word,
                                        uint64_t wanted) {
  if (has_come(word, wanted)) return true;
  if (!leaves_ || !is_frozen(rank, under_way().sequence)) return false;
  if (has_come(word, wanted)) return true;
  will_not_come_ = true;
  return false;
}

void HierarchicalCommunicator::fail_rest() {
  queue_.be_over();
  while (!queue_.empty()) finish(Outcome::kFailedUndefined);
}

void HierarchicalCommunicator::abort() noexcept {
  raise_trouble(peers_, TroubleReason::kAbort, "abort() was called");
}

// Of this host: who has not entered. Of other hosts, whose leaders speak for them: all ranks of a
// host that was not heard of; who does not lead knows what its leader has heard once that has
// begun. Before all that, who has no link to this rank yet.
std::vector<int> HierarchicalCommunicator::missing_ranks() const {
  std::vector<int> missing;
  const bool agreeing =
      stage_ == Stage::kMeet || stage_ == Stage::kExchange || stage_ == Stage::kVerdict;
  if (queue_.empty() || (!agreeing && stage_ != Stage::kBegin)) return missing;
  for (const Lane& lane : lanes_)
    for (const int rank : lane.links.missing()) missing.push_back(rank);
  if (!missing.empty()) {
    std::ranges::sort(missing);
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
    return missing;
  }
  const uint64_t sequence = under_way().sequence;
  for (int k = 0; k < local_size_; ++k)
    if (k != me_ && !has_come(entry(k, sequence).word, stamp(sequence)))
      missing.push_back(world_rank(k));
  std::vector<bool> heard(static_cast<size_t>(map_.hosts()), true);
  if (leads() && lanes_.front().links.taken()) {
    heard = exchange_.heard(lanes_.front().links, sequence, stage_ == Stage::kExchange);
  } else if (!leads() && missing.empty()) {
    const std::atomic<uint64_t>& word = words(0).heard;
    heard = exchange_.heard_after(
        has_come(word, stamp(sequence)) ? progress_of(word.load(kAcquire)) - 1 : 0);
  }
  for (int host = 0; host < map_.hosts(); ++host)
    for (int k = 0; k < map_.ranks_of(host) && !heard[static_cast<size_t>(host)]; ++k)
      missing.push_back(map_.first_rank(host) + k);
  std::ranges::sort(missing);
  return missing;
}

}  // namespace hvd
