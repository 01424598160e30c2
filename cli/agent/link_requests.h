// Between HostMemory and LinkService: a rank asks for several links at once, and gets each as soon
// as it is there, or none more once one cannot be had.
//
// A passive object on the agent's loop.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cli/agent/host_memory.h"
#include "cli/agent/link_service.h"

namespace hvd {

class LinkRequests {
 public:
  // Where the agent of a rank on another host is called.
  struct Place {
    std::string host;  // its name, for texts
    SocketAddress address;
    std::string trouble = {};  // why it has no address
  };

  // Both have to live as long as this.
  LinkRequests(LinkService& service, HostMemory& memory, Clock::duration patience)
      : service_(service), memory_(memory), patience_(patience) {}

  // Before the host's ranks hear of the epoch. `others`: all ranks on other hosts, by their numbers
  // in its world; what is still to come for an earlier epoch is dropped.
  void start_epoch(uint32_t epoch, std::set<int> local_ranks, std::map<int, Place> others);
  void wanted(const LinksWanted& wanted);  // HostMemoryEvents::links_wanted

 private:
  struct Set {
    LinksWanted wanted;
    size_t missing = 0;  // of its links
  };
  std::string objection(int from, int to) const;
  void arrived(size_t set, size_t place, UniqueFd link, const std::string& why);

  LinkService& service_;
  HostMemory& memory_;
  const Clock::duration patience_;
  std::map<int, Place> others_;
  std::map<size_t, Set> sets_;
  size_t last_ = 0;
};

}  // namespace hvd
