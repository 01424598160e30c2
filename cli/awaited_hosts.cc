#include "cli/awaited_hosts.h"

#include <algorithm>
#include <map>

#include "cli/failure_report.h"

namespace hvd {

std::vector<std::string> awaited_lines(std::vector<AwaitedHost> hosts) {
  std::erase_if(hosts, [](const AwaitedHost& one) { return one.told; });
  std::ranges::stable_partition(hosts, [](const AwaitedHost& one) { return !one.queued; });
  std::vector<std::string> lines;
  for (size_t i = 0; i < std::min(hosts.size(), kHostLinesMost); ++i)
    lines.push_back(hosts[i].host + ": " + hosts[i].state + hosts[i].details);
  if (hosts.size() <= kHostLinesMost) return lines;
  std::map<std::string, int> counts;
  for (size_t i = kHostLinesMost; i < hosts.size(); ++i) ++counts[hosts[i].state];
  std::string line = std::to_string(hosts.size() - kHostLinesMost) + " more hosts";
  for (const char* mark = ": "; const auto& [state, count] : counts) {
    line += mark + std::to_string(count) + " " + state;
    mark = ", ";
  }
  lines.push_back(line);
  return lines;
}

}  // namespace hvd
