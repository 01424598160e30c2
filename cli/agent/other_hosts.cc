#include "cli/agent/other_hosts.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

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

using namespace std::chrono_literals;

// The shortest that the kernel has seen, which no load of either host makes longer.
int64_t round_trip_us(const UniqueFd& connection) {
  tcp_info facts{};
  socklen_t bytes = sizeof facts;
  if (getsockopt(connection.get(), IPPROTO_TCP, TCP_INFO, &facts, &bytes) != 0) return 0;
  return facts.tcpi_min_rtt;
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

OtherHosts::OtherHosts(Loop& loop, int host, const proto::ListenForLinks& order, uint16_t kept_port,
                       Callbacks callbacks)
    : callbacks_(std::move(callbacks)), patience_(std::chrono::milliseconds(order.patience_ms())) {
  proto::FromAgent message;
  proto::Listening& listening = *message.mutable_listening();
  const PortRange ports{uint16_t(order.port_low()), uint16_t(order.port_high())};
  std::vector<Listener> listeners;
  for (const std::string& address : order.addresses()) {
    std::string* place = listening.add_addresses();
    std::string* trouble = listening.add_troubles();
    try {
      for (Listener& one : listen_on(std::vector{address}, ports, kept_port))
        *place = listeners.emplace_back(std::move(one)).address.text();
    } catch (const std::exception& error) {
      *trouble = text_of(error);
    }
  }
  callbacks_.send(message);
  links_ = std::make_unique<LinkService>(loop, host, std::move(listeners), Secret(order.secret()));
}

void OtherHosts::on(const proto::TryToReach& order) {
  const Deadline deadline = Deadline::in(std::chrono::milliseconds(order.patience_ms()));
  for (const proto::TryToReach::Peer& peer : order.peers()) {
    for (int offer = 0; offer < peer.addresses_size(); ++offer)
      prove(peer.number(), offer, false, peer.addresses(offer), deadline);
    for (int offer = 0; offer < peer.carry_size(); ++offer)
      prove(peer.number(), offer, true, peer.carry(offer), deadline);
  }
}

void OtherHosts::prove(int peer, int offer, bool carries, const std::string& address,
                       Deadline deadline) {
  if (address.empty()) return;
  proto::Reached::Try result;
  result.set_peer(peer);
  result.set_offer(offer);
  result.set_carries(carries);
  links_->prove({peer, uint32_t(offer), carries, SocketAddress::parse(address), deadline},
                [this, result](const UniqueFd& there, const std::string& why,
                               Clock::duration carried) mutable {
                  if (there) result.set_round_trip_us(round_trip_us(there));
                  if (there && result.carries()) result.set_carried_us(carried / 1us);
                  result.set_trouble(why);
                  *reached_.add_tries() = result;
                });
}

void OtherHosts::on(const proto::LinksAt& order) {
  links_->settle(SocketAddress::parse(order.address()));
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
  events.broken = [this](const Breakage& breakage) {
    proto::FromAgent message;
    proto::Broken& broken = *message.mutable_broken();
    broken.set_epoch(breakage.epoch);
    broken.set_reason(breakage.reason);
    broken.mutable_waited_for()->Add(breakage.waited_for.begin(), breakage.waited_for.end());
    broken.set_lost_link(breakage.lost_link);
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

void OtherHosts::on(const proto::Broken& broken) {
  memory_->hear_of_trouble({broken.epoch(),
                            broken.reason(),
                            {broken.waited_for().begin(), broken.waited_for().end()},
                            broken.lost_link()});
}

void OtherHosts::on(const proto::StoreAnswer& answer) {
  const auto at = std::find(ranks_.begin(), ranks_.end(), answer.rank());
  if (at != ranks_.end()) memory_->answer_store(int(at - ranks_.begin()), from_proto(answer));
}

void OtherHosts::tick(TimePoint now) {
  links_->tick(now);
  if (reached_.tries_size() > 0) {
    proto::FromAgent message;
    *message.mutable_reached() = std::exchange(reached_, {});
    callbacks_.send(message);
  }
  for (const std::string& line : links_->take_refusals()) callbacks_.say("links: " + line);
}

}  // namespace hvd
