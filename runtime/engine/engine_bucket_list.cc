// Buckets in layout order, then the control words: nothing else moves in a step.
#include "runtime/engine/engine_bucket_list.h"

#include <string.h>

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/fault_point.h"
#include "runtime/base/utf8.h"
#include "runtime/engine/layout_difference.h"
#include "runtime/engine/outcome.h"
#include "runtime/engine/text_hash.h"

namespace hvd {
namespace {

// Other ranks take memory at the same time, so we look again.
constexpr uint64_t kLookEvery = 64 << 20;

uint64_t rounded(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

// What has to agree, the memory's shape included.
std::string words_of(const BucketListSpec& spec) {
  std::string text = spec.layout + "\n" + std::to_string(spec.parameters) + " parameters, " +
                     name_of(spec.reduction.op) + " with factors " +
                     std::to_string(spec.reduction.prescale) + " and " +
                     std::to_string(spec.reduction.postscale) +
                     (spec.device >= 0 ? ", on a GPU" : "") + ", in buckets of";
  for (const BucketShape& bucket : spec.buckets)
    text += " " + std::to_string(bucket.count) + " " + name_of(bucket.type);
  return text;
}

}  // namespace

std::unique_ptr<BucketList> EngineBucketList::make(const std::shared_ptr<Engine::Parts>& parts,
                                                   BucketListSpec spec) {
  HVD_CHECK(parts->on_init_thread(), "a bucket list is made by the init thread");
  if (spec.buckets.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "the optimizer \"" + spec.name + "\" has no parameter to reduce");
  for (const BucketShape& bucket : spec.buckets) check_reduction(spec.reduction, bucket.type);
  const uint64_t layout_hash = compare_layouts(*parts, spec);
  spec.name += spec.about;
  if (spec.device >= 0) parts->registered.give_back(parts, spec.name);
  Offsets offsets = lay_out(spec, parts->shape);
  // Others look at this rank's words for as long as they have theirs.
  auto segment = parts->add_segment(offsets.end, offsets.spares, offsets.homes);
  std::unique_ptr<EngineBucketList> list(
      new EngineBucketList(parts, spec, layout_hash, std::move(offsets), std::move(segment)));
  list->take_device_memory();
  // The segment is there on all ranks, so the list is made, also if the epoch has broken since: its
  // first step fails then, like the others'.
  parts->progress.hold();
  parts->progress.add(*list->communicator_);
  parts->progress.add(*list);
  parts->progress.leave();
  if (list->on_device_) list->on_device_->register_homes(list->parts_);
  // Who lets go of it before its first step says goodbye by its links, so they have to be there.
  if (!parts->shape.one_host())
    parts->meet_in(*list->communicator_, spec.name, parts->options.collective_timeout);
  return list;
}

// All ranks' hashes, and only where they differ the words of the first two that do: all ranks
// decide from the same.
uint64_t EngineBucketList::compare_layouts(Engine::Parts& parts, const BucketListSpec& spec) {
  const std::string words = words_of(spec);
  const uint64_t hash = text_hash(words);
  const std::vector<std::string> hashes =
      parts.gather(spec.name, {reinterpret_cast<const char*>(&hash), sizeof hash});
  const auto other = std::find_if(hashes.begin(), hashes.end(),
                                  [&](const std::string& one) { return one != hashes.front(); });
  if (other == hashes.end()) return hash;

  const int rank = parts.peers->world().rank;
  const auto second = static_cast<int>(other - hashes.begin());
  const std::vector<std::string> texts =
      parts.gather(spec.name, rank == 0 || rank == second ? words : std::string());
  const std::string difference =
      layout_difference({0, texts.front()}, {second, texts[static_cast<size_t>(second)]});
  const bool strides = difference.find(" with strides ") != std::string::npos;
  throw Error(ErrorCode::kInvalidArgument,
              "the parameters of \"" + spec.name + "\" differ between ranks: " + difference +
                  "; build the same model and optimizer on all ranks" +
                  (strides ? " (contiguous() undoes the strides that a checkpoint brought)" : ""));
}

EngineBucketList::Offsets EngineBucketList::lay_out(const BucketListSpec& spec,
                                                    const WorldShape& shape) {
  Offsets offsets;
  offsets.control = rounded(world_communicator_bytes(shape, false), 64);
  const uint64_t control = std::max(
      sizeof(Word) * static_cast<size_t>(shape.size()) + static_cast<size_t>(spec.parameters),
      kPoisonBytes);
  offsets.homes = rounded(offsets.control + control, 4096);
  uint64_t bytes = 0;
  for (const BucketShape& bucket : spec.buckets) {
    offsets.bucket.push_back(bytes);
    if (spec.device >= 0) continue;
    bytes += rounded(bucket.count * size_of(bucket.type), 64);
  }
  offsets.spares = rounded(offsets.homes + bytes, 4096);
  offsets.end = rounded(offsets.spares + bytes, 4096);
  return offsets;
}

EngineBucketList::EngineBucketList(std::shared_ptr<Engine::Parts> parts, const BucketListSpec& spec,
                                   uint64_t layout_hash, Offsets offsets,
                                   std::shared_ptr<Segment> segment)
    : parts_(std::move(parts)),
      spec_(spec),
      offsets_(std::move(offsets)),
      segment_(std::move(segment)),
      communicator_(
          make_world_communicator(*parts_->peers, parts_->arena, parts_->shape,
                                  {.segment = segment_->id(),
                                   .offset = offsets_.words,
                                   .links = parts_->use_links(),
                                   .seed = text_hash(spec_.name, layout_hash ^ segment_->id()),
                                   .staging = false,
                                   .disjoint = true,
                                   .name = spec_.name})),
      rank_(parts_->peers->world().rank),
      size_(parts_->peers->world().size),
      buckets_(std::make_unique<Bucket[]>(spec_.buckets.size())) {
  for (size_t i = 0; i < spec_.buckets.size(); ++i) {
    Operation& operation = buckets_[i].operation;
    operation.kind = OperationKind::kAllreduce;
    operation.result.count = spec_.buckets[i].count;
    operation.result.type = spec_.buckets[i].type;
    operation.reduction = spec_.reduction;
    operation.name = spec_.name;
  }
}

// The others have theirs, and would wait for this rank in the first step.
void EngineBucketList::take_device_memory() {
  if (spec_.device < 0) return;
  try {
    DeviceBackend* device = parts_->device.load(std::memory_order_acquire);
    if (device == nullptr || device->ordinal() != spec_.device)
      throw Error(ErrorCode::kUnavailable,
                  "GPU " + std::to_string(spec_.device) + " is not used by this rank");
    on_device_ = std::make_unique<DeviceBuckets>(
        *device, std::shared_ptr<Negotiation>(parts_, parts_->negotiation.get()), spec_,
        segment_->id(), size_);
  } catch (const Error& error) {
    raise_trouble(*parts_->peers, TroubleReason::kEngineError,
                  rank_text(*parts_->peers, rank_) + " cannot make its optimizer: " + error.what(),
                  std::span(&rank_, 1));
    throw;
  }
}

// In the middle of a step, whose first bucket is ready, the others wait for buckets that will never
// come: the epoch ends, also where none was issued yet, as with a single one. Between steps it ends
// only for who needs another one, and learns that from the communicator's words; nothing of this
// rank's is under way in it then.
EngineBucketList::~EngineBucketList() {
  if (parts_->state == Engine::Parts::State::kForked) return;
  Progress& progress = parts_->progress;
  progress.hold();
  const bool in_step =
      !progress.end().closed() &&
      std::any_of(buckets_.get(), buckets_.get() + spec_.buckets.size(),
                  [](const Bucket& one) { return one.ready.load(std::memory_order_acquire); });
  const bool breaking = progress.end().broken() && !progress.over();
  progress.leave();
  const int rank = parts_->peers->world().rank;
  if (in_step)
    raise_trouble(*parts_->peers, TroubleReason::kLeft,
                  "rank " + std::to_string(rank) + " let go of \"" + spec_.name +
                      "\" in the middle of a step",
                  std::span(&rank, 1));
  if (in_step || breaking) progress.wait_until_over();
  progress.hold();
  communicator_->close();
  progress.remove(*communicator_);
  progress.remove(static_cast<const Feed&>(*this));
  progress.leave();
}

std::byte* EngineBucketList::memory(int bucket, Home home) const {
  if (on_device_) return on_device_->memory(bucket, home);
  return segment_->own() + (home == Home::kHome ? offsets_.homes : offsets_.spares) +
         offsets_.bucket[static_cast<size_t>(bucket)];
}

std::shared_ptr<const void> EngineBucketList::holder(int bucket, Home home) const {
  if (on_device_) return on_device_->holder(bucket, home);
  return segment_;
}

bool EngineBucketList::ended() const {
  return process_.in_child() ||
         parts_->state.load(std::memory_order_relaxed) != Engine::Parts::State::kRunning ||
         parts_->progress.over().load(std::memory_order_acquire);
}

void EngineBucketList::check_open() const {
  if (process_.in_child()) throw_forked();
  if (parts_->state.load(std::memory_order_relaxed) != Engine::Parts::State::kRunning)
    throw Error(ErrorCode::kUnavailable,
                "\"" + spec_.name +
                    "\" belongs to an epoch that shutdown() has ended; make a new "
                    "DistributedOptimizer after init()");
  if (parts_->progress.over().load(std::memory_order_acquire) &&
      parts_->peers->status_page().told.load(std::memory_order_relaxed) != 0)
    throw_over();
}

// A page that there is no room for is answered with SIGKILL, or SIGBUS. Nor can the bucket go out
// from its home, where the sum would be written over what somebody kept.
bool EngineBucketList::take_spare(int bucket) {
  Bucket& one = buckets_[static_cast<size_t>(bucket)];
  if (one.has_spare) return true;
  const uint64_t begin = offsets_.spares + offsets_.bucket[static_cast<size_t>(bucket)];
  const uint64_t end = begin + one.operation.result.bytes();
  Peers& peers = *parts_->peers;
  try {
    if (on_device_) on_device_->take_spare(bucket);
    for (uint64_t at = begin; at < end && !on_device_; at += kLookEvery) {
      peers.check_headroom(end - at);
      segment_->populate(peers.world().local_rank, at, std::min(kLookEvery, end - at));
    }
  } catch (const std::exception& error) {
    give_up(std::string(" kept gradients and has no room for the next ones: ") + error.what());
    return false;
  }
  one.has_spare = true;
  return true;
}

void EngineBucketList::ready(int bucket, Home home, void* stream) {
  if (parts_->state.load(std::memory_order_relaxed) != Engine::Parts::State::kRunning) return;
  Bucket& one = buckets_[static_cast<size_t>(bucket)];
  one.home.store(home, std::memory_order_relaxed);
  one.ready.store(true, std::memory_order_release);
  if (on_device_) return submit_on_device(bucket, home, stream);  // which moves it, too
  parts_->progress.kick_and_work();
}

// The others wait for it, and would go on waiting after this rank's error.
void EngineBucketList::submit_on_device(int bucket, Home home, void* stream) {
  try {
    on_device_->submit(bucket, home, stream);
  } catch (const std::exception& error) {
    give_up(std::string(" cannot hand out its gradients: ") + error.what());
  }
}

void EngineBucketList::give_up(const std::string& why) {
  gave_up_.store(true, std::memory_order_release);
  raise_trouble(*parts_->peers, TroubleReason::kEngineError, rank_text(*parts_->peers, rank_) + why,
                std::span(&rank_, 1));
}

// The last bucket of a step waits for finish().
bool EngineBucketList::feed() {
  bool moved = false;
  if (on_device_) issued_ = static_cast<int>(spec_.buckets.size());  // by ready()
  const int count = static_cast<int>(spec_.buckets.size()), most = finishing_ ? count : count - 1;
  while (issued_ < most &&
         buckets_[static_cast<size_t>(issued_)].ready.load(std::memory_order_acquire)) {
    issue(issued_++);
    moved = true;
  }
  if (last_words_ != nullptr && issued_ == count) {
    communicator_->start(*last_words_);
    last_words_ = nullptr;
    moved = true;
  }
  return moved;
}

void EngineBucketList::issue(int bucket) {
  fault_point("bucket_issue");
  Bucket& one = buckets_[static_cast<size_t>(bucket)];
  one.operation.result.data = memory(bucket, one.home.load(std::memory_order_relaxed));
  communicator_->start(one.operation);
}

// While it lives the status page says: in synchronize(), of the step after the last one made.
class EngineBucketList::StepStatus {
 public:
  explicit StepStatus(const EngineBucketList& list) : list_(list) {
    if (!tells_) return;
    list_.parts_->status.set_step(list_.step() + 1);
    list_.parts_->status.begin(Phase::kSynchronize);
  }
  ~StepStatus() {
    if (!tells_) return;
    list_.parts_->status.set_step(list_.step());
    list_.parts_->status.end();
  }
  StepStatus(const StepStatus&) = delete;
  StepStatus& operator=(const StepStatus&) = delete;

 private:
  const EngineBucketList& list_;
  const bool tells_ = list_.parts_->on_init_thread();
};

// The words are an exchange of their own on CPUs, on a GPU, too, where they could have come with
// the last bucket's entry of the log: a meeting of the ranks more in each step, while the device
// goes on with the buckets. One way to say them is left, and the log's words are the same for all.
StepVerdict EngineBucketList::finish(const StepWord& word) {
  check_open();
  const StepStatus status(*this);
  if (gave_up_.load(std::memory_order_acquire)) {
    parts_->progress.wait_until_over();
    throw_over();
  }
  for (size_t i = 0; i < spec_.buckets.size(); ++i)
    HVD_CHECK(buckets_[i].ready.load(), "finish() before all buckets are ready");
  write_control(word);
  Operation exchange;
  exchange.kind = OperationKind::kAllreduce;
  exchange.result = {control(), control_bytes(), DataType::kUint8};
  exchange.reduction.op = ReduceOp::kMax;
  exchange.name = spec_.name;
  fault_point("bucket_finish");
  run(exchange);
  StepVerdict verdict = read_control(word);
  if (on_device_) wait_for_launches();
  reset_step();
  return verdict;
}

void EngineBucketList::join(void* stream) {
  if (on_device_) on_device_->join(stream);
}

// Waits for an operation that feed() starts behind the buckets.
void EngineBucketList::run(Operation& operation) {
  Progress& progress = parts_->progress;
  Awaited awaited;
  awaited.operation = &operation;
  awaited.what = [this] {
    return "step " + std::to_string(step() + 1) + " of \"" + spec_.name + "\"";
  };
  awaited.missing = [this] { return communicator_->missing_ranks(); };
  awaited.timeout = parts_->options.collective_timeout;
  const bool tells = parts_->on_init_thread();
  if (tells) {
    ++parts_->steps;
    parts_->tell_of_waiting(awaited, operation, segment_->id());
  }
  progress.hold();
  finishing_ = true;
  last_words_ = &operation;
  progress.wait_and_leave(awaited);
  if (tells) parts_->done_waiting();
  if (operation.outcome.load(std::memory_order_acquire) != Outcome::kComplete)
    throw_failure(operation);
}

// A bucket that was refused, as one whose name somebody else has used, is none of this step's any
// more on any rank.
void EngineBucketList::wait_for_launches() {
  try {
    on_device_->wait();
  } catch (const CommFailure&) {
    throw_over();
  } catch (const Error& error) {
    give_up(std::string(" cannot sum its gradients: ") + error.what());
    parts_->progress.wait_until_over();
    throw_over();
  }
}

void EngineBucketList::throw_failure(const Operation& last) {
  if (last.outcome.load(std::memory_order_acquire) == Outcome::kRefused)
    std::rethrow_exception(error_of(last, parts_->progress.end()));
  parts_->progress.wait_until_over();
  throw_over();
}

void EngineBucketList::throw_over() const {
  bool untouched = !on_device_;
  for (size_t i = 0; i < spec_.buckets.size(); ++i) {
    const Outcome outcome = buckets_[i].operation.outcome.load(std::memory_order_acquire);
    untouched &= outcome == Outcome::kFailedUntouched || outcome == Outcome::kPending;
  }
  tell(std::make_exception_ptr(CommFailure("step " + std::to_string(step() + 1) + " of \"" +
                                               spec_.name +
                                               "\" failed: " + parts_->progress.end().reason(),
                                           untouched)),
       parts_->peers->status_page());
}

size_t EngineBucketList::control_bytes() const {
  return sizeof(Word) * static_cast<size_t>(size_) + static_cast<size_t>(spec_.parameters);
}

// Every rank's word in its place, zeros elsewhere: the maximum of all is all ranks' words.
void EngineBucketList::write_control(const StepWord& word) {
  memset(control(), 0, control_bytes());
  const Word mine{static_cast<uint32_t>(step() + 1), word.additions, word.digest,
                  word.poison.empty() ? 0u : 1u};
  memcpy(control() + sizeof(Word) * static_cast<size_t>(rank_), &mine, sizeof mine);
  std::byte* used = control() + sizeof(Word) * static_cast<size_t>(size_);
  for (size_t i = 0; i < static_cast<size_t>(spec_.parameters) && i / 64 < word.used.size(); ++i)
    used[i] = static_cast<std::byte>(word.used[i / 64] >> (i % 64) & 1);
}

StepVerdict EngineBucketList::read_control(const StepWord& word) {
  StepVerdict verdict;
  int poisoned = -1;
  uint32_t digest = 0;
  for (int k = 0; k < size_; ++k) {
    Word theirs;
    memcpy(&theirs, control() + sizeof(Word) * static_cast<size_t>(k), sizeof theirs);
    if (theirs.step != static_cast<uint32_t>(step() + 1))
      throw Error(ErrorCode::kInternal, "\"" + spec_.name + "\": rank " + std::to_string(rank_) +
                                            " ends step " + std::to_string(step() + 1) + ", rank " +
                                            std::to_string(k) + " ends step " +
                                            std::to_string(theirs.step));
    verdict.additions.push_back(theirs.additions);
    if (digest == 0 && theirs.digest != 0) digest = theirs.digest, verdict.digest_of = k;
    if (theirs.digest != 0 && theirs.digest != digest && verdict.another_of < 0)
      verdict.another_of = k;
    if (theirs.poisoned != 0 && poisoned < 0) poisoned = k;
  }
  verdict.used.resize((static_cast<size_t>(spec_.parameters) + 63) / 64);
  const std::byte* used = control() + sizeof(Word) * static_cast<size_t>(size_);
  for (size_t i = 0; i < static_cast<size_t>(spec_.parameters); ++i)
    verdict.used[i / 64] |= static_cast<uint64_t>(used[i] != std::byte{0}) << (i % 64);
  if (poisoned >= 0) verdict.poison = exchange_poison(poisoned, word.poison);
  return verdict;
}

// All ranks know by now that the step is void and whose word says so; its text follows.
std::string EngineBucketList::exchange_poison(int poisoned_rank, const std::string& mine) {
  char* text = reinterpret_cast<char*>(control());
  memset(text, 0, kPoisonBytes);
  if (rank_ == poisoned_rank) copy_text(text, kPoisonBytes, mine);
  Operation exchange;
  exchange.kind = OperationKind::kAllreduce;
  exchange.result = {text, kPoisonBytes, DataType::kUint8};
  exchange.reduction.op = ReduceOp::kMax;
  exchange.name = spec_.name;
  run(exchange);
  return "rank " + std::to_string(poisoned_rank) + ": " +
         std::string(text, strnlen(text, kPoisonBytes));
}

void EngineBucketList::reset_step() {
  parts_->progress.hold();
  issued_ = 0;
  finishing_ = false;
  for (size_t i = 0; i < spec_.buckets.size(); ++i) {
    buckets_[i].ready.store(false, std::memory_order_relaxed);
    buckets_[i].operation.outcome.store(Outcome::kPending, std::memory_order_relaxed);
    buckets_[i].operation.error.clear();
  }
  if (on_device_) on_device_->reset();
  step_.fetch_add(1, std::memory_order_relaxed);
  parts_->progress.leave();
}

int EngineBucketList::finished_buckets() const {
  if (on_device_) return on_device_->done();
  int finished = 0;
  while (finished < static_cast<int>(spec_.buckets.size()) &&
         buckets_[static_cast<size_t>(finished)].operation.outcome.load(
             std::memory_order_acquire) == Outcome::kComplete)
    ++finished;
  return finished;
}

}  // namespace hvd
