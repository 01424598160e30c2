#include "rendezvous/client.h"

#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <pthread.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/stream_pump.h"
#include "runtime/base/start_thread.h"
#include "runtime/base/wake_fd.h"

namespace hvd {
namespace {

using Stream = grpc::ClientAsyncReaderWriter<proto::FromAgent, proto::ToAgent>;
using Pump = StreamPump<Stream, proto::FromAgent, proto::ToAgent>;

enum Tag : uintptr_t { kStarted = 1, kRead, kWritten, kWritesDone, kFinished };
// gRPC aborts the process when it gets no epoll set or eventfd. It needs four or so; the rest is
// for what the owner opens meanwhile.
constexpr int kDescriptorsFree = 16;

void expect_descriptors(int any) {
  std::vector<UniqueFd> held;
  for (int i = 0; i < kDescriptorsFree; ++i) {
    held.emplace_back(fcntl(any, F_DUPFD_CLOEXEC, 0));
    if (!held.back())
      throw Error(ErrorCode::kUnavailable, std::string("cannot start the rendezvous: ") +
                                               std::strerror(errno) +
                                               "; raise the limit on open files (ulimit -n)");
  }
}

void* tag(Tag which) { return reinterpret_cast<void*>(which); }

}  // namespace

struct RendezvousClient::Impl {
  Impl()
      : pump(
            {tag(kRead), tag(kWritten)}, [this] { wake.wake(); },
            [](Stream* stream) { stream->WritesDone(tag(kWritesDone)); }) {}

  WakeFd wake;
  Pump pump;
  Mutex mutex;
  std::unique_ptr<grpc::ClientContext> context GUARDED_BY(mutex);
  bool ending GUARDED_BY(mutex) = false;
  std::jthread thread;

  // The first gRPC object in a process starts gRPC, eight threads: all of them are made here, on
  // the client's thread.
  void run(int connection) {
    pthread_setname_np(pthread_self(), "rendezvous");
    grpc::CompletionQueue queue;
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    auto channel = grpc::CreateCustomInsecureChannelFromFd("hvdrun", connection, arguments);
    auto stub = proto::Rendezvous::NewStub(channel);
    std::unique_ptr<Stream> stream;
    {
      MutexLock lock(mutex);
      context = std::make_unique<grpc::ClientContext>();
      if (ending) context->TryCancel();
      stream = stub->PrepareAsyncAttach(context.get(), &queue);
    }
    stream->StartCall(tag(kStarted));
    grpc::Status status;
    void* which = nullptr;
    for (bool ok = false; queue.Next(&which, &ok);) {
      switch (Tag(reinterpret_cast<uintptr_t>(which))) {
        case kStarted:
          if (ok)
            pump.started(stream.get());
          else
            stream->Finish(&status, tag(kFinished));
          break;
        case kRead:
          if (!pump.received(ok)) stream->Finish(&status, tag(kFinished));
          break;
        case kWritten:
          pump.written(ok);
          break;
        case kWritesDone:
          break;
        case kFinished:
          pump.abandon();
          queue.Shutdown();
          break;
      }
    }
  }
};

RendezvousClient::RendezvousClient(UniqueFd connection) : impl_(std::make_unique<Impl>()) {
  expect_descriptors(connection.get());
  const int socket = connection.release();  // gRPC's from here on
  fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
  impl_->thread =
      start_thread("the rendezvous's", [impl = impl_.get(), socket] { impl->run(socket); });
}

RendezvousClient::~RendezvousClient() {
  {
    MutexLock lock(impl_->mutex);
    impl_->ending = true;
    if (impl_->context) impl_->context->TryCancel();
  }
  impl_->thread.join();
}

int RendezvousClient::wake_fd() const { return impl_->wake.get(); }

RendezvousClient::Incoming RendezvousClient::take() {
  impl_->wake.clear();
  Received<proto::ToAgent> received = impl_->pump.take();
  return {std::move(received.messages), received.closed};
}

void RendezvousClient::send(const proto::FromAgent& message) { impl_->pump.send(message); }

void RendezvousClient::send_if_idle(const proto::FromAgent& message) {
  impl_->pump.send_if_idle(message);
}

void RendezvousClient::finish() { impl_->pump.finish(); }

}  // namespace hvd
