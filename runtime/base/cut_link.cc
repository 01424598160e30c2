#include "runtime/base/cut_link.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/utsname.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace hvd {
namespace {

constexpr uint32_t kSilenceMostMs = 10'000;
// Of a kernel that says nothing when it has no room: a reader may be stopped for so long.
constexpr uint32_t kSilenceOfOldMs = 120'000;
constexpr int kIdleSeconds = 3, kAgainSeconds = 1, kProbes = 7;  // together as much
static_assert((kIdleSeconds + kAgainSeconds * kProbes) * 1000 == kSilenceMostMs);
constexpr int kRtoMaxMs = 44;  // TCP_RTO_MAX_MS, newer than the headers we build with
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

void repeat_within(int socket, std::chrono::milliseconds most) {
  const int value = int(most.count());
  setsockopt(socket, IPPROTO_TCP, kRtoMaxMs, &value, sizeof value);
}

bool is_cut(int socket) {
  static const bool answers = [] {
    utsname system{};
    return uname(&system) == 0 && answers_when_full(system.release);
  }();
  tcp_info facts{};
  socklen_t bytes = sizeof facts;
  return getsockopt(socket, IPPROTO_TCP, TCP_INFO, &facts, &bytes) == 0 && is_cut(facts, answers);
}

bool is_cut(const tcp_info& facts, bool answers_when_full) {
  const uint32_t silent_ms = std::min(facts.tcpi_last_ack_recv, facts.tcpi_last_data_recv);
  const uint32_t data_silent_ms = answers_when_full ? kSilenceMostMs : kSilenceOfOldMs;
  return (silent_ms >= data_silent_ms && facts.tcpi_retransmits >= kUnansweredLeast) ||
         (silent_ms >= kSilenceMostMs && facts.tcpi_probes >= kUnansweredLeast);
}

bool answers_when_full(std::string_view release) {
  int major = 0, minor = 0;
  const char* const end = release.data() + release.size();
  const auto dot = std::from_chars(release.data(), end, major);
  if (dot.ec != std::errc{} || dot.ptr == end || *dot.ptr != '.') return false;
  return std::from_chars(dot.ptr + 1, end, minor).ec == std::errc{} &&
         std::pair(major, minor) >= std::pair(6, 6);
}

}  // namespace hvd
