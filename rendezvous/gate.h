// Accepts connections on a thread of its own and hands each on; who then does not prove in time who
// it is loses its connection.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/admission.h"
#include "rendezvous/listener.h"

namespace hvd {

// Both are called on the gate's thread.
struct GateEvents {
  std::function<void(UniqueFd)> admit;
  std::function<void(const std::string& host, const std::string& why)> refused;
};

class Gate {
 public:
  Gate(std::vector<Listener> listeners, const Admission::Limits& limits, GateEvents events);
  ~Gate();

  // All from any thread.
  void add(std::vector<Listener> listeners);
  // Nobody else is accepted; who was keeps the time to prove who it is.
  void close();
  // Who is connected from `peer` has proven who it is. It may have tried other ways, from the same
  // address or from `others`: of what had come by then, and goes, nothing is said.
  void proven(const SocketAddress& peer, std::set<std::string> others);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hvd
