#include "cli/agent/link_requests.h"

#include <utility>

namespace hvd {

void LinkRequests::start_epoch(uint32_t epoch, std::set<int> local_ranks,
                               std::map<int, Place> others) {
  sets_.clear();
  others_ = std::move(others);
  service_.start_epoch(epoch, std::move(local_ranks));
}

void LinkRequests::wanted(const LinksWanted& wanted) {
  for (const int rank : wanted.remote_ranks)
    if (const std::string why = objection(wanted.rank, rank); !why.empty())
      return memory_.refuse_links(wanted, why);
  const size_t number = ++last_;
  const size_t count = wanted.remote_ranks.size();
  sets_[number] = {wanted, count};
  for (size_t place = 0; place < count; ++place) {
    const int rank = wanted.remote_ranks[place];
    const Place& there = others_.at(rank);
    service_.request(
        {wanted.id, wanted.rank, rank, there.host, there.address, Deadline::in(patience_)},
        [this, number, place](UniqueFd link, const std::string& why) {
          arrived(number, place, std::move(link), why);
        });
  }
}

// Why there is no use in calling; of two ranks the lower one's agent does.
std::string LinkRequests::objection(int from, int to) const {
  const auto there = others_.find(to);
  if (there == others_.end())
    return "it is not known where the agent of rank " + std::to_string(to) + " listens";
  if (from > to || there->second.trouble.empty()) return "";
  return "the agent on " + there->second.host + " of rank " + std::to_string(to) +
         " cannot be called: " + there->second.trouble;
}

void LinkRequests::arrived(size_t number, size_t place, UniqueFd link, const std::string& why) {
  const auto at = sets_.find(number);
  if (at == sets_.end()) return;  // refused already, or of an earlier epoch
  Set& set = at->second;
  if (!link) {
    memory_.refuse_links(set.wanted, why);
    sets_.erase(at);
    return;
  }
  memory_.give_link(set.wanted, place, std::move(link));
  if (--set.missing == 0) sets_.erase(at);
}

}  // namespace hvd
