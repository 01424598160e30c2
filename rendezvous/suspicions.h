// What is said of connections that went, or were turned away, before they proved who they are.
//
// Some are a good agent's own: who tries several addresses gives up all but one, and where many
// agents come from one address, a ninth has to come again. So nothing is said for as long as an
// agent may take to prove who it is, nor later if one from there has; but who comes from more
// addresses than a job's agents knock from at a time is told of at once.
//
// Pure.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/deadline.h"

namespace hvd {

class Suspicions {
 public:
  struct Suspicion {
    std::string host, why;
    size_t times;
  };

  explicit Suspicions(Clock::duration patience) : patience_(patience) {}

  // Of a connection from `host`, an address without its port.
  void note(const std::string& host, const std::string& why, TimePoint now);
  // Of one that was no good agent's.
  void note_certain(const std::string& host, const std::string& why) {
    due_.push_back({host, why, 1});
  }
  // An agent from there has proven who it is.
  void clear(const std::string& host) { held_.erase(host); }
  // What is to be said by now; all, at TimePoint::max().
  std::vector<Suspicion> take(TimePoint now);
  std::optional<TimePoint> next_deadline() const;

 private:
  struct Held {
    TimePoint until;
    std::map<std::string, size_t> times;  // by why
  };
  static constexpr size_t kHeldMost = 1024;  // hosts

  Clock::duration patience_;
  std::vector<Suspicion> due_;
  std::map<std::string, Held> held_;  // by host
};

}  // namespace hvd
