#include "tests/collectives/nccl/standin/nccl_rounds.h"

#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "tests/collectives/nccl/standin/nccl_reduce.h"
#include "tests/collectives/nccl/standin/state.h"

namespace hvd {
namespace {

std::vector<std::byte> bytes_of_text(const std::string& text) {
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}

std::vector<Answer> to_all(size_t ranks, int channel, const Frame& frame) {
  std::vector<Answer> answers;
  for (size_t rank = 0; rank < ranks; ++rank)
    answers.push_back({static_cast<int>(rank), channel, frame});
  return answers;
}

std::string text_of(const Header& header) {
  if (header.kind != Message::kCollective) return name_of(header.kind);
  constexpr const char* kNames[] = {"allreduce", "broadcast", "allgather"};
  return std::string(kNames[header.collective]) + " of " + std::to_string(header.count) +
         " of type " + std::to_string(header.type) + " with op " + std::to_string(header.op) +
         " and root " + std::to_string(header.root);
}

// Collectives that differ in any of this hang or are undefined (NCCL user guide, "Collective
// Operations": "each rank … with the same count and the same datatype").
bool is_same(const Header& a, const Header& b) {
  return a.kind == b.kind && a.collective == b.collective && a.count == b.count &&
         a.type == b.type && a.op == b.op && a.root == b.root;
}

// Windows are compared by answer_window(), which says more than a hang.
Header for_comparison(Header header) {
  if (header.kind == Message::kWindow) header.count = 0;
  return header;
}

// NCCL user guide, "User Buffer Registration": where one rank's buffers are registered those of all
// are, and symmetric ones lie at the same place.
Frame perform(const std::vector<Frame>& round) {
  const Header& call = round[0].header;
  for (size_t rank = 1; rank < round.size(); ++rank) {
    if (round[rank].header.place == call.place) continue;
    Frame refusal;
    refusal.header.result = ncclInvalidUsage;
    refusal.body = bytes_of_text(
        "a collective with buffers that are registered, or lie in a "
        "window, otherwise on rank 0 than on rank " +
        std::to_string(rank));
    return refusal;
  }
  const auto type = static_cast<ncclDataType_t>(call.type);
  Frame result;
  switch (static_cast<Collective>(call.collective)) {
    case Collective::kAllReduce: {
      std::vector<Contribution> inputs;
      for (const Frame& frame : round) inputs.push_back({frame.body.data(), frame.header.scalar});
      result.body = reduce(type, call.op, call.count, inputs);
      break;
    }
    case Collective::kBroadcast:
      result.body = round[static_cast<size_t>(call.root)].body;
      break;
    case Collective::kAllGather:
      for (const Frame& frame : round)
        result.body.insert(result.body.end(), frame.body.begin(), frame.body.end());
      break;
  }
  return result;
}

}  // namespace

Rounds::Rounds(int ranks) : calls_(static_cast<size_t>(ranks)) {}

std::vector<Answer> Rounds::take(int rank, int channel, Frame frame) {
  const auto k = static_cast<size_t>(channel);
  calls_[static_cast<size_t>(rank)][k].push_back(std::move(frame));
  std::vector<Answer> answers;
  while (!stuck_[k] && std::none_of(calls_.begin(), calls_.end(),
                                    [k](const auto& of_rank) { return of_rank[k].empty(); })) {
    Round round;
    for (auto& of_rank : calls_) {
      round.push_back(std::move(of_rank[k].front()));
      of_rank[k].pop_front();
    }
    for (Answer& next : answer(channel, round)) answers.push_back(std::move(next));
  }
  return answers;
}

std::vector<Answer> Rounds::answer(int channel, const Round& round) {
  const Header& first = round[0].header;
  for (size_t rank = 1; rank < round.size(); ++rank) {
    const Header& other = round[rank].header;
    if (is_same(for_comparison(first), for_comparison(other))) continue;
    stuck_[static_cast<size_t>(channel)] = true;
    note_mismatch("rank 0 calls " + text_of(first) + ", rank " + std::to_string(rank) + " calls " +
                  text_of(other));
    return {};
  }
  switch (first.kind) {
    case Message::kHello:
      return channel == kControl ? answer_hello(round) : std::vector<Answer>{};
    case Message::kCollective:
      return to_all(round.size(), channel, perform(round));
    case Message::kSplit:
      return answer_split(round);
    case Message::kWindow:
      return answer_window(round);
    case Message::kConnect:
      return to_all(round.size(), channel, {});
    case Message::kFinalize:
      finalized_ = true;
      return to_all(round.size(), channel, {});
    case Message::kReply:
    case Message::kPeerDied:
      break;
  }
  return {};
}

// NCCL's src/init.cc: "Duplicate GPU detected : rank %d and rank %d both on CUDA device %lx", where
// both the host's hash and the bus id are the same.
std::vector<Answer> Rounds::answer_hello(const Round& round) const {
  for (size_t b = 1; b < round.size(); ++b)
    for (size_t a = 0; a < b; ++a) {
      if (round[a].body != round[b].body) continue;
      const std::string place(reinterpret_cast<const char*>(round[a].body.data()),
                              round[a].body.size());
      Frame refusal;
      refusal.header.result = ncclInvalidUsage;
      refusal.body = bytes_of_text("Duplicate GPU detected : rank " + std::to_string(a) +
                                   " and rank " + std::to_string(b) + " both on CUDA device " +
                                   place.substr(place.find(' ') + 1));
      return to_all(round.size(), kControl, refusal);
    }
  return to_all(round.size(), kControl, {});
}

// Ranks of one color, by key and then by their rank (NCCL user guide, ncclCommSplit).
std::vector<Answer> Rounds::answer_split(const Round& round) {
  std::map<int, std::vector<std::pair<int, int>>> colors;
  for (size_t rank = 0; rank < round.size(); ++rank)
    colors[round[rank].header.color].emplace_back(round[rank].header.key, static_cast<int>(rank));
  std::vector<Answer> answers;
  std::random_device random;
  for (auto& [color, members] : colors) {
    std::sort(members.begin(), members.end());
    const uint64_t group = static_cast<uint64_t>(random()) << 32 | random();
    for (size_t k = 0; k < members.size(); ++k) {
      Answer answer{members[k].second, kControl, {}};
      answer.frame.header.rank = static_cast<int>(k);
      answer.frame.header.ranks = static_cast<int>(members.size());
      answer.frame.header.group = group;
      answers.push_back(std::move(answer));
    }
  }
  return answers;
}

// NCCL user guide, ncclCommWindowRegister: the size is the same on all ranks, and with
// NCCL_WIN_COLL_SYMMETRIC the offset to the memory's beginning too.
std::vector<Answer> Rounds::answer_window(const Round& round) const {
  const Header& first = round[0].header;
  Frame reply;
  for (size_t rank = 1; rank < round.size(); ++rank) {
    const Header& other = round[rank].header;
    const bool symmetric = (first.flags & NCCL_WIN_COLL_SYMMETRIC) != 0;
    std::string wrong;
    if (other.count != first.count)
      wrong = "sizes of " + std::to_string(first.count) + " and " + std::to_string(other.count);
    else if (other.flags != first.flags)
      wrong = "flags of " + std::to_string(first.flags) + " and " + std::to_string(other.flags);
    else if (symmetric && other.offset != first.offset)
      wrong = "offsets of " + std::to_string(first.offset) + " and " + std::to_string(other.offset);
    if (wrong.empty()) continue;
    reply.header.result = ncclInvalidArgument;
    reply.body = bytes_of_text("ncclCommWindowRegister with " + wrong + " on ranks 0 and " +
                               std::to_string(rank));
    break;
  }
  return to_all(round.size(), kControl, reply);
}

}  // namespace hvd
