#include "cli/epoch_relay.h"

#include <numeric>

#include "cli/messages.h"

namespace hvd {

void EpochRelay::start(const action::StartEpoch& start) {
  epoch_ = start.epoch;
  places_.clear();
  numbers_.clear();
  hosts_.clear();
  gone_.clear();
  dead_.clear();
  died_ = {};
  broken_ = false;
  std::map<int, proto::StartEpoch> orders;  // by host
  std::map<int, proto::OtherHost> others;
  for (const action::Member& member : start.members) {
    proto::StartEpoch& order = orders[member.host];
    order.set_epoch(start.epoch);
    order.add_ranks(member.rank);
    to_proto(member.world, *order.add_worlds());
    proto::OtherHost& other = others[member.host];
    other.set_name(member.world.host);
    other.add_ranks(member.rank);
    other.add_numbers(member.world.rank);
    hosts_.insert(member.host);
    numbers_[member.rank] = int(places_.size());
    places_.push_back({member.host, member.rank});
  }
  start_store();
  for (auto& [host, other] : others) {
    const ListensAt there = listens_at(listening_[host], 0);
    other.set_address(there.address);
    other.set_trouble(there.trouble);
  }
  for (auto& [host, order] : orders) {
    for (const auto& [number, other] : others)
      if (number != host) *order.add_others() = other;
    proto::ToAgent message;
    *message.mutable_start_epoch() = std::move(order);
    send_(host, message);
  }
}

bool EpochRelay::is_member(int host, int rank) const {
  const auto number = numbers_.find(rank);
  return number != numbers_.end() && places_[size_t(number->second)].host == host;
}

void EpochRelay::note(int host, const proto::Died& died) {
  if (died.epoch() != epoch_) return;
  for (const int rank : died.ranks()) {
    if (!is_member(host, rank) || !dead_.insert(rank).second) continue;
    note_end(rank);
    died_.ranks.push_back(rank);
    died_.from.insert(host);
    broken_ = true;  // each host says by itself who died
    if (store_) store_->broken("rank " + std::to_string(numbers_.at(rank)) + " has died");
  }
}

// The first reason is that of all hosts that have none of their own.
bool EpochRelay::note(int host, const proto::Broken& broken) {
  if (broken.epoch() != epoch_ || !hosts_.contains(host) || std::exchange(broken_, true))
    return false;
  if (store_) store_->broken(broken.reason());
  proto::ToAgent order;
  *order.mutable_broken() = broken;
  tell_all_but({host}, order);
  return true;
}

void EpochRelay::note(int host, const proto::StoreQuestion& question, TimePoint now) {
  if (question.epoch() != epoch_ || !store_ || !is_member(host, question.rank()) ||
      !proto::StoreQuestion::Kind_IsValid(question.kind()) ||
      question.key().size() > kAgentMessageKeyMax || question.body().size() > kAgentMessageBodyMax)
    return;  // no agent of ours passes that on
  store_->handle(numbers_.at(question.rank()), from_proto(question), now);
}

void EpochRelay::note_end(int rank) {
  const auto number = numbers_.find(rank);
  if (number == numbers_.end()) return;
  gone_.insert(rank);
  if (store_) store_->ended(number->second);
}

void EpochRelay::lose(int host, const std::string& why) {
  proto::Died died;
  died.set_epoch(epoch_);
  for (const Place& place : places_)
    if (place.host == host && !gone_.contains(place.rank)) died.add_ranks(place.rank);
  if (died.ranks().empty()) return;
  proto::Broken broken;  // ahead of the deaths, so that it is the reason
  broken.set_epoch(epoch_);
  broken.set_reason(why);
  note(host, broken);
  note(host, died);
}

// A host drops what it hears of its own ranks.
void EpochRelay::flush() {
  const News news = std::exchange(died_, {});
  if (news.ranks.empty()) return;
  proto::ToAgent order;
  order.mutable_died()->set_epoch(epoch_);
  order.mutable_died()->mutable_ranks()->Add(news.ranks.begin(), news.ranks.end());
  tell_all_but(news.from.size() == 1 ? news.from : std::set<int>{}, order);
}

void EpochRelay::tell_all_but(const std::set<int>& hosts, const proto::ToAgent& order) const {
  for (const int host : hosts_)
    if (!hosts.contains(host)) send_(host, order);
}

void EpochRelay::start_store() {
  store_.reset();
  if (hosts_.size() < 2) return;
  std::vector<int> numbers(places_.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  store_ = std::make_unique<StoreService>(
      epoch_, std::move(numbers), [this](int number, const AgentMessage& answer) {
        const Place& place = places_.at(size_t(number));
        proto::ToAgent order;
        *order.mutable_store_answer() = answer_to_proto(answer, place.rank);
        send_(place.host, order);
      });
}

}  // namespace hvd
