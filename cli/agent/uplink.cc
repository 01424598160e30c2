#include "cli/agent/uplink.h"

#include <utility>

namespace hvd {
namespace {

// hvdrun says something each second. It calls a silent host dead after 6 s, and takes its ranks for
// gone after 11 s, of which this, a second until it is looked at, one that the two may differ by in
// what they heard last, and the half second between TERM and KILL are 10.5.
constexpr std::chrono::seconds kCutOff{8};

int64_t clock_ns() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

}  // namespace

void Uplink::use(UniqueFd connection) {
  begin(std::make_unique<RendezvousClient>(std::move(connection)));
}

void Uplink::connect(RendezvousClient::Remote hvdrun) {
  remote_ = true;
  heard_ = Clock::now() + hvdrun.patience;  // by then it has answered, or this is closed
  begin(std::make_unique<RendezvousClient>(std::move(hvdrun)));
}

void Uplink::begin(std::unique_ptr<RendezvousClient> client) {
  client_ = std::move(client);
  loop_.watch(client_->wake_fd(), EPOLLIN, [this](uint32_t) { on_messages(); });
}

void Uplink::on_messages() {
  const RendezvousClient::Incoming incoming = client_->take();
  if (!incoming.messages.empty()) heard_ = Clock::now();
  for (const proto::ToAgent& order : incoming.messages) events_.order(order);
  if (!incoming.closed) return;
  loop_.unwatch(client_->wake_fd());
  closed_ = true;
  events_.closed(incoming.why);
}

void Uplink::send(proto::FromAgent message) {
  message.set_clock_ns(clock_ns());
  if (client_) client_->send(message);
}

void Uplink::beat() {
  proto::FromAgent message;
  message.mutable_beat();
  message.set_clock_ns(clock_ns());
  if (client_) client_->send_if_idle(message);
}

void Uplink::finish() {
  if (client_) client_->finish();
}

void Uplink::excuse(TimePoint now) { heard_ = client_ && client_->is_cut() ? TimePoint{} : now; }

bool Uplink::is_cut_off(TimePoint now) const { return remote_ && now >= heard_ + kCutOff; }

}  // namespace hvd
