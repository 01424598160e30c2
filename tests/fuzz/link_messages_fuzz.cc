// Fuzz target: what other ranks send on a link between hosts. Whatever comes, a call of this rank
// completes, is refused and has touched nothing, waits, or ends with its epoch; and none has memory
// that it does not need.
//
// The first byte with kDescription: the rest is what ranks say of a refused operation. Else it says
// how many ranks there are, which one this is, and of what type its tensors are; the next two what
// it calls, one behind the other. What follows is a row of packets (packets.h), each of which goes
// as it is to the link that its own bits name, but for what else they say.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "collectives/tcp/sides.h"
#include "collectives/tcp/tcp_communicator.h"
#include "runtime/base/error.h"
#include "tests/fuzz/packets.h"

// Of AddressSanitizer, where that is; GCC has no header of it.
using Made = void (*)(const void*, size_t);
using Freed = void (*)(const void*);
extern "C" [[gnu::weak]] int __sanitizer_install_malloc_and_free_hooks(Made made, Freed freed);

namespace {

using namespace hvd;

constexpr uint8_t kDescription = 0x80;  // of the first byte
// Of a packet: kRight, its header is one of the operation under way, but for part, flags and
// bytes; kFilled, as many zeros as the header announces come behind it; kEnds, its link ends then.
constexpr uint8_t kLink = 3, kRight = 4, kFilled = 8, kEnds = 16;

constexpr uint32_t kEpoch = 3;
constexpr size_t kFillMost = 256 * 1024;     // by one input
constexpr size_t kGatheredMost = 64 * 1024;  // more has no room here,
constexpr size_t kMemoryMost = 1024 * 1024;  // and more than this is never made
constexpr uint64_t kElementsMost = uint64_t{1} << 56;
constexpr int kTurnsMost = 100'000;

// That the input under way has asked for, where that is watched.
thread_local size_t largest_memory = 0;

struct Shape {
  OperationKind kind;
  size_t bytes;
};
// Every rider, and what flows behind them: by how many ranks there are 72,000 bytes go whole, round
// the ring, or in halves.
constexpr std::array<Shape, 8> kShapes{{{OperationKind::kAllreduce, 24},
                                        {OperationKind::kAllreduce, 72'000},
                                        {OperationKind::kBroadcast, 24},
                                        {OperationKind::kBroadcast, 20'000},
                                        {OperationKind::kAllgather, 24},
                                        {OperationKind::kAllgather, 0},
                                        {OperationKind::kBarrier, 0},
                                        {OperationKind::kSegment, 0}}};

// One rank of several, each on a host of its own, and the other ends of its links.
class AloneOnHost final : public Peers {
 public:
  struct OtherEnd {
    int rank;
    UniqueFd socket;
  };

  AloneOnHost(int rank, int size) {
    world_.epoch = kEpoch;
    world_.rank = world_.cross_rank = rank;
    world_.size = world_.cross_size = size;
    HVD_CHECK(ControlBlock::bytes(1, size) <= sizeof memory_, "room for a block");
    block_->local_size = 1;
    block_->world_size = uint32_t(size);
  }

  std::vector<OtherEnd>& others() { return others_; }

  const World& world() const override { return world_; }
  ControlBlock& block() override { return *block_; }
  StatusPage& status_page() override { return page_; }
  Store& store() override { throw Error(ErrorCode::kInternal, "links need no store"); }
  void request_segment(uint32_t, uint64_t) override {}
  std::optional<std::vector<UniqueFd>> take_segment(uint32_t) override {
    throw Error(ErrorCode::kUnavailable, "there is no memory here");
  }
  bool gives_links() const override { return true; }
  void request_links(uint32_t, std::span<const int> ranks) override {
    for (const int rank : ranks) {
      int ends[2];
      HVD_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0,
                "a pair of sockets");
      own_.emplace_back(ends[0]);
      others_.push_back({rank, UniqueFd(ends[1])});
    }
  }
  std::optional<std::vector<UniqueFd>> take_links(uint32_t) override {
    return std::exchange(own_, {});
  }
  void ring(int, Sleeper) override {}
  int doorbell(Sleeper) const override { return -1; }
  int agent_fd() const override { return -1; }
  std::string lost_agent() override { return ""; }
  void report_broken() noexcept override {}

 private:
  World world_;
  alignas(ControlBlock) std::byte memory_[4096] = {};
  ControlBlock* block_ = new (memory_) ControlBlock{};
  StatusPage page_{};
  std::vector<UniqueFd> own_;
  std::vector<OtherEnd> others_;
};

// What this rank calls, and its memory.
class Call {
 public:
  Call(uint8_t choice, int size, DataType type)
      : size_(size), data_(kShapes[choice % 8].bytes, std::byte{1}), before_(data_) {
    const size_t count = data_.size() / size_of(type);
    operation_.kind = kShapes[choice % 8].kind;
    operation_.result = {data_.data(), count, type};
    operation_.input = {data_.data(), count, type};
    operation_.reduction = {.op = ReduceOp::kSum};
    operation_.root = (choice >> 3) % size;
    operation_.segment_bytes = 4096;
    operation_.allocate = [this](std::span<const uint64_t> counts) { return room_for(counts); };
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Operation& operation() { return operation_; }
  bool pending() const { return operation_.outcome == Outcome::kPending; }
  bool makes_room_for_ever() const { return for_ever_; }
  void check() const {
    if (operation_.outcome != Outcome::kRefused) return;
    HVD_CHECK(!operation_.error.empty(), "refused, and nobody knows why");
    HVD_CHECK(data_ == before_, "a refused operation has touched its tensor");
  }

 private:
  void* room_for(std::span<const uint64_t> counts) {
    HVD_CHECK(counts.size() == size_t(size_), "not a count of each rank");
    uint64_t left = kElementsMost;
    for (const uint64_t count : counts) {
      HVD_CHECK(count <= left, "counts whose sum is no number");
      left -= count;
    }
    const uint64_t bytes = (kElementsMost - left) * size_of(operation_.result.type);
    for_ever_ = bytes > kMemoryMost;
    if (for_ever_) return nullptr;
    if (bytes > kGatheredMost) throw Error(ErrorCode::kUnavailable, "there is no room here");
    room_.resize(bytes);
    return room_.data();
  }

  const int size_;
  std::vector<std::byte> data_;
  const std::vector<std::byte> before_;
  std::vector<std::byte> room_;
  bool for_ever_ = false;
  Operation operation_;
};

class Job {
 public:
  Job(int rank, int size, DataType type, std::array<uint8_t, 2> choices)
      : peers_(rank, size),
        communicator_(peers_, arena_, {}),
        calls_{Call(choices[0], size, type), Call(choices[1], size, type)} {
    for (Call& call : calls_) communicator_.start(call.operation());
    advance();
  }

  void hear(const Packet& packet) {
    AloneOnHost::OtherEnd& from =
        peers_.others()[(packet.control & kLink) % peers_.others().size()];
    std::string message(packet.bytes);
    FrameHeader header;
    if (message.size() >= sizeof header) {
      memcpy(&header, message.data(), sizeof header);
      if ((packet.control & kRight) != 0) put_right(header, from.rank);
      memcpy(message.data(), &header, sizeof header);
      if ((packet.control & kFilled) != 0) fill(message, header.bytes);
    }
    send_all(from.socket.get(), message);
    if ((packet.control & kEnds) != 0) shutdown(from.socket.get(), SHUT_RDWR);
    advance();
    HVD_CHECK(communicator_.missing_ranks().size() < peers_.others().size() + 1,
              "a rank waits for itself");
  }

  // The others end, with or without a reason. Without a clock: each wait sees the end of its link.
  void leave() {
    for (const AloneOnHost::OtherEnd& other : peers_.others())
      shutdown(other.socket.get(), SHUT_RDWR);
    if (!communicator_.idle()) raise_trouble(peers_, TroubleReason::kDeath, "the others are gone");
    communicator_.close();
    for (int turn = 0; !communicator_.drained() && !makes_room_for_ever(); ++turn) {
      HVD_CHECK(turn < kTurnsMost, "the way out has no end");
      communicator_.progress();
    }
    communicator_.fail_rest();
    for (const Call& call : calls_) {
      HVD_CHECK(!call.pending(), "an operation without an outcome");
      call.check();
    }
  }

 private:
  bool makes_room_for_ever() const {
    return std::ranges::any_of(calls_, &Call::makes_room_for_ever);
  }

  void put_right(FrameHeader& header, int from) {
    const Operation& operation = calls_[calls_[0].pending() ? 0 : 1].operation();
    header.magic = FrameHeader::kMagic;
    header.epoch = kEpoch;
    header.sequence = operation.sequence;
    header.hash = operation.hash;
    header.from = uint32_t(from);
  }

  void fill(std::string& message, uint64_t bytes) {
    const size_t part = std::min<uint64_t>(bytes, kFillMost - filled_);
    filled_ += part;
    message.append(part, '\0');
  }

  // As far as the rank reads it.
  void send_all(int socket, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      bytes.remove_prefix(size_t(std::max<ssize_t>(sent, 0)));
      if (!advance() && sent <= 0) return;
    }
  }

  // Until it waits for others; whether anything moved.
  bool advance() {
    int turns = 0;
    while (!makes_room_for_ever() && progress())
      HVD_CHECK(++turns < kTurnsMost, "more moves than there is to move");
    for (const Call& call : calls_) call.check();
    return turns != 0;
  }

  bool progress() {
    bool moved = communicator_.progress();
    std::array<std::byte, 4096> unread;
    for (const AloneOnHost::OtherEnd& other : peers_.others())
      while (recv(other.socket.get(), unread.data(), unread.size(), MSG_DONTWAIT) > 0) moved = true;
    return moved;
  }

  AloneOnHost peers_;
  Arena arena_;
  TcpCommunicator communicator_;
  std::array<Call, 2> calls_;
  size_t filled_ = 0;
};

bool is_same(const Side& one, const Side& other) {
  return one.rank == other.rank && one.hash == other.hash && one.unable == other.unable &&
         one.text == other.text;
}

void read_description(std::string_view bytes) {
  const auto sides = decode_sides(std::as_bytes(std::span(bytes)));
  if (!sides) return;
  const auto again = decode_sides(encode_sides(*sides));
  HVD_CHECK(again && std::ranges::equal(*sides, *again, is_same), "sides change on their way");
  const std::vector<Side> merged = merge_sides(*sides, *again);
  HVD_CHECK(merged.size() <= kSidesMost, "more sides than are told");
  Operation refused;
  set_refusal(refused, merged);
  HVD_CHECK(!refused.error.empty() && refused.error.size() < 2 * kSidesMost * kSideBytesMost,
            "a reason that is none, or has no end");
}

void watch_memory() {
  if (__sanitizer_install_malloc_and_free_hooks == nullptr) return;
  static const int watched = __sanitizer_install_malloc_and_free_hooks(
      [](const void*, size_t bytes) { largest_memory = std::max(largest_memory, bytes); },
      [](const void*) {});
  HVD_CHECK(watched != 0, "nobody else watches");
}

void play(std::string_view bytes) {
  if (bytes.size() < 3) return;
  const auto first = uint8_t(bytes[0]);
  const int size = 2 + (first & 3) % 3;
  Job job((first >> 2 & 3) % size, size, DataType(first >> 4 & 7),
          {uint8_t(bytes[1]), uint8_t(bytes[2])});
  PacketReader packets(bytes.substr(3));
  for (Packet packet; packets.next(packet);) job.hear(packet);
  job.leave();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  if (count == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(bytes), count);
  watch_memory();
  largest_memory = 0;
  if ((bytes[0] & kDescription) != 0)
    read_description(input.substr(1));
  else
    play(input);
  HVD_CHECK(largest_memory <= kMemoryMost, "memory that nobody needs");
  return 0;
}
