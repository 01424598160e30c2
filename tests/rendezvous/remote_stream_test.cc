// The control stream over TLS: who an agent is, what it may say, and which address answers first.
#include <fcntl.h>
#include <google/protobuf/descriptor.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>

#include <string>

#include "rendezvous/permission.h"
#include "tests/rendezvous/job_ends.h"
#include "tests/rendezvous/tls_peer.h"
#include "tests/support/longest_pause.h"

namespace hvd {
namespace {

// Of each of this process's sockets that is connected to `peer`.
std::vector<int> options(const SocketAddress& peer, int level, int name) {
  std::vector<int> all;
  for (int fd = 0; fd < 256; ++fd) {
    int value = 0;
    socklen_t bytes = sizeof value;
    if (SocketAddress::peer_of(fd) == peer && getsockopt(fd, level, name, &value, &bytes) == 0)
      all.push_back(value);
  }
  return all;
}

// Who is connected to `here`, where this process listens.
SocketAddress caller_of(const SocketAddress& here) {
  for (int fd = 0; fd < 256; ++fd)
    if (SocketAddress peer = SocketAddress::peer_of(fd);
        !peer.empty() && SocketAddress::local_of(fd) == here)
      return peer;
  return {};
}

// The port of an address where nobody listens, and nobody will while this lives.
struct Deaf {
  Deaf() : socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const SocketAddress any = SocketAddress::of("127.0.0.1", 0);
    REQUIRE(bind(socket.get(), any.get(), any.size()) == 0);
    address = SocketAddress::local_of(socket.get());
  }
  UniqueFd socket;
  SocketAddress address;
};

}  // namespace

TEST_CASE(
    "remote stream: an agent attaches by its certificate; messages arrive in order, both ways") {
  JobServer job;
  const auto agent = job.agent(3);
  job.server->permit(3, {0, 1});
  agent->send(attached(3));
  for (int i = 0; i < 200; ++i) agent->send(claimed(i % 2));
  const auto got = at_server(*job.server, [](auto& all) { return all.messages.size() == 201; });
  CHECK(got.host == 3);
  for (int i = 0; i < 200; ++i) REQUIRE(got.messages[size_t(i + 1)].claimed().rank() == i % 2);
  for (int i = 0; i < 200; ++i) job.server->send(got.session, order(i));
  const auto orders = at_client(*agent, [](auto& all) { return all.messages.size() == 200; });
  for (int i = 0; i < 200; ++i) REQUIRE(orders.messages[size_t(i)].stop().after_ms() == i);
  agent->finish();
  CHECK(at_server(*job.server, [](auto& all) { return all.closed; }).host == 3);
  CHECK(at_client(*agent, [](auto& all) { return all.closed; }).why.empty());
  CHECK(job.server->refused() == 0);
}

TEST_CASE("remote stream: many agents at once, each known by its own number") {
  // The others wait their turn, or, from one address, as behind a NAT, are turned away and come
  // again.
  const size_t from_one = GENERATE(4, 2);
  const std::chrono::seconds long_enough(60);  // nobody is late, however slow this machine
  JobServer job(
      {.all = 4, .per_address = from_one, .patience = long_enough, .at_least = long_enough});
  std::vector<std::unique_ptr<RendezvousClient>> agents;
  for (int host = 0; host < 12; ++host) {
    agents.push_back(job.agent(host));
    agents.back()->send(attached(host));
  }
  std::set<int> seen;
  const Deadline deadline = Deadline::in(std::chrono::seconds(60));
  while (seen.size() < 12) {
    wait_readable(job.server->wake_fd(), deadline);
    for (const auto& news : job.server->take())
      for (const auto& message : news.messages) {
        REQUIRE(news.host == message.attached().host());
        seen.insert(*news.host);
      }
  }
  CHECK(job.server->refused() == 0);  // nothing is said of them
}

TEST_CASE("remote stream: connections that an agent gives up for another are no strangers") {
  JobServer job({.patience = std::chrono::seconds(60)});
  job.server->expect_from(1, {"127.0.0.4"});
  const auto connect_from = [&](const char* address) {
    return connect_plainly(job.addresses[0], std::chrono::seconds(10), address);
  };
  std::vector<UniqueFd> open;
  for (const char* address : {"127.0.0.1", "127.0.0.4"}) {
    connect_from(address).reset();
    open.push_back(connect_from(address));
  }
  connect_from("127.0.0.5").reset();  // nobody's
  const auto agent = job.agent(1);
  agent->send(attached(1));
  at_server(*job.server, has_message);
  open.clear();
  job.server->close_door();  // all have come
  job.wait_for_audit("refused 127.0.0.5: it went without proving who it is");
  CHECK(job.server->refused() == 1);
}

TEST_CASE("remote stream: both ends negotiate TLS 1.3, and give up on a silent network") {
  JobServer job;
  const Credentials good = credentials_of(job.authority, {kJob, 0});
  const TlsOutcome by_server = connect_by_tls(job.addresses.front(), &good);
  CHECK(by_server.talked_to);
  CHECK(by_server.version == "TLSv1.3");

  const auto agent = job.agent(1);
  agent->send(attached(1));
  const auto got = at_server(*job.server, has_message);
  const SocketAddress& there = job.addresses.front();
  CHECK(options(there, IPPROTO_TCP, TCP_USER_TIMEOUT) == std::vector{0});
  CHECK(options(caller_of(there), IPPROTO_TCP, TCP_USER_TIMEOUT) == std::vector{10'000});
  CHECK(options(there, SOL_SOCKET, SO_KEEPALIVE) == std::vector{1});
  CHECK(options(there, IPPROTO_TCP, TCP_KEEPIDLE) == std::vector{3});
  CHECK(options(there, IPPROTO_TCP, TCP_KEEPINTVL) == std::vector{1});
  CHECK(options(there, IPPROTO_TCP, kRtoMaxMs) == expected_pauses(1000));
  CHECK(options(caller_of(there), IPPROTO_TCP, kRtoMaxMs) == expected_pauses(1000));
  CHECK_FALSE(agent->is_cut());

  std::vector<Listener> listeners = listen_on(std::vector<std::string>{"127.0.0.1"});
  fcntl(listeners[0].socket.get(), F_SETFL, 0);
  const RendezvousClient client({{listeners[0].address.text()},
                                 credentials_of(job.authority, {kJob, 0}),
                                 std::chrono::seconds(20)});
  const TlsOutcome by_client = answer_by_tls(listeners[0].socket.get(), job.authority.launcher());
  CHECK(by_client.talked_to);
  CHECK(by_client.version == "TLSv1.3");
}

TEST_CASE("remote stream: the address that answers is taken, whatever the others do") {
  JobServer job;
  const Deaf deaf;
  const std::vector<Listener> silent = listen_on(std::vector<std::string>{"127.0.0.1"});
  setenv("http_proxy", ("http://" + deaf.address.text()).c_str(), 1);
  setenv("grpc_proxy", ("http://" + deaf.address.text()).c_str(), 1);
  RendezvousClient::Remote remote = job.way_in(credentials_of(job.authority, {kJob, 0}));
  remote.addresses.insert(remote.addresses.begin(),
                          {deaf.address.text(), silent[0].address.text()});
  RendezvousClient agent(std::move(remote));
  agent.send(attached(0));
  CHECK(at_server(*job.server, has_message).host == 0);
  unsetenv("http_proxy");
  unsetenv("grpc_proxy");
}

TEST_CASE("remote stream: when none answers, each address is named with what it said") {
  const JobAuthority authority(kJob);
  const Deaf deaf;
  const std::vector<Listener> silent = listen_on(std::vector<std::string>{"127.0.0.1"});
  RendezvousClient agent({{deaf.address.text(), silent[0].address.text()},
                          credentials_of(authority, {kJob, 0}),
                          std::chrono::seconds(1)});
  agent.send(attached(0));
  CHECK(at_client(agent, [](auto& all) { return all.closed; }).why ==
        "cannot reach hvdrun within 1 s; where a firewall stands between, open it for "
        "--port-range, or name another network (--network-interface); " +
            deaf.address.text() + ": connection refused; " + silent[0].address.text() +
            ": no answer");
  RendezvousClient nowhere({{"nowhere"}, credentials_of(authority, {kJob, 0}), {}});
  CHECK(at_client(nowhere, [](auto& all) { return all.closed; }).why ==
        "\"nowhere\" is no address; write 10.0.0.1:4000 or [fd00::1]:4000");
  RendezvousClient patient(
      {{silent[0].address.text()}, credentials_of(authority, {kJob, 0}), std::chrono::seconds(4)});
  const std::string why = at_client(patient, [](auto& all) { return all.closed; }).why;
  INFO(why);
  CHECK(why.ends_with("; " + silent[0].address.text() + ": connected, but hvdrun does not answer"));
  for (int round = 0; round < 5; ++round)  // and can go at any moment
    RendezvousClient({{silent[0].address.text()},
                      credentials_of(authority, {kJob, 0}),
                      std::chrono::seconds(20)});
}

TEST_CASE("remote stream: an agent's certificate cannot pass for hvdrun's") {
  const JobAuthority authority(kJob);
  RendezvousServer::Remote impostor;
  impostor.job = kJob;
  impostor.credentials = credentials_of(authority, {kJob, 1});
  impostor.listeners = listen_on(std::vector<std::string>{"127.0.0.1"});
  const std::string address = impostor.listeners[0].address.text();
  RendezvousServer server(std::move(impostor));
  RendezvousClient agent(
      {{address}, credentials_of(authority, {kJob, 0}), std::chrono::seconds(2)});
  agent.send(attached(0));
  const std::string why = at_client(agent, [](auto& all) { return all.closed; }).why;
  INFO(why);
  CHECK(why.find("certificate verify failed") != why.npos);
}

TEST_CASE(
    "remote stream: an agent speaks for its own host, ranks and epochs, and for nobody else") {
  JobServer job;
  job.server->permit(1, {4, 5});
  job.server->permit(2, {6});
  const auto in_epoch = [](uint32_t epoch) {
    proto::FromAgent message;
    message.mutable_broken()->set_epoch(epoch);
    return message;
  };
  const auto refused = [&](proto::FromAgent message, const std::string& words, bool begun = false) {
    const size_t before = job.server->refused();
    const auto agent = job.agent(1);
    agent->send(attached(1));
    if (begun) {  // its second epoch
      const auto there = at_server(*job.server, [](auto& all) { return !all.messages.empty(); });
      proto::ToAgent start;
      start.mutable_start_epoch()->set_epoch(2);
      job.server->send(there.session, start);
      agent->send(in_epoch(2));
    }
    agent->send(message);
    const auto got = at_server(*job.server, [](auto& all) { return all.closed; });
    CHECK(got.messages.size() == 1);
    CHECK(got.why == words);
    CHECK(at_client(*agent, [](auto& all) { return all.closed; }).why == words);
    CHECK(job.server->refused() == before + 1);
    CHECK(job.has_said("refused the agent of host 1: " + words));
  };
  SECTION("another host") { refused(attached(2), "it speaks for host 2"); }
  SECTION("a rank of another host") { refused(claimed(6), "it speaks for rank 6"); }
  SECTION("rank 0, which no field says") { refused(claimed(0), "it speaks for rank 0"); }
  SECTION("an epoch before there is one") { refused(in_epoch(1), "it speaks of epoch 1"); }
  SECTION("an epoch to come") { refused(in_epoch(3), "it speaks of epoch 3", true); }
}

TEST_CASE("remote stream: a host has one agent, and its certificate is of this job") {
  JobServer job;
  SECTION("a second agent") {
    const auto first = job.agent(1);
    first->send(attached(1));
    at_server(*job.server, has_message);
    const auto second = job.agent(1);
    CHECK(at_client(*second, [](auto& all) { return all.closed; }).why ==
          "the agent of host 1 is attached already");
    job.wait_for_audit("the agent of host 1 is attached already");
  }
  SECTION("another job's") {
    RendezvousClient agent(job.way_in(credentials_of(job.authority, {"job-2", 1})));
    CHECK(at_client(agent, [](auto& all) { return all.closed; }).why ==
          "its certificate is of job job-2");
    job.wait_for_audit("its certificate is of job job-2");
  }
  SECTION("hvdrun's own is no agent's") {
    RendezvousClient agent(job.way_in(job.authority.launcher(), std::chrono::seconds(1)));
    CHECK_FALSE(at_client(agent, [](auto& all) { return all.closed; }).why.empty());
  }
}

TEST_CASE("permission: every field that names a host or a rank is looked at") {
  // So that a field which names ranks is named so, or is known to name those of other hosts.
  const google::protobuf::FileDescriptor* file = proto::FromAgent::descriptor()->file();
  std::set<std::string> names;
  for (int i = 0; i < file->message_type_count(); ++i)
    for (int k = 0; k < file->message_type(i)->field_count(); ++k) {
      const google::protobuf::FieldDescriptor& field = *file->message_type(i)->field(k);
      if (field.name().find("rank") != std::string::npos) names.insert(field.name());
    }
  CHECK(names == std::set<std::string>{"rank", "ranks", "local_rank", "cross_rank", "group_rank",
                                       "of_ranks", "rank_failed", "machine_ranks"});

  const std::set<int> own{2, 3};
  CHECK(objection(attached(1), 1, own, 3).empty());
  CHECK(objection(attached(0), 1, own, 3) == "it speaks for host 0");
  CHECK(objection(claimed(2), 1, own, 3).empty());
  CHECK(objection(claimed(0), 1, own, 3) == "it speaks for rank 0");
  proto::FromAgent message;
  message.mutable_started()->add_ranks(2);
  message.mutable_started()->add_ranks(4);
  CHECK(objection(message, 1, own, 3) == "it speaks for rank 4");
  message.mutable_ends()->add_ends()->set_rank(3);
  message.mutable_ends()->mutable_ends(0)->mutable_last()->set_rank(3);
  message.mutable_ends()->mutable_ends(0)->mutable_last()->add_waited_for(0);  // of another host
  CHECK(objection(message, 1, own, 3).empty());
  message.mutable_ends()->mutable_ends(0)->mutable_last()->set_rank(9);
  CHECK(objection(message, 1, own, 3) == "it speaks for rank 9");
  message.mutable_ended()->add_stuck()->set_rank(-1);
  CHECK(objection(message, 1, own, 3).empty());
  message.mutable_ended()->add_stuck()->set_rank(5);
  CHECK(objection(message, 1, own, 3) == "it speaks for rank 5");
  message.mutable_claimed()->set_rank(-1);
  CHECK(objection(message, 1, own, 3) == "it speaks for rank -1");
  message.mutable_beat();
  CHECK(objection(message, 1, own, 3).empty());
  message.mutable_died()->add_ranks(3);
  CHECK(objection(message, 1, own, 3).empty());
  message.mutable_died()->add_ranks(1);
  CHECK(objection(message, 1, own, 3) == "it speaks for rank 1");
  message.mutable_store_question()->set_rank(2);
  CHECK(objection(message, 1, own, 3).empty());
  message.mutable_store_question()->set_rank(1);
  CHECK(objection(message, 1, own, 3) == "it speaks for rank 1");
  message.mutable_broken()->add_waited_for(0);  // of another host
  CHECK(objection(message, 1, own, 3).empty());
  message.mutable_broken()->set_epoch(2);  // late
  CHECK(objection(message, 1, own, 3).empty());
  for (const auto tell : {+[](proto::FromAgent& it) { it.mutable_broken()->set_epoch(4); },
                          +[](proto::FromAgent& it) { it.mutable_died()->set_epoch(4); },
                          +[](proto::FromAgent& it) {
                            it.mutable_store_question()->set_rank(2);
                            it.mutable_store_question()->set_epoch(4);
                          }}) {
    proto::FromAgent early;
    tell(early);
    CHECK(objection(early, 1, own, 3) == "it speaks of epoch 4");
  }
}

}  // namespace hvd
