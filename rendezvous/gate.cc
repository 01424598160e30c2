#include "rendezvous/gate.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

#include "rendezvous/suspicions.h"
#include "runtime/base/cut_link.h"
#include "runtime/base/mutex.h"
#include "runtime/base/start_thread.h"
#include "runtime/base/wake_fd.h"

namespace hvd {
namespace {

// Of a control stream: what was sent and is not acknowledged for so long was sent to nobody.
constexpr int kUserTimeoutMs = 10'000;
constexpr std::chrono::milliseconds kNoDescriptorsPause{100};
constexpr int kAcceptedPerTurn = 64;  // then those whose time is over are looked at

// A connection that was handed on, until it has proven who it is. The descriptor is a second one,
// by which the connection can be ended whoever holds the first.
struct Stranger {
  UniqueFd socket;
  SocketAddress peer;
  bool cleared = false;  // an agent from there has proven who it is since this came
};

}  // namespace

struct Gate::Impl {
  std::vector<Listener> listeners;  // the thread's own
  GateEvents events;
  WakeFd wake;
  Mutex mutex;
  Admission admission GUARDED_BY(mutex);
  Suspicions suspicions GUARDED_BY(mutex){{}};
  std::map<Admission::Ticket, Stranger> strangers GUARDED_BY(mutex);
  std::vector<Listener> added GUARDED_BY(mutex);
  bool closed GUARDED_BY(mutex) = false, ending GUARDED_BY(mutex) = false;
  TimePoint accept_again{};  // the process had no descriptor left
  std::jthread thread;

  void run() {
    pthread_setname_np(pthread_self(), "gate");
    for (std::vector<pollfd> watched;; serve(watched)) {
      const std::optional<Deadline> deadline = watch(watched);
      if (!deadline) return;
      poll(watched.data(), watched.size(), deadline->poll_timeout_ms());
    }
  }

  // In this order: the wake descriptor, listeners, strangers. Nothing when it is over.
  std::optional<Deadline> watch(std::vector<pollfd>& watched) EXCLUDES(mutex) {
    MutexLock lock(mutex);
    if (ending) return {};
    for (Listener& one : std::exchange(added, {})) listeners.push_back(std::move(one));
    if (closed) listeners.clear();
    const TimePoint accepts_at = std::max(accept_again, admission.accepts_at());
    const bool pausing = Clock::now() < accepts_at;
    watched = {{wake.get(), POLLIN, 0}};
    for (const Listener& listener : listeners)
      watched.push_back({pausing ? -1 : listener.socket.get(), POLLIN, 0});
    // No events: only the end of both directions is told. A stranger that has closed its half only
    // is waited for like any other.
    for (const auto& [ticket, stranger] : strangers)
      watched.push_back({stranger.socket.get(), 0, 0});
    TimePoint until = std::min(admission.next_deadline().value_or(TimePoint::max()),
                               suspicions.next_deadline().value_or(TimePoint::max()));
    if (pausing) until = std::min(until, accepts_at);
    return Deadline::at(until);
  }

  void serve(const std::vector<pollfd>& watched) {
    if (watched.front().revents != 0) wake.clear();
    dismiss(watched);
    for (size_t i = 0; i < listeners.size(); ++i)
      if (watched[1 + i].revents != 0) accept_all(listeners[i]);
    tell();
  }

  void dismiss(const std::vector<pollfd>& watched) EXCLUDES(mutex) {
    MutexLock lock(mutex);
    for (size_t i = 1 + listeners.size(); i < watched.size(); ++i) {
      if (watched[i].revents == 0) continue;
      const auto at = std::ranges::find_if(
          strangers, [&](const auto& one) { return one.second.socket.get() == watched[i].fd; });
      if (at == strangers.end()) continue;
      const Stranger gone = std::move(at->second);
      admission.settle(at->first);
      strangers.erase(at);
      if (!gone.cleared)
        suspicions.note(gone.peer.host(), "it went without proving who it is", Clock::now());
    }
    for (Admission::Ticket late : admission.take_late(Clock::now()))
      cut_off(late, "it did not prove in time who it is");
  }

  // Nothing that a good agent gives up stays for so long. It is settled.
  void cut_off(Admission::Ticket ticket, const char* why) REQUIRES(mutex) {
    const auto at = strangers.find(ticket);
    shutdown(at->second.socket.get(), SHUT_RDWR);
    suspicions.note_certain(at->second.peer.host(), why);
    strangers.erase(at);
  }

  void tell() EXCLUDES(mutex) {
    std::vector<Suspicions::Suspicion> due;
    {
      MutexLock lock(mutex);
      const bool all_came = closed && strangers.empty();
      due = suspicions.take(all_came ? TimePoint::max() : Clock::now());
    }
    for (const auto& [host, why, times] : due)
      for (size_t i = 0; i < times; ++i) events.refused(host, why);
  }

  void accept_all(const Listener& listener) EXCLUDES(mutex) {
    for (int i = 0; i < kAcceptedPerTurn && accept_one(listener); ++i) {
    }
  }

  bool accept_one(const Listener& listener) EXCLUDES(mutex) {
    {
      MutexLock lock(mutex);
      if (Clock::now() < admission.accepts_at()) return false;
    }
    auto [fd, exhausted] = accept_from(listener);
    UniqueFd second(fd ? fcntl(fd.get(), F_DUPFD_CLOEXEC, 0) : -1);
    if (exhausted || (fd && !second)) accept_again = Clock::now() + kNoDescriptorsPause;
    if (!second) return false;
    const SocketAddress peer = SocketAddress::peer_of(fd.get());
    if (peer.empty()) return true;  // gone already
    {
      MutexLock lock(mutex);
      const auto admitted = admission.admit(peer.host(), Clock::now());
      if (!admitted) {
        suspicions.note(peer.host(),
                        "too many connections from there have not proven yet who they are",
                        Clock::now());
        return true;
      }
      if (admitted->displaced)
        cut_off(*admitted->displaced, "others came, and it had not proven yet who it is");
      strangers[admitted->ticket] = {std::move(second), peer};
    }
    const int on = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs, sizeof kUserTimeoutMs);
    repeat_within(fd.get(), kMostOften);
    events.admit(std::move(fd));
    return true;
  }
};

Gate::Gate(std::vector<Listener> listeners, const Admission::Limits& limits, GateEvents events)
    : impl_(std::make_unique<Impl>()) {
  impl_->listeners = std::move(listeners);
  impl_->events = std::move(events);
  {
    MutexLock lock(impl_->mutex);
    impl_->admission = Admission(limits);
    impl_->suspicions = Suspicions(limits.patience);
  }
  impl_->thread = start_thread("the gate's", [impl = impl_.get()] { impl->run(); });
}

Gate::~Gate() {
  {
    MutexLock lock(impl_->mutex);
    impl_->ending = true;
  }
  impl_->wake.wake();
  impl_->thread.join();
}

void Gate::add(std::vector<Listener> listeners) {
  MutexLock lock(impl_->mutex);
  for (Listener& one : listeners) impl_->added.push_back(std::move(one));
  impl_->wake.wake();
}

void Gate::close() {
  MutexLock lock(impl_->mutex);
  impl_->closed = true;
  impl_->wake.wake();
}

void Gate::proven(const SocketAddress& peer, std::set<std::string> others) {
  MutexLock lock(impl_->mutex);
  auto& strangers = impl_->strangers;
  const auto at =
      std::ranges::find_if(strangers, [&](const auto& one) { return one.second.peer == peer; });
  if (at == strangers.end()) return;
  impl_->admission.settle(at->first);
  strangers.erase(at);
  others.insert(peer.host());
  for (const std::string& host : others) impl_->suspicions.clear(host);
  for (auto& [ticket, other] : strangers) other.cleared |= others.contains(other.peer.host());
  impl_->wake.wake();
}

}  // namespace hvd
