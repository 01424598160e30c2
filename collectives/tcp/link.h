// One connection to another rank: messages out, messages in, never blocking.
//
// A message is a header and the bytes it announces; the reader of an operation knows how many it
// wants and where they go. A short message costs one system call on each side. What became of the
// connection is kept, not thrown: its owner asks lost().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "collectives/tcp/frame.h"
#include "runtime/base/private_fd.h"

namespace hvd {

// The options of a connected socket between two ranks. How much the kernel holds for it each way is
// left to the kernel: sizes that are set are no faster, may not be had, and grow no more.
void prepare_link(int socket);

class Link {
 public:
  // What one call sends of so many bytes. Over loopback the kernel cuts what is sent into packets
  // of 65,483 bytes (64 KiB with their headers): a call fills just one, since two wake BBR's
  // timers, where that controls congestion, and halve the speed. A crumb that would be left for a
  // call of its own goes along.
  static constexpr size_t kCallBytes = 65'408;  // a multiple of cache lines, and of any element
  static constexpr size_t of_one_call(size_t bytes) {
    return bytes <= kCallBytes + kCrumbBytes ? bytes : kCallBytes;
  }

  Link(int rank, UniqueFd socket);

  int rank() const { return rank_; }
  // Long round trips, as it was made. Over loopback, from an address to itself, there are none.
  bool is_far() const { return far_; }
  int fd() const { return socket_.get(); }

  // The next message out: its bytes follow by send(). Nothing is unsent.
  void post(const FrameHeader& header);
  // As much of the posted header, and behind it of [data + *at, data + end), as the socket takes
  // in one call; true if anything went.
  bool send(const std::byte* data, size_t end, size_t* at);
  bool header_sent() const { return header_sent_ == sizeof(FrameHeader); }

  // The header of the next message in once it is here, until take_header().
  const FrameHeader* header();
  void take_header();
  // Bytes behind it into [into + *at, into + end); true if any came.
  bool receive(std::byte* into, size_t end, size_t* at);
  // What came along with the header and is not taken yet, to be looked at where it lies.
  std::span<const std::byte> read_ahead() const { return {buffer_.data() + taken_, buffered()}; }
  void take_read_ahead(size_t bytes) { taken_ += bytes; }
  // Is the beginning of a message of that operation here? Takes nothing.
  bool has_word_of(uint64_t sequence) const;

  // The connection has ended, and how: "connection reset by peer".
  bool lost() const { return !why_.empty(); }
  const std::string& why() const { return why_; }

  // Is it cut (runtime/base/cut_link.h)? Then it is lost.
  void look_for_cut();

  // What the last calls waited for: POLLIN, POLLOUT. 0 when lost.
  short awaited_events() const;
  // Nothing more comes of what the last calls waited for: it is lost, or they had something to
  // send, and the other side has ended. In a broken epoch that one reads no more either.
  bool has_ended() const;
  // Bytes sent that the other side's host has not yet taken.
  uint64_t unread() const;
  // Nothing more is sent; the other side reads what was, then an end.
  void finish_sending();
  // Nothing goes either way any more; what was sent still arrives, unless the other side
  // goes on sending. Whoever polls it wakes up.
  void end();

 private:
  static constexpr size_t kCrumbBytes = 4096;

  size_t buffered() const { return filled_ - taken_; }
  bool fill();
  size_t receive_once(std::byte* into, size_t bytes);
  void lose(int error);
  void lose_unless_told(int error);

  int rank_;
  PrivateFd socket_;
  bool far_ = false;
  FrameHeader out_;
  size_t header_sent_ = sizeof(FrameHeader);
  FrameHeader in_;
  bool has_header_ = false;
  std::vector<std::byte> buffer_;  // read ahead: [taken_, filled_)
  size_t taken_ = 0, filled_ = 0;
  bool waits_in_ = false, waits_out_ = false;
  bool deaf_ = false;  // the other side takes nothing any more; what it has said is still read
  std::string why_;
};

}  // namespace hvd
