// When a connection between ranks counts as cut: for 10 s the kernel at its other end has answered
// nothing that it was asked.
//
// That kernel answers for as long as its host is on and reached, whatever the rank there does: for
// one that computes, is stopped or held by a debugger it says that there is no room. It is asked in
// three ways. With nothing under way from here keep-alive asks, and once nobody answers a read
// fails. Data under way asks by being repeated, and a full window by probes; with both TCP itself
// is patient for a quarter of an hour and more, so is_cut() looks. A full window is asked about
// ever less often, in the end every two minutes, so that silence alone says nothing. But who filled
// it need not notice: the reader has nothing under way, and keep-alive tells it once it reads
// again. Only where both windows are full three such probes have to be waited for. A window that
// shut upon data under way is asked by repeats that Linux does not tell: it gives up by itself
// after two of its longest pauses, four minutes; once they are as long one lost packet is enough.
//
// These pauses are not made shorter by repeat_within(), since of two of them one repeat is enough
// to end the link: with 3 s, a lost packet or a cut of 3 s that healed ended that of a stopped
// rank.
//
// TCP_USER_TIMEOUT would not do: it counts as silence that there is no room.
#pragma once

#include <chrono>
#include <string_view>

struct tcp_info;

namespace hvd {

// Between two looks at a link: one is a call of the kernel's.
inline constexpr std::chrono::seconds kLookForCuts{1};

// Keep-alive of a connected socket, as above. It costs one small packet and its answer every 3 s.
void ask_when_idle(int socket);

// TCP repeats what is not acknowledged after pauses that double, in the end of two minutes: a
// network that is back is noticed only then. No pause is longer than `most` after this. Not for
// links, see above. Linux 6.15; does nothing on an older one.
inline constexpr std::chrono::milliseconds kMostOften{1000};  // Linux takes no less
void repeat_within(int socket, std::chrono::milliseconds most);

// Does the other end owe the answer to something? Of what is no TCP socket: no.
bool is_cut(int socket);
// Pure. `answers_when_full`: data that find no room at the other end are answered as well.
bool is_cut(const tcp_info& facts, bool answers_when_full);
// By the release that uname() tells ("6.1.0-18-amd64"): before 6.6 the kernel drops data that find
// the memory of a socket full, because its reader is stopped, without a word. Then keep-alive and
// probes tell of a cut, and of data only two minutes without an answer do. Hosts of one job are
// taken to run much the same kernel. Pure.
bool answers_when_full(std::string_view release);

}  // namespace hvd
