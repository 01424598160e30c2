#include "rendezvous/server.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <pthread.h>

#include <deque>
#include <thread>

#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/stream_pump.h"
#include "runtime/base/error.h"
#include "runtime/base/start_thread.h"
#include "runtime/base/wake_fd.h"

namespace hvd {
namespace {

using Stream = grpc::ServerAsyncReaderWriter<proto::ToAgent, proto::FromAgent>;
using Pump = StreamPump<Stream, proto::ToAgent, proto::FromAgent>;

constexpr int kMessageBytesMax = 4 << 20;  // a Started of 1,024 ranks is 10 KiB

struct Session;

// What a completion belongs to.
struct Tag {
  enum Kind { kAttached, kRead, kWritten, kFinished } kind;
  Session* session;
};

// One agent's stream.
struct Session {
  Session(int session_number, const WakeFd& wake)
      : number(session_number),
        pump(
            {&read, &written}, [&wake] { wake.wake(); },
            [this](Stream* open) { open->Finish(grpc::Status::OK, &finished); }) {}

  const int number;
  Tag attached{Tag::kAttached, this}, read{Tag::kRead, this};
  Tag written{Tag::kWritten, this}, finished{Tag::kFinished, this};
  grpc::ServerContext context;
  Stream stream{&context};
  Pump pump;
  bool closed_seen = false;  // by the owner
};

}  // namespace

struct RendezvousServer::Impl {
  WakeFd wake;
  Mutex mutex;
  std::deque<std::unique_ptr<Session>> sessions GUARDED_BY(mutex);
  proto::Rendezvous::AsyncService service;
  std::unique_ptr<grpc::ServerCompletionQueue> queue GUARDED_BY(mutex);
  std::unique_ptr<grpc::Server> server GUARDED_BY(mutex);
  bool ending GUARDED_BY(mutex) = false;
  std::jthread thread;

  // Everything, gRPC's own start included, happens on the server's thread: the owner goes on
  // meanwhile.
  void run(int connection) {
    pthread_setname_np(pthread_self(), "rendezvous");
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMessageBytesMax);
    builder.RegisterService(&service);
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
      if (!ending) grpc::AddInsecureChannelFromFd(server.get(), connection);
    }
    void* tag = nullptr;
    for (bool ok = false; completions->Next(&tag, &ok);)
      on_completion(*static_cast<Tag*>(tag), ok, completions);
  }

  void expect_session(grpc::ServerCompletionQueue* completions) REQUIRES(mutex) {
    if (ending) return;
    auto session = std::make_unique<Session>(int(sessions.size()), wake);
    service.RequestAttach(&session->context, &session->stream, completions, completions,
                          &session->attached);
    sessions.push_back(std::move(session));
  }

  void on_completion(const Tag& tag, bool ok, grpc::ServerCompletionQueue* completions) {
    Session& session = *tag.session;
    MutexLock lock(mutex);
    if (ending) return;  // the queue takes nothing new
    switch (tag.kind) {
      case Tag::kAttached:
        if (!ok) break;
        session.pump.started(&session.stream);
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
        break;
    }
  }

  void end() REQUIRES(mutex) {
    ending = true;
    if (!server) return;
    for (const auto& session : sessions) session->pump.abandon();
    server->Shutdown(std::chrono::system_clock::now());
    queue->Shutdown();
  }
};

RendezvousServer::RendezvousServer(UniqueFd connection) : impl_(std::make_unique<Impl>()) {
  const int socket = connection.release();  // gRPC's from here on
  fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
  impl_->thread =
      start_thread("the rendezvous's", [impl = impl_.get(), socket] { impl->run(socket); });
}

RendezvousServer::~RendezvousServer() {
  {
    MutexLock lock(impl_->mutex);
    impl_->end();
  }
  impl_->thread.join();
}

int RendezvousServer::wake_fd() const { return impl_->wake.get(); }

std::vector<RendezvousServer::Incoming> RendezvousServer::take() {
  impl_->wake.clear();
  std::vector<Incoming> all;
  MutexLock lock(impl_->mutex);
  for (const auto& session : impl_->sessions) {
    if (session->closed_seen) continue;
    Received<proto::FromAgent> received = session->pump.take();
    if (received.messages.empty() && !received.closed) continue;
    session->closed_seen = received.closed;
    all.push_back({session->number, std::move(received.messages), received.closed});
  }
  return all;
}

void RendezvousServer::send(int session, const proto::ToAgent& message) {
  MutexLock lock(impl_->mutex);
  HVD_CHECK(session >= 0 && size_t(session) < impl_->sessions.size(), "no such session");
  impl_->sessions[size_t(session)]->pump.send(message);
}

}  // namespace hvd
