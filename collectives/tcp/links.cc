#include "collectives/tcp/links.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "hvd/error.h"
#include "runtime/base/cut_link.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

// A process that ends closes its links before anybody is told of its death; so long is waited for
// that word, which says more than the end of a link.
constexpr auto kLostGrace = 500ms;
// In a broken epoch, of a rank that lives: it hears of it, too, and then goes on or ends its links.
constexpr auto kSilenceMost = 500ms;
// Of a dead one whose links do not end, as those of a host that was cut off: what it had sent is on
// its way, or lost.
constexpr auto kDeadSilenceMost = 100ms;
constexpr auto kLookAgain = 50ms;  // for longer this process itself may have been stopped

std::vector<int> others(std::vector<int> ranks, int me) {
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::erase(ranks, me);
  return ranks;
}

}  // namespace

Links::Links(Peers& peers, uint32_t id, std::vector<int> ranks, std::string name)
    : peers_(peers),
      me_(peers.world().rank),
      id_(id),
      name_(std::move(name)),
      ranks_(others(std::move(ranks), me_)),
      taken_(ranks_.empty()) {
  if (!taken_) peers_.request_links(id_, ranks_);
}

bool Links::take() {
  if (taken_) return true;
  try {
    std::optional<std::vector<UniqueFd>> sockets = peers_.take_links(id_);
    if (!sockets) return false;
    for (size_t i = 0; i < ranks_.size(); ++i)
      links_.emplace_back(ranks_[i], std::move(sockets->at(i)));
    far_ = std::ranges::any_of(links_, &Link::is_far);
    taken_ = true;
  } catch (const Error& error) {
    break_off(TroubleReason::kLostLink,
              rank_text(peers_, me_) + " got no links to other ranks: " + error.what(), me_);
  }
  return taken_;
}

const Link& Links::to(int rank) const {
  const auto at = std::ranges::lower_bound(ranks_, rank);
  return links_[static_cast<size_t>(at - ranks_.begin())];
}

Link& Links::to(int rank) { return const_cast<Link&>(std::as_const(*this).to(rank)); }

void Links::look() {
  const TimePoint now = Clock::now();
  if (now - looked_for_cuts_ >= kLookForCuts) {
    looked_for_cuts_ = now;
    for (Link& link : links_)
      if (link.awaited_events() != 0) link.look_for_cut();
  }
  const auto lost = std::ranges::find_if(links_, [](const Link& link) { return link.lost(); });
  if (lost == links_.end()) return;
  if (lost_since_ == TimePoint{}) lost_since_ = now;
  if (now - lost_since_ < kLostGrace) return;
  break_off(TroubleReason::kLostLink,
            rank_text(peers_, me_) + " lost its link to " + rank_text(peers_, lost->rank()) + " (" +
                lost->why() +
                "), and nobody knows of its death; look at the network between their hosts",
            lost->rank());
}

void Links::reject(int rank, const std::string& fault) {
  break_off(TroubleReason::kLostLink,
            rank_text(peers_, me_) + " got " + fault + " on its link to " + rank_text(peers_, rank),
            rank);
}

void Links::notice_departure(int rank) {
  break_off(TroubleReason::kLeft, departure_text(peers_, rank, name_), rank);
}

void Links::break_off(TroubleReason reason, const std::string& text, int rank) {
  if (broken_off_) return;
  broken_off_ = true;
  if (peers_.block().trouble.load(std::memory_order_acquire) != 0) return;  // that is the reason
  raise_trouble(peers_, reason, text, std::span(&rank, 1));
}

void Links::say_goodbye(uint64_t sequence) {
  const FrameHeader goodbye{.epoch = peers_.world().epoch,
                            .sequence = sequence,
                            .from = static_cast<uint32_t>(me_),
                            .part = kGoodbyePart,
                            .flags = kGoodbye};
  for (Link& link : links_) link.post(goodbye);
  says_goodbye_ = true;
  looked_ = Clock::now();
  go_on_with_goodbye();
}

// A link may be full of what was sent before. Then its reader has not come to the end of that: it
// is waited for while it reads.
bool Links::go_on_with_goodbye() {
  const bool whole = peers_.block().trouble.load(std::memory_order_acquire) == 0;
  bool moved = false, waits = false;
  uint64_t unread = 0;
  for (Link& link : links_) {
    size_t none = 0;
    if (!link.header_sent()) moved |= link.send(nullptr, 0, &none);
    if ((link.awaited_events() & POLLOUT) == 0 || link.has_ended()) continue;
    waits = true;
    unread += link.unread();
  }
  moved |= std::exchange(unread_, unread) > unread;
  says_goodbye_ = waits && whole && !is_silent_for(kSilenceMost, moved);
  if (says_goodbye_) return moved;
  for (Link& link : links_) link.finish_sending();
  return true;
}

void Links::leave() {
  leaving_ = true;
  looked_ = Clock::now();
}

bool Links::is_hopeless(bool moved) {
  if (broken_off_) return true;
  bool waits = false, for_dead = false;
  if (!moved)
    for (const Link& link : links_) {
      if (link.has_ended()) return true;
      if (link.awaited_events() == 0) continue;
      waits = true;
      for_dead |= peers_.block().fate(link.rank()).dead.load(std::memory_order_acquire) != 0;
    }
  return is_silent_for(for_dead ? kDeadSilenceMost : kSilenceMost, !waits);
}

bool Links::is_silent_for(Clock::duration most, bool moved) {
  const TimePoint now = Clock::now();
  const auto step = std::min<Clock::duration>(now - std::exchange(looked_, now), kLookAgain);
  silence_ = moved ? Clock::duration::zero() : silence_ + step;
  return silence_ >= most;
}

void Links::end() {
  for (Link& link : links_) link.end();
}

std::chrono::milliseconds Links::watch(std::vector<pollfd>& descriptors) const {
  if (!taken_ && peers_.agent_fd() >= 0) descriptors.push_back({peers_.agent_fd(), POLLIN, 0});
  const short also = leaving_ ? POLLRDHUP : 0;
  for (const Link& link : links_)
    if (const short events = link.awaited_events(); events != 0)
      descriptors.push_back({link.fd(), static_cast<short>(events | also), 0});
  if (leaving_ || says_goodbye_) return kLookAgain;
  return lost_since_ == TimePoint{} ? std::chrono::milliseconds::max() : kLostGrace;
}

}  // namespace hvd
