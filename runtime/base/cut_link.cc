#include "runtime/base/cut_link.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

namespace hvd {
namespace {

constexpr uint32_t kSilenceMostMs = 10'000;
constexpr int kIdleSeconds = 3, kAgainSeconds = 1, kProbes = 7;  // together as much
static_assert((kIdleSeconds + kAgainSeconds * kProbes) * 1000 == kSilenceMostMs);
// More than what one lost packet, or a pause of this host's own, leaves unanswered for long.
constexpr int kUnansweredLeast = 3;

}  // namespace

void ask_when_idle(int socket) {
  const auto set = [&](int level, int option, int value) {
    setsockopt(socket, level, option, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kAgainSeconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
}

bool is_cut(int socket) {
  tcp_info facts{};
  socklen_t bytes = sizeof facts;
  return getsockopt(socket, IPPROTO_TCP, TCP_INFO, &facts, &bytes) == 0 && is_cut(facts);
}

bool is_cut(const tcp_info& facts) {
  const uint32_t silent_ms = std::min(facts.tcpi_last_ack_recv, facts.tcpi_last_data_recv);
  return silent_ms >= kSilenceMostMs &&
         (facts.tcpi_retransmits >= kUnansweredLeast || facts.tcpi_probes >= kUnansweredLeast);
}

}  // namespace hvd
