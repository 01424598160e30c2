#include "cli/remote_cleaning.h"

#include <utility>
#include <vector>

#include "cli/agent/worker_environment.h"

namespace hvd {
namespace {

std::vector<std::string> role_words(const CleanOrder& order) {
  std::vector<std::string> words{"--clean"};
  if (order.dry_run) words.emplace_back("--dry-run");
  if (order.all) words.emplace_back("--all");
  if (!order.job.empty()) words.insert(words.end(), {"--job", order.job});
  return words;
}

}  // namespace

// Who has told has ended, and its ssh, which we may not wait for, goes with what it started.
bool nobody_lives(const proto::CleanReport& report, const HostIdentity& host) {
  return report.nobody() && !host.boot.empty() && report.boot() == host.boot &&
         report.processes() == host.processes;
}

RemoteCleaning::RemoteCleaning(Loop& loop, const JobSpec& spec, const StartState& start,
                               const CleanOrder& order, Events events)
    : spec_(spec),
      events_(std::move(events)),
      file_("/proc/self/exe"),
      carrier_(
          loop, file_,
          {.ssh = spec.ssh,
           .environment = start.environment,
           .path = value_in(start.environment, "PATH", kDefaultPath),
           .role = role_words(order),
           .ends_after_hello = true},
          {.started =
               [this](int host, const AgentChannels& channels, const std::string& words) {
                 carrier_.kill_ssh(channels.pid);
                 on_told(host, words);
               },
           .failed = [this](int host, const std::string& reason) { on_failed(host, reason); }}) {}

void RemoteCleaning::start(int host, Deadline deadline, Deadline there) {
  waiting_.insert(host);
  carrier_.start(host, spec_.hosts.at(size_t(host)), deadline, there);
}

void RemoteCleaning::on_told(int host, const std::string& words) {
  proto::CleanReport report;
  if (!report.ParseFromString(words)) return on_failed(host, "what came from there is no report");
  waiting_.erase(host);
  events_.told(host, report);
}

void RemoteCleaning::on_failed(int host, const std::string& reason) {
  waiting_.erase(host);
  events_.failed(host, reason);
}

}  // namespace hvd
