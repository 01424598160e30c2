// Times collectives over links: links_benchmark -np N [--raw | --hosts H] [--between NET NET]
// [options, see -np 1 --help].
//
// Ranks are threads, linked by TCP on loopback as ranks of different hosts are; each waits as a
// worker does. With --hosts they lie on so many pretended hosts, as many on each, and ranks of one
// share memory; only there --memory arena makes a difference. With --raw nothing is computed: every
// rank streams as many bytes to the next one as a ring's allreduce would send, and takes as many
// from the one before. With --between each link runs from one network namespace (/proc/PID/ns/net)
// to the other instead of over loopback.
#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "collectives/backends.h"
#include "collectives/tcp/link.h"
#include "runtime/engine/progress.h"
#include "tests/benchmark/collective_rows.h"
#include "tests/benchmark/namespace_link.h"
#include "tests/benchmark/thread_meeting.h"
#include "tests/support/in_process_world.h"

namespace {

using hvd::CollectiveKind;

hvd::DataType type_named(const std::string& name) {
  int type = 0;
  while (hvd::name_of(static_cast<hvd::DataType>(type)) != name) ++type;  // it was checked
  return static_cast<hvd::DataType>(type);
}

class OverLinks final : public hvd::Library {
 public:
  // `hosts`: ranks of each where they share memory.
  OverLinks(hvd::InProcessWorld& world, const std::vector<int>& hosts, int rank,
            const hvd::RowsRequest& request)
      : kind_(request.kind),
        type_(type_named(request.dtype)),
        in_arena_(request.memory == "arena"),
        peers_(world.peers(rank)),
        communicator_(make_communicator(hosts)),
        progress_(*peers_, {}) {
    progress_.hold();
    progress_.add(*communicator_);
    progress_.leave();
  }

  int rank() const override { return communicator_->rank(); }
  int size() const override { return communicator_->size(); }
  std::byte* memory(size_t bytes) override {
    if (!in_arena_) {
      memory_ = hvd::PrivateMemory(bytes);
      return memory_.data();
    }
    hvd::Operation operation;
    operation.kind = hvd::OperationKind::kSegment;
    operation.segment = 1;
    operation.segment_bytes = operation.populate_bytes = (bytes + 4095) / 4096 * 4096;
    complete(operation);
    return arena_.segment(1)->own();
  }

  void barrier() override {
    hvd::Operation operation;
    complete(operation);
  }

  const std::byte* run(std::byte* data, size_t bytes) override {
    const size_t count = bytes / hvd::size_of(type_);
    hvd::Operation operation;
    operation.result = {data, count, type_};
    switch (kind_) {
      case CollectiveKind::kAllreduce:
        operation.kind = hvd::OperationKind::kAllreduce;
        operation.reduction.op = hvd::ReduceOp::kSum;
        break;
      case CollectiveKind::kBroadcast:
        operation.kind = hvd::OperationKind::kBroadcast;
        break;
      case CollectiveKind::kAllgather: {
        const size_t part = count / static_cast<size_t>(size());
        operation.kind = hvd::OperationKind::kAllgather;
        operation.input = {data + part * static_cast<size_t>(rank()) * hvd::size_of(type_), part,
                           type_};
        gathered_.resize(bytes);
        operation.allocate = [this](std::span<const uint64_t>) { return gathered_.data(); };
        complete(operation);
        return gathered_.data();
      }
    }
    complete(operation);
    return data;
  }

  void maximum(std::span<double> values) override {
    hvd::Operation operation;
    operation.kind = hvd::OperationKind::kAllreduce;
    operation.result = {values.data(), values.size(), hvd::DataType::kFloat64};
    operation.reduction.op = hvd::ReduceOp::kMax;
    complete(operation);
  }

 private:
  std::unique_ptr<hvd::Communicator> make_communicator(const std::vector<int>& hosts) {
    if (hosts.empty()) return hvd::make_tcp_communicator(*peers_, arena_, {});
    const uint64_t bytes = hvd::hierarchical_bytes(hosts, true);
    peers_->request_segment(0, bytes);
    arena_.add(std::make_shared<hvd::Segment>(0, *peers_->take_segment(0), bytes,
                                              peers_->world().local_rank, bytes));
    return hvd::make_hierarchical_communicator(*peers_, arena_, {.hosts = hosts});
  }

  void complete(hvd::Operation& operation) {
    progress_.hold();
    communicator_->start(operation);
    hvd::Awaited awaited;
    awaited.operation = &operation;
    awaited.what = [] { return std::string("a collective"); };
    progress_.wait_and_leave(awaited);
    if (operation.outcome != hvd::Outcome::kComplete)
      throw std::runtime_error("not complete: " + operation.error);
  }

  const CollectiveKind kind_;
  const hvd::DataType type_;
  const bool in_arena_;
  const std::unique_ptr<hvd::Peers> peers_;
  hvd::Arena arena_;
  const std::unique_ptr<hvd::Communicator> communicator_;
  hvd::Progress progress_;
  hvd::PrivateMemory memory_;
  std::vector<std::byte> gathered_;
};

class RawStream final : public hvd::Library {
 public:
  RawStream(hvd::InProcessWorld& world, hvd::ThreadMeeting& meeting, int rank)
      : meeting_(meeting), peers_(world.peers(rank)), rank_(rank) {
    const int size = world.size();
    std::vector<int> neighbours = {(rank + 1) % size};
    if (size > 2) neighbours.push_back((rank + size - 1) % size);
    peers_->request_links(0, neighbours);
    links_ = std::move(*peers_->take_links(0));
    for (const hvd::UniqueFd& link : links_) hvd::prepare_link(link.get());
  }

  int rank() const override { return rank_; }
  int size() const override { return meeting_.size(); }
  bool has_result() const override { return false; }
  std::byte* memory(size_t bytes) override {
    memory_ = hvd::PrivateMemory(bytes);
    return memory_.data();
  }
  // Over the links, as what it is compared with meets: ranks leave it as raggedly.
  void barrier() override {
    std::byte token{};
    for (int hop = 1; hop < size(); ++hop) stream(&token, 1, 1);
  }
  void maximum(std::span<double> values) override { meeting_.maximum(rank_, values); }

  const std::byte* run(std::byte* data, size_t bytes) override {
    const auto parts = static_cast<size_t>(size());
    stream(data, bytes, 2 * (parts - 1) * ((bytes + parts - 1) / parts));
    return data;
  }

 private:
  // So many bytes to the next rank and from the one before; from and to all of the tensor, over
  // and over, as the slices of a ring lie.
  void stream(std::byte* data, size_t bytes, size_t end) {
    constexpr size_t kReceiveBytes = 144 * 1024;  // as a ring takes
    size_t sent = 0, received = 0;
    while (sent < end || received < end) {
      bool moved = false;
      const auto take = [&](ssize_t count, size_t& at) {
        if (count < 0 && errno != EAGAIN) throw std::runtime_error(std::strerror(errno));
        if (count > 0) at += static_cast<size_t>(count), moved = true;
      };
      const auto run_from = [&](size_t at) { return std::min(end - at, bytes - at % bytes); };
      if (sent < end)
        take(send(links_.front().get(), data + sent % bytes, hvd::Link::of_one_call(run_from(sent)),
                  MSG_DONTWAIT),
             sent);
      if (received < end)
        take(recv(links_.back().get(), data + received % bytes,
                  std::min(run_from(received), kReceiveBytes), MSG_DONTWAIT),
             received);
      if (!moved) meeting_.wait();
    }
  }

  hvd::ThreadMeeting& meeting_;
  const std::unique_ptr<hvd::Peers> peers_;
  const int rank_;
  std::vector<hvd::UniqueFd> links_;  // to the next, from the one before
  hvd::PrivateMemory memory_;
};

struct Arrangement {
  int size = 0;
  int hosts = 0;  // 0: every rank is on one of its own
  bool raw = false;
  std::string one, other;  // network namespaces; empty: loopback
  int words = 0;           // of the command line, that say so
};

// None where it makes no sense.
std::optional<Arrangement> parse(std::span<char* const> words) {
  Arrangement said;
  size_t at = 1;
  const auto is = [&](const char* name, size_t values) {
    return at + values < words.size() && std::strcmp(words[at], name) == 0;
  };
  if (!is("-np", 1)) return std::nullopt;
  said.size = std::atoi(words[at + 1]);
  for (at += 2; at < words.size();) {
    if (is("--raw", 0)) {
      said.raw = true;
      at += 1;
    } else if (is("--hosts", 1)) {
      said.hosts = std::atoi(words[at + 1]);
      if (said.hosts < 1 || said.size % said.hosts != 0) return std::nullopt;
      at += 2;
    } else if (is("--between", 2)) {
      said.one = words[at + 1];
      said.other = words[at + 2];
      at += 3;
    } else {
      break;
    }
  }
  said.words = static_cast<int>(at);
  if (said.size < 1 || said.size > 64 || (said.raw && said.hosts != 0)) return std::nullopt;
  return said;
}

}  // namespace

int main(int argc, char** argv) {
  const auto said = parse({argv, static_cast<size_t>(argc)});
  if (!said)
    return std::fputs(
               "usage: links_benchmark -np N [--raw | --hosts H] [--between NET NET] [options, see "
               "-np 1 --help]\nN is 1 to 64, and a multiple of H\n",
               stderr),
           2;
  argv[said->words - 1] = argv[0];
  const char* const memories[] = {"private", "arena"};
  try {
    hvd::RowsRequest request;
    const std::span<char* const> arguments(argv + said->words - 1,
                                           static_cast<size_t>(argc - said->words + 1));
    const std::span<const char* const> kinds(memories, said->hosts != 0 ? 2 : 1);
    if (!hvd::parse_rows_request(arguments, kinds, request)) return 0;
    const std::vector<int> shared(static_cast<size_t>(said->hosts),
                                  said->hosts == 0 ? 0 : said->size / said->hosts);
    hvd::InProcessWorld world(said->hosts != 0 ? shared : std::vector{said->size});
    if (!said->one.empty())
      world.make_links_by([&] { return hvd::connected_between(said->one, said->other); });
    hvd::ThreadMeeting meeting(said->size);
    std::atomic<uint64_t> wrong{0};
    {
      std::vector<std::jthread> ranks;
      for (int rank = 0; rank < said->size; ++rank)
        ranks.emplace_back([&, rank] {
          if (said->raw) {
            RawStream library(world, meeting, rank);
            hvd::measure_rows(library, request);
          } else {
            OverLinks library(world, shared, rank, request);
            wrong += hvd::measure_rows(library, request);
          }
        });
    }
    return wrong == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "links_benchmark: %s\n", error.what());
    return 2;
  }
}
