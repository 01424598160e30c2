#include "rendezvous/server.h"

#include <fcntl.h>
#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <deque>
#include <map>
#include <string_view>
#include <thread>
#include <utility>

#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/gate.h"
#include "rendezvous/permission.h"
#include "rendezvous/refusals.h"
#include "rendezvous/stream_pump.h"
#include "runtime/base/error.h"
#include "runtime/base/start_thread.h"
#include "runtime/base/wake_fd.h"

namespace hvd {
namespace {

using Stream = grpc::ServerAsyncReaderWriter<proto::ToAgent, proto::FromAgent>;
using Pump = StreamPump<Stream, proto::ToAgent, proto::FromAgent>;
using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

constexpr int kMessageBytesMax = 4 << 20;  // a Started of 1,024 ranks is 10 KiB
constexpr int kMetadataBytesMax = 8 << 10;
constexpr int kStreamsMax = 2;  // of one connection; an agent has one

struct Session;

// What a completion belongs to.
struct Tag {
  enum Kind { kAttached, kRead, kWritten, kFinished } kind;
  Session* session;
};

// One agent's stream.
struct Session {
  explicit Session(const WakeFd& wake)
      : pump(
            {&read, &written}, [&wake] { wake.wake(); },
            [this](Stream* open) { open->Finish(ending, &finished); }) {}

  Tag attached{Tag::kAttached, this}, read{Tag::kRead, this};
  Tag written{Tag::kWritten, this}, finished{Tag::kFinished, this};
  grpc::ServerContext context;
  Stream stream{&context};
  grpc::Status ending;      // set before the pump is told to finish
  std::optional<int> host;  // by its certificate
  uint32_t epoch = 0;       // the last that it was told to start
  Pump pump;
  std::string why;           // this end closed it
  bool closed_seen = false;  // by the owner
};

grpc::Status denied(const std::string& why) {
  return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, why);
}

// Whom gRPC calls ipv4:10.0.0.1:4000 or ipv6:%5Bfd00::1%5D:4000; empty when it is no such address.
SocketAddress address_of(const std::string& peer) {
  std::string text;
  for (size_t at = std::min(peer.find(':'), peer.size() - 1) + 1; at < peer.size(); ++at) {
    if (peer.compare(at, 3, "%5B") == 0 || peer.compare(at, 3, "%5D") == 0 ||
        peer.compare(at, 3, "%25") == 0) {
      text += peer[at + 2] == 'B' ? '[' : peer[at + 2] == 'D' ? ']' : '%';
      at += 2;
    } else {
      text += peer[at];
    }
  }
  try {
    return SocketAddress::parse(text);
  } catch (const Error&) {
    return {};
  }
}

// What gRPC says of each connection that fails is for nobody: the audit has it.
void quiet_grpc() {
  gpr_set_log_function([](gpr_log_func_args* line) {
    const std::string_view file = line->file;
    for (std::string_view source : {"ssl_transport_security", "handshaker", "chttp2"})
      if (file.find(source) != file.npos) return;
    std::fprintf(stderr, "grpc: %s\n", line->message);
  });
}

}  // namespace

struct RendezvousServer::Impl {
  WakeFd wake;
  Mutex mutex;
  std::deque<std::unique_ptr<Session>> sessions GUARDED_BY(mutex);
  std::unique_ptr<Session> expected GUARDED_BY(mutex);  // the next stream's
  std::map<Session*, std::unique_ptr<Session>> turned_away GUARDED_BY(mutex);
  std::map<int, std::set<int>> permitted GUARDED_BY(mutex);              // ranks by host
  std::map<int, std::set<std::string>> expected_from GUARDED_BY(mutex);  // by host
  proto::Rendezvous::AsyncService service;
  std::unique_ptr<grpc::ServerCompletionQueue> queue GUARDED_BY(mutex);
  std::unique_ptr<grpc::Server> server GUARDED_BY(mutex);
  bool serving GUARDED_BY(mutex) = false;
  std::vector<int> connections GUARDED_BY(mutex);  // that wait for gRPC's start
  bool ending GUARDED_BY(mutex) = false;
  Refusals refusals;
  std::optional<Remote> remote;  // its listeners are the gate's once there is one
  std::unique_ptr<Acceptor> acceptor;
  std::unique_ptr<Gate> gate GUARDED_BY(mutex);
  std::jthread thread;

  // Everything, gRPC's own start included, happens on the server's thread: the owner goes on
  // meanwhile.
  void run() {
    pthread_setname_np(pthread_self(), "rendezvous");
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMessageBytesMax);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytesMax);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsMax);
    builder.RegisterService(&service);
    if (remote) acceptor = accept_remote(builder, *remote);
    grpc::ServerCompletionQueue* completions = nullptr;
    {
      MutexLock lock(mutex);
      queue = builder.AddCompletionQueue();
      completions = queue.get();
      server = builder.BuildAndStart();
      if (ending) end();
    }
    {
      MutexLock lock(mutex);
      expect_session(completions);
      serving = !ending;
      for (const int connection : std::exchange(connections, {})) serve(connection);
    }
    if (remote) {
      MutexLock lock(mutex);
      open_gate();
    }
    void* tag = nullptr;
    for (bool ok = false; completions->Next(&tag, &ok);)
      on_completion(*static_cast<Tag*>(tag), ok, completions);
    std::unique_ptr<Gate> ended;  // goes without the lock: that joins the gate's thread
    {
      MutexLock lock(mutex);
      ended.swap(gate);
    }
  }

  static std::unique_ptr<Acceptor> accept_remote(grpc::ServerBuilder& builder,
                                                 const Remote& remote) {
    quiet_grpc();
    grpc::SslServerCredentialsOptions options(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    options.pem_root_certs = remote.credentials.authority;
    options.pem_key_cert_pairs.push_back(
        {std::string(remote.credentials.key.view()), remote.credentials.certificate});
    // The gate ends who is late, and says so; this is for what it does not see.
    const auto late = remote.limits.patience + std::chrono::seconds(1);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                               int(std::chrono::ceil<std::chrono::milliseconds>(late).count()));
    return builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        grpc::SslServerCredentials(options));
  }

  void open_gate() REQUIRES(mutex) {
    GateEvents events;
    events.admit = [this](UniqueFd fd) {
      Acceptor::NewConnectionParameters connection;
      connection.fd = fd.release();  // gRPC's from here on
      acceptor->HandleNewConnection(&connection);
    };
    events.refused = [this](const std::string& host, const std::string& why) { refuse(host, why); };
    gate = std::make_unique<Gate>(std::move(remote->listeners), remote->limits, std::move(events));
  }

  void refuse(const std::string& whom, const std::string& why) {
    if (refusals.note(whom, why)) wake.wake();
  }

  // Once; the owner's alone.
  void start() {
    if (!thread.joinable()) thread = start_thread("the rendezvous's", [this] { run(); });
  }

  void serve(int connection) REQUIRES(mutex) {
    if (serving)
      grpc::AddInsecureChannelFromFd(server.get(), connection);
    else
      connections.push_back(connection);
  }

  void expect_session(grpc::ServerCompletionQueue* completions) REQUIRES(mutex) {
    if (ending) return;
    expected = std::make_unique<Session>(wake);
    service.RequestAttach(&expected->context, &expected->stream, completions, completions,
                          &expected->attached);
  }

  void on_completion(const Tag& tag, bool ok, grpc::ServerCompletionQueue* completions) {
    Session& session = *tag.session;
    MutexLock lock(mutex);
    if (ending) return;  // the queue takes nothing new
    switch (tag.kind) {
      case Tag::kAttached:
        if (!ok) break;
        on_attached();
        expect_session(completions);
        break;
      case Tag::kRead:
        if (session.pump.received(ok)) break;
        session.pump.finish();
        session.pump.close();
        break;
      case Tag::kWritten:
        session.pump.written(ok);
        break;
      case Tag::kFinished:
        turned_away.erase(&session);
        break;
    }
  }

  void on_attached() REQUIRES(mutex) {
    std::unique_ptr<Session> session = std::move(expected);
    const std::string why = identify(*session);
    if (!why.empty()) {
      refuse(address_of(session->context.peer()).host(), why);
      session->stream.Finish(denied(why), &session->finished);
      turned_away[session.get()] = std::move(session);
      return;
    }
    session->pump.started(&session->stream);
    sessions.push_back(std::move(session));
  }

  // Why the stream is refused; else `host` is set when it came over the network.
  std::string identify(Session& session) REQUIRES(mutex) {
    const SocketAddress peer = address_of(session.context.peer());
    const auto proof = session.context.auth_context();
    if (peer.empty() && !proof->IsPeerAuthenticated()) return {};  // over a connection of ours
    const auto names = proof->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME);
    const auto identity =
        names.size() == 1
            ? AgentIdentity::parse(std::string_view(names.front().data(), names.front().size()))
            : std::nullopt;
    if (!identity) return "its certificate names no agent";
    if (identity->job != remote->job) return "its certificate is of job " + identity->job;
    for (const auto& other : sessions)
      if (other->host == identity->host)
        return "the agent of host " + std::to_string(identity->host) + " is attached already";
    // Who is refused has a stranger's time, and no more.
    if (gate) gate->proven(peer, expected_from[identity->host]);
    session.host = identity->host;
    return {};
  }

  void end() REQUIRES(mutex) {
    ending = true;
    if (!server) return;
    for (const auto& session : sessions) session->pump.abandon();
    server->Shutdown(std::chrono::system_clock::now());
    queue->Shutdown();
  }

  // What a session has brought and may bring. Whoever says what is not its own to say is cut off.
  Received<proto::FromAgent> take(Session& session) REQUIRES(mutex) {
    Received<proto::FromAgent> received = session.pump.take();
    if (!session.host) return received;
    const std::set<int>& ranks = permitted[*session.host];
    for (size_t i = 0; i < received.messages.size(); ++i) {
      const std::string why = objection(received.messages[i], *session.host, ranks, session.epoch);
      if (why.empty()) continue;
      refuse("the agent of host " + std::to_string(*session.host), why);
      received.messages.resize(i);
      received.closed = true;
      session.why = why;
      session.ending = denied(why);
      session.pump.finish();
      session.pump.close();
      break;
    }
    return received;
  }

  // A write that nobody reads would keep an orderly end waiting.
  static void give_up(Session& session) {
    session.why = "it reads nothing: " + std::to_string(kUnreadBytesMax >> 20) +
                  " MiB of what it was told wait";
    session.ending = grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, session.why);
    session.context.TryCancel();
    session.pump.finish();
    session.pump.close();
  }
};

RendezvousServer::RendezvousServer(std::optional<Remote> remote) : impl_(std::make_unique<Impl>()) {
  impl_->remote = std::move(remote);
  if (impl_->remote) impl_->start();
}

void RendezvousServer::add(UniqueFd connection) {
  const int socket = connection.release();  // gRPC's from here on
  fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
  {
    MutexLock lock(impl_->mutex);
    impl_->serve(socket);
  }
  impl_->start();
}

void RendezvousServer::listen(std::vector<Listener> listeners) {
  MutexLock lock(impl_->mutex);
  HVD_CHECK(impl_->remote.has_value(), "a server of local agents listens nowhere");
  if (impl_->gate) return impl_->gate->add(std::move(listeners));
  for (Listener& one : listeners) impl_->remote->listeners.push_back(std::move(one));
}

void RendezvousServer::close_door() {
  MutexLock lock(impl_->mutex);
  if (impl_->gate) return impl_->gate->close();
  if (impl_->remote) impl_->remote->listeners.clear();
}

RendezvousServer::~RendezvousServer() {
  {
    MutexLock lock(impl_->mutex);
    impl_->end();
  }
  if (impl_->thread.joinable()) impl_->thread.join();
}

int RendezvousServer::wake_fd() const { return impl_->wake.get(); }

std::vector<RendezvousServer::Incoming> RendezvousServer::take() {
  impl_->wake.clear();
  std::vector<Incoming> all;
  {
    MutexLock lock(impl_->mutex);
    for (size_t number = 0; number < impl_->sessions.size(); ++number) {
      Session& session = *impl_->sessions[number];
      if (session.closed_seen) continue;
      Received<proto::FromAgent> received = impl_->take(session);
      if (received.messages.empty() && !received.closed) continue;
      session.closed_seen = received.closed;
      all.push_back(
          {int(number), session.host, std::move(received.messages), received.closed, session.why});
    }
  }
  for (const std::string& line : impl_->refusals.take())
    if (impl_->remote && impl_->remote->audit) impl_->remote->audit(line);
  return all;
}

void RendezvousServer::send(int session, const proto::ToAgent& message) {
  MutexLock lock(impl_->mutex);
  HVD_CHECK(session >= 0 && size_t(session) < impl_->sessions.size(), "no such session");
  Session& to = *impl_->sessions[size_t(session)];
  if (message.has_start_epoch()) to.epoch = message.start_epoch().epoch();
  if (!to.pump.send(message)) Impl::give_up(to);
}

void RendezvousServer::permit(int host, std::set<int> ranks) {
  MutexLock lock(impl_->mutex);
  impl_->permitted[host] = std::move(ranks);
}

void RendezvousServer::expect_from(int host, std::set<std::string> addresses) {
  MutexLock lock(impl_->mutex);
  impl_->expected_from[host] = std::move(addresses);
}

size_t RendezvousServer::refused() const { return impl_->refusals.count(); }

}  // namespace hvd
