// What goes over an agent's socket, as the inputs of fuzz targets have it.
//
// An input is a row of packets: a byte of the target's own (kRaw apart), two of length, and that
// many bytes; the last one may be short. The bytes are those of the packet where kRaw is set, else
// kind, epoch, id (2), value (8) and the key's length (1) of a message, its key and its body.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "rendezvous/agent_socket.h"

namespace hvd {

struct Packet {
  static constexpr uint8_t kRaw = 0x80;

  uint8_t control = 0;
  std::string_view bytes;
};

class PacketReader {
 public:
  explicit PacketReader(std::string_view input) : input_(input) {}

  // False when there is no more.
  bool next(Packet& packet) {
    if (input_.size() < 3) return false;
    const size_t length = uint8_t(input_[1]) | size_t(uint8_t(input_[2])) << 8;
    packet = {uint8_t(input_[0]), input_.substr(3, length)};
    input_.remove_prefix(3 + packet.bytes.size());
    return true;
  }

 private:
  std::string_view input_;
};

// Takes from the front; what is missing is 0.
template <class Number>
Number take_number(std::string_view& bytes, size_t count) {
  Number number = 0;
  const size_t there = std::min(count, bytes.size());
  std::memcpy(&number, bytes.data(), there);
  bytes.remove_prefix(there);
  return number;
}

inline AgentMessage message_of(std::string_view bytes) {
  AgentMessage message;
  message.kind = AgentMessage::Kind(take_number<uint16_t>(bytes, 1));
  message.epoch = take_number<uint32_t>(bytes, 1);
  message.id = take_number<uint32_t>(bytes, 2);
  message.value = take_number<int64_t>(bytes, 8);
  const size_t key = take_number<size_t>(bytes, 1);
  message.key = bytes.substr(0, key);
  bytes.remove_prefix(message.key.size());
  message.body = to_bytes(std::string(bytes));
  return message;
}

// Who is gone does not hear it.
inline void send_packet(AgentSocket& from, const Packet& packet, std::span<const int> fds) {
  if ((packet.control & Packet::kRaw) == 0) return from.send(message_of(packet.bytes), fds);
  send(from.fd(), packet.bytes.data(), packet.bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace hvd
