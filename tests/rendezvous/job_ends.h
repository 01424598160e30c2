// hvdrun's and an agent's end of a control stream over TLS on loopback, with the job's
// certificates.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/rendezvous/control_ends.h"

namespace hvd {

inline const std::string kJob = "job-1";

inline Credentials credentials_of(const JobAuthority& authority, const AgentIdentity& whom,
                                  std::optional<Validity> validity = {}) {
  const AgentKey key;
  return key.with(
      authority.certificate(),
      authority.sign(key.request(), whom, validity.value_or(Validity::since(WallClock::now()))));
}

// A server of a job, with room for strangers as `limits` says.
struct JobServer {
  explicit JobServer(Admission::Limits limits = {}, std::vector<std::string> hosts = {"127.0.0.1"},
                     Validity validity = Validity::since(WallClock::now()))
      : authority(kJob, validity) {
    RendezvousServer::Remote remote;
    remote.job = kJob;
    remote.credentials = authority.launcher();
    remote.listeners = listen_on(hosts);
    for (const Listener& listener : remote.listeners) addresses.push_back(listener.address);
    remote.limits = limits;
    remote.audit = [this](const std::string& line) { audit.push_back(line); };
    server = std::make_unique<RendezvousServer>(std::move(remote));
  }

  RendezvousClient::Remote way_in(Credentials credentials,
                                  Clock::duration patience = std::chrono::seconds(20)) const {
    RendezvousClient::Remote remote{{}, std::move(credentials), patience};
    for (const SocketAddress& address : addresses) remote.addresses.push_back(address.text());
    return remote;
  }
  std::unique_ptr<RendezvousClient> agent(int host) const {
    return std::make_unique<RendezvousClient>(way_in(credentials_of(authority, {kJob, host})));
  }
  // Until the audit has a line with these words; what agents say meanwhile is dropped.
  void wait_for_audit(const std::string& words) {
    const Deadline deadline = Deadline::in(std::chrono::seconds(20));
    while (!has_said(words)) {
      INFO("waiting for: " << words);
      wait_readable(server->wake_fd(), deadline);
      server->take();
    }
  }
  bool has_said(const std::string& words) const {
    for (const std::string& line : audit)
      if (line.find(words) != line.npos) return true;
    return false;
  }

  JobAuthority authority;
  std::vector<SocketAddress> addresses;
  std::vector<std::string> audit;
  std::unique_ptr<RendezvousServer> server;
};

inline proto::FromAgent attached(int host) {
  proto::FromAgent message;
  message.mutable_attached()->set_host(host);
  return message;
}

inline proto::ToAgent order(int after_ms) {
  proto::ToAgent message;
  message.mutable_stop()->set_after_ms(after_ms);
  return message;
}

}  // namespace hvd
