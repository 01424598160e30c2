#include "cli/remote_hosts.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "cli/agent/worker_environment.h"
#include "cli/failure_report.h"
#include "cli/features.h"
#include "cli/interfaces.h"
#include "rendezvous/listener.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

constexpr double kMegabyte = 1e6;
constexpr auto kOthersFail = 200ms;  // of the same cause, as a rule
constexpr auto kCopyIsSlow = 5s;
constexpr size_t kNamesMost = 20;

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

// ", 9 s left"; nothing before there is something to go by.
std::string time_left(uint64_t done, uint64_t all, Clock::duration took) {
  if (done == 0) return "";
  const double left =
      std::chrono::duration<double>(took).count() * double(all - done) / double(done);
  char text[48];
  std::snprintf(text, sizeof text, ", %.0f s left", std::ceil(left));
  return text;
}

// "shipping 812 MB, 40 %, 9 s left"; what is not sent yet is left out until the host has said it.
AwaitedHost shipping(const SshCarrier::Progress& at, TimePoint now) {
  if (at.shipped == at.to_ship) return {"", "looking at what was shipped"};
  char share[32];
  std::snprintf(share, sizeof share, ", %.0f %%", 100 * double(at.shipped) / double(at.to_ship));
  return {"", "shipping",
          " " + size_text(at.to_ship) + share + time_left(at.shipped, at.to_ship, now - at.since)};
}

AwaitedHost copying(const SshCarrier::Progress& at, TimePoint now) {
  char text[64];
  std::snprintf(text, sizeof text, " hvdrun, %.0f of %.0f MB", double(at.copied) / kMegabyte,
                double(at.bytes) / kMegabyte);
  return {"", "copying", text + time_left(at.copied, at.bytes, now - at.since)};
}

std::string tries_text(const SshCarrier::Progress& at) {
  return "tried " + std::to_string(at.attempts) + (at.attempts == 1 ? " time" : " times");
}

AwaitedHost awaited(const SshCarrier::Progress& at, TimePoint now) {
  if (at.judged && (at.queued || at.phase <= StartPhase::kConnecting))
    return {"", tries_text(at), ", " + at.reason.substr(0, at.reason.find_first_of(":;"))};
  if (at.queued) return {"", "waiting for its turn", "", true};
  if (at.phase == StartPhase::kShipping) return shipping(at, now);
  if (at.phase == StartPhase::kCopying) return copying(at, now);
  return {"", std::string(phase_name(at.phase))};
}

}  // namespace

std::vector<std::string> no_agent_lines(const std::vector<FailedHost>& failed,
                                        const std::vector<Host>& hosts) {
  const auto name = [&](size_t i) { return with_user(hosts.at(size_t(failed[i].host))); };
  std::vector<std::string> lines;
  if (failed.size() > kHostLinesMost) {
    const size_t rest = failed.size() - kHostLinesMost;
    std::string line = "no agent on " + std::to_string(rest) + " more hosts: ";
    for (size_t i = 0; i < std::min(rest, kNamesMost); ++i)
      line += (i > 0 ? ", " : "") + name(kHostLinesMost + i);
    lines.push_back(line + (rest > kNamesMost ? ", …" : ""));
  }
  for (size_t i = std::min(failed.size(), kHostLinesMost); i-- > 0;) {
    std::string line =
        failed[i].of_ours ? failed[i].reason : "no agent on " + name(i) + ": " + failed[i].reason;
    std::erase(lines, line);
    lines.push_back(std::move(line));
  }
  return lines;
}

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
          .failed = [this](int host, const std::string& reason) { on_failed({host, reason}); },
          .not_shipped = [this](int host,
                                const std::string& reason) { on_failed({host, reason, true}); },
          .noted = events_.noted,
          .new_keys = events_.new_keys});
}

void RemoteHosts::start(int host) {
  starting_.insert(host);
  carrier_->start(host, spec_.hosts.at(size_t(host)), spec_.start_timeout,
                  Deadline::in(spec_.host_wait));
}

void RemoteHosts::stop() {
  stopped_ = true;
  starting_.clear();
  failed_.clear();
}

void RemoteHosts::excuse(Clock::duration time) { carrier_->excuse(time); }

void RemoteHosts::turn(TimePoint now) {
  if (!stopped_) carrier_->turn(now);
  if (!failed_.empty() && (now >= tell_failed_at_ || starting_.empty())) tell_failed();
  if (stopped_) carrier_->stop();  // not from within a callback of its own
}

void RemoteHosts::tell_failed() {
  std::vector<FailedHost> failed = std::move(failed_);
  for (const int host : starting_)
    if (const auto at = carrier_->progress(host); at && at->judged)
      failed.push_back({host, tries_text(*at) + ": " + at->reason});
  stop();
  events_.failed(failed);
}

std::optional<TimePoint> RemoteHosts::next_deadline() const {
  if (stopped_) return {};
  const auto next = carrier_->next_deadline();
  return failed_.empty() ? next : std::min(next.value_or(tell_failed_at_), tell_failed_at_);
}

// Where hvdrun is seen from there, it listens; where that says nothing (a jump host, an address
// that is translated on the way, or one that only looks like this machine's), on all addresses that
// another host could reach. One of several may be no good (gone since, or not this machine's yet):
// that is said when none is.
std::vector<std::string> RemoteHosts::way_to_hvdrun(const Hello& hello) {
  const std::string& as_seen = hello.hvdrun_address;
  std::vector<std::string> wanted(addresses_.begin(), addresses_.end());
  if (addresses_.contains(as_seen) && is_end_here(as_seen, hello.hvdrun_port)) wanted = {as_seen};
  if (wanted.empty() && is_one_network(hello.identity, look_at_this_host())) wanted = {"127.0.0.1"};
  std::vector<std::string> way;
  std::string why = "this machine has no address that it could reach";
  for (const std::string& address : wanted) {
    auto at = listens_.find(address);
    if (at == listens_.end()) {
      std::vector<Listener> listeners;
      try {
        listeners = listen_on(std::vector<std::string>{address}, spec_.ports);
      } catch (const Error& error) {
        why = error.what();
        continue;
      }
      at = listens_.emplace(address, listeners.front().address.text()).first;
      server_.listen(std::move(listeners));
    }
    way.push_back(at->second);
  }
  if (way.empty()) throw Error(ErrorCode::kUnavailable, why);
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
    on_failed({host, error.what()});
  }
}

void RemoteHosts::on_failed(FailedHost failed) {
  starting_.erase(failed.host);
  if (stopped_) return;
  if (failed_.empty()) tell_failed_at_ = Clock::now() + kOthersFail;
  failed_.push_back(std::move(failed));
}

bool RemoteHosts::sending(TimePoint now) const {
  return std::ranges::any_of(starting_, [&](int host) {
    const auto at = carrier_->progress(host);
    return at && (at->shipped < at->to_ship ||
                  (at->phase == StartPhase::kCopying && now - at->since >= kCopyIsSlow));
  });
}

std::vector<AwaitedHost> RemoteHosts::progress(TimePoint now) const {
  std::vector<AwaitedHost> hosts;
  for (const int host : starting_) {
    const auto at = carrier_->progress(host);
    if (!at) continue;
    AwaitedHost one = awaited(*at, now);
    one.host = spec_.hosts[size_t(host)].name;
    one.details += ", for " + seconds_text(now - at->since);
    hosts.push_back(std::move(one));
  }
  return hosts;
}

}  // namespace hvd
