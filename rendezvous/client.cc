#include "rendezvous/client.h"

#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <pthread.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/socket_address.h"
#include "rendezvous/stream_pump.h"
#include "runtime/base/cut_link.h"
#include "runtime/base/open_files.h"
#include "runtime/base/start_thread.h"
#include "runtime/base/wake_fd.h"

namespace hvd {
namespace {

using Stream = grpc::ClientAsyncReaderWriter<proto::FromAgent, proto::ToAgent>;
using Pump = StreamPump<Stream, proto::FromAgent, proto::ToAgent>;

using std::chrono::milliseconds;
using SystemClock = std::chrono::system_clock;  // gRPC's

enum Tag : uintptr_t { kStarted = 1, kRead, kWritten, kWritesDone, kFinished, kLooked };
// gRPC aborts the process when it gets no epoll set or eventfd. It needs four or so; the rest is
// for what the owner opens meanwhile.
constexpr int kDescriptorsFree = 16;

void expect_descriptors(int any) {
  std::vector<UniqueFd> held;
  for (int i = 0; i < kDescriptorsFree; ++i) {
    held.emplace_back(fcntl(any, F_DUPFD_CLOEXEC, 0));
    if (!held.back())
      throw Error(ErrorCode::kUnavailable, std::string("cannot start the rendezvous: ") +
                                               std::strerror(errno) + "; " + kRaiseOpenFiles);
  }
}

void* tag(Tag which) { return reinterpret_cast<void*>(which); }

// One of hvdrun's addresses, being tried.
struct Candidate {
  std::string address;
  TimePoint begin;  // or sooner, when those before have failed
  std::shared_ptr<grpc::Channel> channel = nullptr;
  bool looking = false;  // gRPC will tell of its next change
  bool failed = false;   // at least once; gRPC tries again by itself
};

constexpr milliseconds kStagger{250};    // as browsers do (RFC 8305)
constexpr milliseconds kLookAgain{100};  // whether the owner has ended meanwhile
constexpr int kAttemptMs = 3000;         // for one connection, its proof included
const std::string kNoAnswer = "no answer";

std::shared_ptr<grpc::Channel> channel_to(const std::string& address,
                                          const Credentials& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kOrderBytesMax);
  arguments.SetSslTargetNameOverride(kLauncherName);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kAttemptMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // No pings, which a server counts: liveness is a message each second. Nor TCP_USER_TIMEOUT, which
  // gRPC would set with them: a hvdrun that is suspended may have no room for what it is told.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, INT_MAX);
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = credentials.authority;
  options.pem_private_key = credentials.key.view();
  options.pem_cert_chain = credentials.certificate;
  std::string target = address.starts_with('[') ? "ipv6:" : "ipv4:";
  for (char letter : address) target += letter == '%' ? "%25" : std::string(1, letter);
  return grpc::CreateCustomChannel(target, grpc::SslCredentials(options), arguments);
}

// gRPC hands its sockets to nobody: one is known by where it leads.
std::vector<int> sockets_to(const std::string& address) {
  std::vector<int> all;
  std::error_code none;  // and no exception, which nobody here would catch
  for (std::filesystem::directory_iterator entry("/proc/self/fd", none), end; !none && entry != end;
       entry.increment(none))
    if (const int fd = std::atoi(entry->path().filename().c_str());
        SocketAddress::peer_of(fd).text() == address)
      all.push_back(fd);
  return all;
}

// What gRPC says last of a connection that it cannot make, without its own places; in words of ours
// where its own are of what it was at when the time was over.
std::string last_words(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  context.set_deadline(SystemClock::now() + kLookAgain);
  const grpc::Status status = proto::Rendezvous::NewStub(channel)->Attach(&context)->Finish();
  std::string words = status.error_message();
  words.erase(0, words.find_first_not_of(' ', words.rfind(':') + 1));
  if (words == "tcp handshaker shutdown" ||
      status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED)
    return kNoAnswer;
  if (words.find("andshake") != words.npos) return "connected, but hvdrun does not answer";
  if (!words.empty()) words[0] = char(std::tolower(static_cast<unsigned char>(words[0])));
  return words;
}

class Race {
 public:
  explicit Race(const RendezvousClient::Remote& remote)
      : remote_(remote), deadline_(Clock::now() + remote.patience) {
    TimePoint begin = Clock::now();
    for (const std::string& address : remote.addresses) {
      candidates_.push_back({SocketAddress::parse(address).text(), begin});
      begin += kStagger;
    }
  }

  // The first channel that is connected and has proven that it is hvdrun's. Nothing when `over`
  // says so, or when none is by the deadline; `words` then says why. Leaves kLooked tags in the
  // queue.
  std::shared_ptr<grpc::Channel> run(grpc::CompletionQueue& queue,
                                     const std::function<bool()>& over, std::string& words) {
    while (!over()) {
      const TimePoint now = Clock::now();
      if (now >= deadline_) {
        words = failure();
        return nullptr;
      }
      begin_some(now);
      for (Candidate& one : candidates_)
        if (one.channel && look(one, queue)) {
          for (const int socket : sockets_to(one.address)) {
            ask_when_idle(socket);
            repeat_within(socket, kMostOften);
          }
          address_ = one.address;
          return one.channel;
        }
      wait(queue, now);
    }
    return nullptr;
  }
  const std::string& address() const { return address_; }  // of that channel

 private:
  void begin_some(TimePoint now) {
    bool all_failed = true;
    for (Candidate& one : candidates_) {
      if (!one.channel && (now >= one.begin || all_failed))
        one.channel = channel_to(one.address, remote_.credentials);
      all_failed = all_failed && one.failed;
    }
  }

  bool look(Candidate& one, grpc::CompletionQueue& queue) {
    const grpc_connectivity_state state = one.channel->GetState(true);
    one.failed = one.failed || state == GRPC_CHANNEL_TRANSIENT_FAILURE;
    if (state == GRPC_CHANNEL_READY) return true;
    if (!std::exchange(one.looking, true))
      one.channel->NotifyOnStateChange(state, SystemClock::now() + kLookAgain, &queue,
                                       tag(which(one)));
    return false;
  }

  // Tags of candidates count up from kLooked.
  Tag which(const Candidate& one) const { return Tag(kLooked + (&one - candidates_.data())); }

  void wait(grpc::CompletionQueue& queue, TimePoint now) {
    TimePoint until = std::min(now + kLookAgain, deadline_);
    for (const Candidate& one : candidates_)
      if (!one.channel) until = std::min(until, one.begin);
    void* looked = nullptr;
    bool ok = false;
    if (queue.AsyncNext(&looked, &ok, SystemClock::now() + (until - now)) ==
        grpc::CompletionQueue::GOT_EVENT)
      candidates_[reinterpret_cast<uintptr_t>(looked) - kLooked].looking = false;
  }

  std::string failure() {
    const auto waited = std::chrono::duration_cast<std::chrono::seconds>(remote_.patience).count();
    std::string text = "cannot reach hvdrun within " + std::to_string(waited) + " s";
    if (candidates_.empty()) return text + "; it gave no address";
    text += std::string("; ") + kOpenTheWay;  // before what may be long: who tells it may cut it
    for (const Candidate& one : candidates_)
      text += "; " + one.address + ": " + (one.failed ? last_words(one.channel) : kNoAnswer);
    return text;
  }

  const RendezvousClient::Remote& remote_;
  const TimePoint deadline_;
  std::vector<Candidate> candidates_;
  std::string address_;
};

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
  std::string why GUARDED_BY(mutex);
  std::string address GUARDED_BY(mutex);  // where hvdrun answered, on another host
  std::jthread thread;

  bool is_ending() EXCLUDES(mutex) {
    MutexLock lock(mutex);
    return ending;
  }

  // The first gRPC object in a process starts gRPC, eight threads: all of them are made here, on
  // the client's thread.
  void run(int connection) {
    pthread_setname_np(pthread_self(), "rendezvous");
    grpc::CompletionQueue queue;
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kOrderBytesMax);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    serve(queue, grpc::CreateCustomInsecureChannelFromFd("hvdrun", connection, arguments));
  }

  void run(const Remote& remote) {
    pthread_setname_np(pthread_self(), "rendezvous");
    grpc::CompletionQueue queue;
    std::string words;
    std::shared_ptr<grpc::Channel> channel;
    try {
      Race race(remote);
      channel = race.run(queue, [this] { return is_ending(); }, words);
      MutexLock lock(mutex);
      address = race.address();
    } catch (const Error& error) {
      words = error.what();
    }
    if (channel) return serve(queue, channel);
    finish(words);
    queue.Shutdown();
    void* which = nullptr;
    for (bool ok = false; queue.Next(&which, &ok);) {
    }
  }

  void finish(const std::string& words) EXCLUDES(mutex) {
    {
      MutexLock lock(mutex);
      if (why.empty()) why = words;
    }
    pump.abandon();
  }

  void serve(grpc::CompletionQueue& queue, const std::shared_ptr<grpc::Channel>& channel) {
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
          finish(status.ok() ? "" : status.error_message());
          queue.Shutdown();
          break;
        default:  // of the race
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

RendezvousClient::RendezvousClient(Remote remote) : impl_(std::make_unique<Impl>()) {
  expect_descriptors(impl_->wake.get());
  impl_->thread = start_thread(
      "the rendezvous's", [impl = impl_.get(), remote = std::move(remote)] { impl->run(remote); });
}

RendezvousClient::~RendezvousClient() {
  {
    MutexLock lock(impl_->mutex);
    impl_->ending = true;
    if (impl_->context) impl_->context->TryCancel();
  }
  impl_->thread.join();
}

bool RendezvousClient::is_cut() const {
  MutexLock lock(impl_->mutex);
  return !impl_->address.empty() && std::ranges::any_of(sockets_to(impl_->address), [](int socket) {
    return hvd::is_cut(socket);
  });
}

int RendezvousClient::wake_fd() const { return impl_->wake.get(); }

RendezvousClient::Incoming RendezvousClient::take() {
  impl_->wake.clear();
  Received<proto::ToAgent> received = impl_->pump.take();
  MutexLock lock(impl_->mutex);
  return {std::move(received.messages), received.closed, received.closed ? impl_->why : ""};
}

void RendezvousClient::send(const proto::FromAgent& message) {
  if (impl_->pump.send(message)) return;
  {
    MutexLock lock(impl_->mutex);
    impl_->why = "hvdrun reads nothing: " + std::to_string(kUnreadBytesMax >> 20) +
                 " MiB of what it was told wait";
    if (impl_->context) impl_->context->TryCancel();
  }
  impl_->pump.close();
}

void RendezvousClient::send_if_idle(const proto::FromAgent& message) {
  impl_->pump.send_if_idle(message);
}

void RendezvousClient::finish() { impl_->pump.finish(); }

}  // namespace hvd
