// What the ranks of a communicator and the hub in the process that made its unique id say to each
// other over a Unix socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace hvd {

enum class Message : uint32_t {
  kHello,  // the first of a connection
  kCollective,
  kSplit,
  kWindow,
  kConnect,
  kFinalize,
  kReply,
  kPeerDied,
};
const char* name_of(Message kind);

enum class Collective : int32_t { kAllReduce, kBroadcast, kAllGather };

// One for each kind of message: what a kind does not speak of is zero, so that two ranks' calls are
// the same if all of it is.
struct Header {
  Message kind = Message::kReply;
  int32_t result = 0;           // ncclResult_t
  int32_t rank = 0, ranks = 0;  // kHello and the reply to kSplit
  int32_t channel = 0;          // kHello: 0 the data's, 1 the control's
  int32_t collective = 0, type = 0, op = 0, root = 0;
  int32_t color = 0, key = 0;  // kSplit
  int32_t flags = 0;           // kWindow
  uint64_t group = 0;          // kHello: the communicator; reply to kSplit: the new one
  uint64_t count = 0;          // elements; kWindow: bytes; kHello: hash of the unique ids
  uint64_t offset = 0;         // kWindow
  uint64_t place = 0;          // kCollective: in what is registered, 0 for nowhere
  uint64_t scalar = 0;         // the bits of it, each rank's own
  uint64_t bytes = 0;          // of the body
};

struct Frame {
  Header header;
  std::vector<std::byte> body;
};

// A rank's end. Calls that wait end when close() is called; after that there is nothing to be had.
class Connection {
 public:
  // To the hub of that name; null: there is none.
  static std::unique_ptr<Connection> open(const std::string& name);
  explicit Connection(int fd) : fd_(fd) {}
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // False: the other end is gone, or it was closed.
  bool send(const Frame& frame);
  bool receive(Frame& frame);
  // Whether something has come, without waiting: kReply for nothing, kPeerDied for a death that is
  // told or that of the hub.
  Message look() const;
  // From any thread.
  void close() noexcept;

 private:
  void await() const;  // something to receive

  const int fd_;
};

// Abstract names begin with a zero in the address and with '@' here.
int listen_on(const std::string& name);

}  // namespace hvd
