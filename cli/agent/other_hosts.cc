#include "cli/agent/other_hosts.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "cli/agent/system_error_text.h"
#include "cli/messages.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

// On the address that hvdrun chose, else on the one from which it is reached from here.
std::vector<Listener> listen(const proto::ListenForLinks& order,
                             std::span<const std::string> hvdrun) {
  std::string host = order.address();
  for (size_t i = 0; i < hvdrun.size() && host.empty(); ++i) {
    const SocketAddress here = SocketAddress::source_towards(SocketAddress::parse(hvdrun[i]));
    if (!here.empty()) host = here.host();
  }
  if (host.empty())
    throw Error(ErrorCode::kUnavailable, "no address of this host is known to other hosts");
  return listen_on(std::vector{host}, {uint16_t(order.port_low()), uint16_t(order.port_high())});
}

LinkRequests::Place place_of(const proto::OtherHost& host) {
  LinkRequests::Place place{host.name(), {}, host.trouble()};
  if (place.trouble.empty()) place.address = SocketAddress::parse(host.address());
  return place;
}

}  // namespace

std::vector<int> started_as(const proto::StartEpoch& start) {
  std::map<int, int> all;
  for (int i = 0; i < start.ranks_size() && i < start.worlds_size(); ++i)
    all[start.worlds(i).rank()] = start.ranks(i);
  for (const proto::OtherHost& host : start.others())
    for (int i = 0; i < host.ranks_size() && i < host.numbers_size(); ++i)
      all[host.numbers(i)] = host.ranks(i);
  std::vector<int> ranks;
  for (const auto& [number, rank] : all) ranks.push_back(rank);
  return ranks;
}

// Without a listener the job goes on: most programs need no links.
OtherHosts::OtherHosts(Loop& loop, const proto::ListenForLinks& order,
                       std::span<const std::string> hvdrun, Callbacks callbacks)
    : callbacks_(std::move(callbacks)), patience_(std::chrono::milliseconds(order.patience_ms())) {
  proto::FromAgent message;
  std::vector<Listener> listeners;
  try {
    listeners = listen(order, hvdrun);
    message.mutable_listening()->set_address(listeners.front().address.text());
  } catch (const std::exception& error) {
    message.mutable_listening()->set_trouble(text_of(error));
  }
  callbacks_.send(message);
  links_ = std::make_unique<LinkService>(loop, std::move(listeners), Secret(order.secret()));
}

void OtherHosts::add_to(HostMemoryEvents& events, std::vector<int> ranks) {
  ranks_ = std::move(ranks);
  events.links_wanted = [this](const LinksWanted& wanted) { requests_->wanted(wanted); };
  events.died = [this](uint32_t epoch, int slot) {
    proto::FromAgent message;
    message.mutable_died()->set_epoch(epoch);
    message.mutable_died()->add_ranks(ranks_.at(size_t(slot)));
    callbacks_.send(message);
  };
  events.quiet = [this](uint32_t epoch, int slot) {
    proto::FromAgent message;
    message.mutable_quiet()->set_epoch(epoch);
    message.mutable_quiet()->add_ranks(ranks_.at(size_t(slot)));
    callbacks_.send(message);
  };
  events.broken = [this](const Breakage& breakage) {
    proto::FromAgent message;
    proto::Broken& broken = *message.mutable_broken();
    broken.set_epoch(breakage.epoch);
    broken.set_reason(breakage.reason);
    broken.mutable_waited_for()->Add(breakage.waited_for.begin(), breakage.waited_for.end());
    callbacks_.send(message);
  };
  events.store_asked = [this](int slot, const AgentMessage& question) {
    proto::FromAgent message;
    *message.mutable_store_question() = to_proto(question, ranks_.at(size_t(slot)));
    callbacks_.send(message);
  };
}

void OtherHosts::use(HostMemory& memory) {
  memory_ = &memory;
  requests_ = std::make_unique<LinkRequests>(*links_, memory, patience_);
}

void OtherHosts::start_epoch(const proto::StartEpoch& start) {
  std::set<int> here;
  for (const proto::World& world : start.worlds()) here.insert(world.rank());
  std::map<int, LinkRequests::Place> others;
  std::map<int, int> first_of_host;  // by rank
  HostNames names;
  if (!here.empty() && start.others_size() > 0) names[*here.begin()] = start.worlds(0).host();
  for (const int rank : here) first_of_host[rank] = *here.begin();
  for (const proto::OtherHost& host : start.others()) {
    const LinkRequests::Place place = place_of(host);
    const auto first = std::min_element(host.numbers().begin(), host.numbers().end());
    if (first != host.numbers().end()) names[*first] = host.name();
    for (const int number : host.numbers()) {
      others[number] = place;
      first_of_host[number] = *first;
    }
  }
  std::vector<int> firsts;
  for (const auto& [rank, first] : first_of_host) firsts.push_back(first);
  memory_->know_hosts(std::move(firsts), std::move(names));
  requests_->start_epoch(start.epoch(), std::move(here), std::move(others));
}

void OtherHosts::on(const proto::Died& died) {
  memory_->hear_of_deaths(died.epoch(), std::vector(died.ranks().begin(), died.ranks().end()));
}

void OtherHosts::on(const proto::Quiet& quiet) {
  memory_->hear_of_quiet(quiet.epoch(), std::vector(quiet.ranks().begin(), quiet.ranks().end()));
}

void OtherHosts::on(const proto::Broken& broken) {
  memory_->hear_of_trouble(
      {broken.epoch(), broken.reason(), {broken.waited_for().begin(), broken.waited_for().end()}});
}

void OtherHosts::on(const proto::StoreAnswer& answer) {
  const auto at = std::find(ranks_.begin(), ranks_.end(), answer.rank());
  if (at != ranks_.end()) memory_->answer_store(int(at - ranks_.begin()), from_proto(answer));
}

void OtherHosts::tick(TimePoint now) {
  links_->tick(now);
  for (const std::string& line : links_->take_refusals()) callbacks_.say("links: " + line);
}

}  // namespace hvd
