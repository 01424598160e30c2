#include "cli/remote_hosts.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "cli/agent/worker_environment.h"
#include "cli/features.h"
#include "cli/interfaces.h"
#include "rendezvous/listener.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

constexpr double kMegabyte = 1e6;

// Of the networks that were asked for, if they are here: a login node need not be on them.
std::set<std::string> outward_addresses(const JobSpec& spec) {
  const std::vector<InterfaceAddress> here = look_at_interfaces();
  std::set<std::string> all;
  for (const InterfaceAddress& one : find_network(here, spec.networks)) all.insert(one.address);
  if (!all.empty()) return all;
  for (const InterfaceAddress& one : here)
    if (may_lead_here(one.address)) all.insert(one.address);
  return all;
}

SshCarrier::Options ssh_options(const JobSpec& spec, const StartState& start,
                                const ShipOffer* offer) {
  SshCarrier::Options options{.ssh = spec.ssh,
                              .environment = start.environment,
                              .path = value_in(start.environment, "PATH", kDefaultPath),
                              .offer = offer};
  if (offer != nullptr) options.role.emplace_back("--ship");
  return options;
}

// "shipping 812 MB, 40 %, 9 s left"; what is not sent yet is left out until the host has said it.
std::string shipping_text(const SshCarrier::Progress& at, TimePoint now) {
  if (at.shipped == at.to_ship) return "looking at what was shipped";
  const double share = double(at.shipped) / double(at.to_ship);
  char text[96];
  std::snprintf(text, sizeof text, "shipping %s, %.0f %%", size_text(at.to_ship).c_str(),
                100 * share);
  std::string words = text;
  if (at.shipped == 0) return words;
  const double took = std::chrono::duration<double>(now - at.since).count();
  std::snprintf(text, sizeof text, ", %.0f s left", std::ceil(took * (1 - share) / share));
  return words + text;
}

}  // namespace

RemoteHosts::RemoteHosts(Loop& loop, RendezvousServer& server, const JobAuthority& authority,
                         const JobSpec& spec, const StartState& start, const ShipOffer* offer,
                         Events events)
    : server_(server),
      authority_(authority),
      spec_(spec),
      events_(std::move(events)),
      file_("/proc/self/exe"),
      addresses_(outward_addresses(spec)) {
  carrier_.emplace(
      loop, file_, ssh_options(spec, start, offer),
      SshCarrier::Callbacks{
          .started =
              [this](int host, AgentChannels channels, const std::string& hello) {
                on_started(host, std::move(channels), hello);
              },
          .failed = [this](int host, const std::string& reason) { on_failed(host, reason); }});
}

void RemoteHosts::start(int host, Deadline deadline, Deadline there) {
  starting_.insert(host);
  carrier_->start(host, spec_.hosts.at(size_t(host)), deadline, there);
}

void RemoteHosts::stop() {
  stopped_ = true;
  starting_.clear();
}

void RemoteHosts::excuse(Clock::duration time) { carrier_->excuse(time); }

void RemoteHosts::turn(TimePoint now) {
  if (stopped_)
    carrier_->stop();  // not from within a callback of its own
  else
    carrier_->turn(now);
}

std::optional<TimePoint> RemoteHosts::next_deadline() const {
  return stopped_ ? std::nullopt : carrier_->next_deadline();
}

// Where hvdrun is seen from there, it listens; where that says nothing (a jump host, an address
// that is translated on the way), on all addresses that another host could reach.
std::vector<std::string> RemoteHosts::way_to_hvdrun(const Hello& hello) {
  const std::string& as_seen = hello.hvdrun_address;
  std::vector<std::string> wanted(addresses_.begin(), addresses_.end());
  if (addresses_.contains(as_seen)) wanted = {as_seen};
  if (wanted.empty() && is_one_network(hello.identity, look_at_this_host())) wanted = {"127.0.0.1"};
  std::vector<std::string> way;
  for (const std::string& address : wanted) {
    auto at = listens_.find(address);
    if (at == listens_.end()) {
      std::vector<Listener> listeners = listen_on(std::vector<std::string>{address}, spec_.ports);
      at = listens_.emplace(address, listeners.front().address.text()).first;
      server_.listen(std::move(listeners));
    }
    way.push_back(at->second);
  }
  if (way.empty())
    throw Error(ErrorCode::kUnavailable, "this machine has no address that it could reach");
  return way;
}

void RemoteHosts::on_started(int host, AgentChannels channels, const std::string& bytes) {
  const pid_t ssh = channels.pid;
  if (stopped_) return carrier_->kill_ssh(ssh);
  try {
    const Hello hello = read_hello(bytes, {version(), file_.name(), ""});
    if (!spec_.networks.empty() && find_network(hello.interfaces, spec_.networks).empty())
      throw Error(ErrorCode::kUnavailable, no_such_network(hello.interfaces, spec_.networks));
    proto::Bootstrap way_in;
    for (const std::string& address : way_to_hvdrun(hello)) way_in.add_addresses(address);
    way_in.set_authority(authority_.certificate());
    way_in.set_certificate(authority_.sign(hello.request, host));
    const auto clock = WallClock::now().time_since_epoch();
    way_in.set_clock_s(std::chrono::duration_cast<std::chrono::seconds>(clock).count());
    way_in.set_start_timeout_ms(int(spec_.start_timeout.count()));
    starting_.erase(host);
    events_.started(host, std::move(channels), way_in, hello);
  } catch (const Error& error) {
    carrier_->kill_ssh(ssh);
    on_failed(host, error.what());
  }
}

void RemoteHosts::on_failed(int host, const std::string& reason) {
  starting_.erase(host);
  if (!stopped_) events_.failed(host, reason);
}

bool RemoteHosts::shipping() const {
  return std::ranges::any_of(starting_, [&](int host) {
    const auto at = carrier_->progress(host);
    return at && at->shipped < at->to_ship;
  });
}

std::vector<std::string> RemoteHosts::progress(TimePoint now) const {
  std::vector<std::string> lines;
  for (const int host : starting_) {
    const auto at = carrier_->progress(host);
    if (!at) continue;
    std::string line = spec_.hosts[size_t(host)].name + ": ";
    char text[64];
    if (!at->reason.empty() && (at->queued || at->phase <= StartPhase::kConnecting)) {
      line += "tried " + std::to_string(at->attempts) + (at->attempts == 1 ? " time" : " times") +
              ", " + at->reason.substr(0, at->reason.find_first_of(":;"));
    } else {
      line += at->queued                           ? "waiting for its turn"
              : at->phase == StartPhase::kShipping ? shipping_text(*at, now)
                                                   : std::string(phase_name(at->phase));
    }
    if (!at->queued && at->phase == StartPhase::kCopying) {
      std::snprintf(text, sizeof text, " hvdrun, %.0f of %.0f MB", double(at->copied) / kMegabyte,
                    double(at->bytes) / kMegabyte);
      line += text;
    }
    std::snprintf(text, sizeof text, ", for %.1f s",
                  std::chrono::duration<double>(now - at->since).count());
    lines.push_back(line + text);
  }
  return lines;
}

}  // namespace hvd
