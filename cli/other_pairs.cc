#include "cli/other_pairs.h"

#include <algorithm>

#include "cli/messages.h"
#include "cli/quoted.h"
#include "runtime/base/utf8.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

// Ranks start meanwhile, and a short job is over.
constexpr milliseconds kFirst{1000};
// A kernel forgets no neighbour that is younger than 5 s: of 32 hosts it learns 320 in that time.
constexpr milliseconds kPace{500};
// So it may have had no room for one: after a failure all wait until it has.
constexpr milliseconds kRoom{6000};

}  // namespace

void OtherPairs::begin(std::vector<NetworkProof::Place> places, int first, Clock::duration patience,
                       TimePoint now) {
  places_ = std::move(places);
  patience_ = patience;
  const int hosts = int(places_.size());
  int at = 0;
  for (int i = 0; i < hosts; ++i)
    if (places_[size_t(i)].host == first) at = i;
  left_ = who_is_left(hosts, at);
  for (std::vector<int>& others : left_)
    std::erase_if(others, [&](int whom) { return places_[size_t(whom)].by_all; });
  if (std::ranges::any_of(left_, [](const auto& one) { return !one.empty(); })) due_ = now + kFirst;
}

const NetworkProof::Place* OtherPairs::place_of(int host) const {
  const auto at = std::ranges::find(places_, host, &NetworkProof::Place::host);
  return at == places_.end() ? nullptr : &*at;
}

void OtherPairs::tick(TimePoint now) {
  if (!due_ || now < *due_) return;
  due_.reset();
  for (size_t who = 0; who < places_.size(); ++who) {
    if (left_[who].empty()) continue;
    const NetworkProof::Place& other = places_[size_t(left_[who].back())];
    left_[who].pop_back();
    if (!left_[who].empty()) due_ = now + kPace;
    proto::ToAgent order;
    proto::TryToReach& reach = *order.mutable_try_to_reach();
    reach.set_patience_ms(int(std::chrono::duration_cast<milliseconds>(patience_).count()));
    proto::TryToReach::Peer& peer = *reach.add_peers();
    peer.set_number(other.host);
    peer.set_name(other.name);
    peer.add_addresses(other.listens);
    asked_.emplace(places_[who].host, other.host);
    send_(places_[who].host, order);
  }
}

std::vector<std::string> OtherPairs::note(int host, const proto::Reached& reached, TimePoint now) {
  std::vector<std::string> lines;
  const NetworkProof::Place* who = place_of(host);
  for (const proto::Reached::Try& one : reached.tries()) {
    if (one.carries() || asked_.erase({host, one.peer()}) == 0) continue;
    const NetworkProof::Place* whom = place_of(one.peer());
    if (who == nullptr || whom == nullptr || one.trouble().empty()) continue;
    if (gone_.contains(host) || gone_.contains(one.peer())) continue;
    const std::pair<int, int> pair = std::minmax(host, int(one.peer()));
    if (told_.contains(pair)) continue;
    if (again_.emplace(host, one.peer()).second) {
      left_[size_t(who - places_.data())].push_back(int(whom - places_.data()));
      due_ = now + kRoom;
      continue;
    }
    told_.insert(pair);
    lines.push_back(who->name + " does not reach " + whom->name + " at " + whom->at.address + " (" +
                    whom->at.interface + "): " + printable(head_of(one.trouble(), kReasonMax)) +
                    "; what connects all hosts by itself, as torch's gloo and NCCL do, fails "
                    "between them");
  }
  return lines;
}

}  // namespace hvd
