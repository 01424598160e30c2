// The part of HostMemory that passes on what ranks ask for of other hosts: links.
#include <algorithm>
#include <map>
#include <utility>

#include "cli/agent/host_memory_impl.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

constexpr size_t kLinkSetsMax = 65'536;  // of a rank in an epoch, as many as segments

}  // namespace

// In the block before any rank has it.
void HostMemory::Impl::write_hosts() {
  std::vector<int> firsts = std::exchange(first_of_host, {});
  if (firsts.empty()) firsts.resize(static_cast<size_t>(epoch->world_size()));
  if (firsts.size() != static_cast<size_t>(epoch->world_size()))
    throw Error(ErrorCode::kInternal, "an epoch cannot start on this host: hosts are known of " +
                                          std::to_string(firsts.size()) + " ranks");
  std::map<int, uint32_t> ranks_of;
  for (const int first : firsts) ++ranks_of[first];
  for (size_t rank = 0; rank < firsts.size(); ++rank) {
    FateWords& words = epoch->block().fate(static_cast<int>(rank));
    words.host_first = static_cast<uint32_t>(firsts[rank]);
    words.host_ranks = ranks_of[firsts[rank]];
  }
}

void HostMemory::know_hosts(std::vector<int> first_of_host, HostNames names) {
  impl_->first_of_host = std::move(first_of_host);
  impl_->host_names = std::move(names);
}

void HostMemory::Impl::want_links(Slot& slot, const AgentMessage& message) {
  LinksWanted wanted{slot_number(slot), message.epoch, message.id,
                     ranks[static_cast<size_t>(slot.local_rank)], decode_ranks(message)};
  const std::string why = objection_to_links(slot, wanted);
  slot.links_asked.insert(wanted.id);
  if (why.empty())
    events.links_wanted(wanted);
  else
    refuse_links(wanted, why);
}

std::string HostMemory::Impl::objection_to_links(const Slot& slot,
                                                 const LinksWanted& wanted) const {
  const std::string what = "links " + std::to_string(wanted.id);
  if (!events.links_wanted) return what + ": this agent connects no hosts";
  if (slot.links_asked.contains(wanted.id)) return what + " were asked for twice";
  if (slot.links_asked.size() >= kLinkSetsMax)
    return what + " are too many; an epoch has " + std::to_string(kLinkSetsMax);
  std::vector<int> sorted = wanted.remote_ranks;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    return what + ": a rank is named twice";
  for (const int rank : sorted) {
    if (rank < 0 || rank >= epoch->world_size())
      return what + ": there is no rank " + std::to_string(rank);
    if (elsewhere.here[static_cast<size_t>(rank)])
      return what + ": rank " + std::to_string(rank) + " is on this host";
  }
  return "";
}

void HostMemory::Impl::refuse_links(const LinksWanted& wanted, const std::string& why) {
  AgentMessage answer;
  answer.kind = AgentMessage::kLinksRefused;
  answer.body = to_bytes(why);
  answer_links(wanted, std::move(answer), {});
}

void HostMemory::Impl::answer_links(const LinksWanted& wanted, AgentMessage answer,
                                    const Descriptors& links) {
  const Slot& slot = slots[static_cast<size_t>(wanted.slot)];
  if (!in_epoch(slot) || epoch->epoch() != wanted.epoch || slot.connection == nullptr) return;
  answer.epoch = wanted.epoch;
  answer.id = wanted.id;
  if (links.fds.empty())
    send(*slot.connection, answer);
  else
    send_descriptors(*slot.connection, answer, links);
}

void HostMemory::give_link(const LinksWanted& wanted, size_t place, UniqueFd link) {
  HVD_CHECK(place < wanted.remote_ranks.size(), "a link that was asked for");
  const auto owner = std::make_shared<UniqueFd>(std::move(link));
  AgentMessage answer;
  answer.kind = AgentMessage::kLink;
  answer.value = static_cast<int64_t>(place);
  impl_->answer_links(wanted, std::move(answer), {{owner->get()}, owner});
}

void HostMemory::refuse_links(const LinksWanted& wanted, const std::string& why) {
  impl_->refuse_links(wanted, why);
}

}  // namespace hvd
