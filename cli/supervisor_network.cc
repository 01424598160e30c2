// How the hosts of a job reach each other: where their agents listen, and the proof of it.
#include <signal.h>

#include <algorithm>
#include <utility>

#include "cli/supervisor_impl.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

// For an answer of an address: SYNs that are lost go out again after 1 and 3 s.
constexpr milliseconds kAnswerPatience{5000};

constexpr int kUnreachedSaid = 8;  // pairs of hosts; the job's log has all

// For the agents of two hosts to meet. Ranks wait in init() for --start-timeout: by then they
// should have been told which host it is.
milliseconds link_patience(milliseconds start_timeout) { return start_timeout * 3 / 4; }

}  // namespace

bool Supervisor::in_one_network() const {
  return !authority_ || std::all_of(agents_.begin(), agents_.end(), [&](const auto& one) {
    return is_one_network(one->identity, agents_.front()->identity);
  });
}

// Tells the agents to listen for links, ahead of their workers, so that the answer is here before
// any of them can ask for an epoch. True: it has to be proven at which addresses they are.
bool Supervisor::begin_links() {
  if (agents_.size() < 2) return false;
  const bool one_network = in_one_network();
  std::vector<NetworkProof::Party> parties;
  for (const auto& agent : agents_) {
    const bool ours = is_one_network(agent->identity, here_);
    std::vector<Offer> offers{Offer{{"lo", "127.0.0.1"}}};
    if (!one_network)
      offers = offers_of(agent->interfaces, spec_.networks, ours ? address_here_ : agent->by_ssh);
    proto::ToAgent order;
    proto::ListenForLinks& links = *order.mutable_listen_for_links();
    links.set_secret(std::string(link_secret_.view()));
    for (const Offer& one : offers) links.add_addresses(one.at.address);
    links.set_port_low(spec_.ports.low);
    links.set_port_high(spec_.ports.high);
    links.set_keep_port(is_on(0, *agent));
    links.set_patience_ms(int(link_patience(spec_.start_timeout).count()));
    agent->order(server_, order);
    if (one_network) agent->place = offers.front().at;
    parties.push_back({agent->number(), agent->host().name, std::move(offers), ours});
  }
  if (one_network) return false;
  network_.begin(std::move(parties), slots_.front().host, !spec_.networks.empty(),
                 std::min(kAnswerPatience, link_patience(spec_.start_timeout)), Clock::now());
  return true;
}

// Of hosts on one network each has one address; without it the job goes on: most programs need no
// links.
void Supervisor::on_listening(HostAgent& agent, const proto::Listening& listening) {
  if (network_.going())
    network_.note(agent.number(), listening, Clock::now());
  else
    relay_.note(agent.number(), listening);
}

void Supervisor::prove_network(TimePoint now) {
  if (membership_.ending()) return;
  const auto verdict = network_.decide(now);
  if (!verdict) return;
  if (!verdict->trouble.empty())
    return tell(event::EndAsked{EndCause::kOwnFailure, SIGTERM, verdict->trouble});
  for (const NetworkProof::Place& place : verdict->places) {
    HostAgent& agent = *agent_of(place.host);
    agent.place = place.at;
    proto::Listening there;
    there.add_addresses(place.listens);
    there.add_troubles("");
    relay_.note(place.host, there);
    proto::ToAgent order;
    order.mutable_links_at()->set_address(place.listens);
    agent.order(server_, order);
    log_.reached(place.name, place.at.address, place.at.interface, place.why);
  }
  if (wants_warnings(spec_)) say(network_note(verdict->places));
  other_pairs_.begin(verdict->places, slots_.front().host, kAnswerPatience, now);
  tell(event::NetworkProven{});
}

// Once the network is proven, of pairs that are tried while ranks run. Who ends the job ends what
// there is to reach.
void Supervisor::on_reached(HostAgent& agent, const proto::Reached& reached) {
  if (network_.going()) return network_.note(agent.number(), reached);
  if (membership_.ending()) return;
  for (const std::string& line : other_pairs_.note(agent.number(), reached, Clock::now())) {
    log_.unreached(line);
    if (!wants_warnings(spec_) || ++unreached_ > kUnreachedSaid + 1) continue;
    try_say(unreached_ <= kUnreachedSaid
                ? line
                : "more hosts do not reach each other; --verbose names them all");
  }
}

}  // namespace hvd
