// A job on several hosts without hvdrun: ranks as processes below one HostMemory for each host,
// with the agents' parts that connect hosts and hvdrun's relay between them.
//
// The test's own thread is the loop of all. Links lie on loopback. One epoch, of all who ask for
// one.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/agent/other_hosts.h"
#include "cli/epoch_relay.h"
#include "tests/support/host_job.h"

namespace hvd {

struct HostsJobOptions {
  std::vector<int> hosts;  // ranks of each
  std::string program{};   // name of a RankProgram of this binary
  std::vector<std::string> environment{};
  std::map<int, std::vector<std::string>> rank_environment{};
};

class HostsJob {
 public:
  explicit HostsJob(const HostsJobOptions& options);

  int ranks() const { return static_cast<int>(host_of_.size()); }
  HostJob::Rank& rank(int rank) { return job_of(rank).rank(slot_of(rank)); }
  RankBoard& board(int rank) { return job_of(rank).board(slot_of(rank)); }
  RankFacts facts(int rank) { return job_of(rank).facts(slot_of(rank)); }
  void signal(int rank, int signal) { job_of(rank).signal(slot_of(rank), signal); }
  // As those of HostJob.
  bool run(std::chrono::milliseconds limit = std::chrono::seconds(60));
  bool run_until(const std::function<bool()>& done,
                 std::chrono::milliseconds limit = std::chrono::seconds(60));
  std::string describe();

 private:
  struct Host {
    int first_rank = 0, ranks = 0;
    std::unique_ptr<OtherHosts> others;
    std::unique_ptr<HostJob> job;  // its events go to the one above
    std::vector<int> asked;        // slots, once nobody else of it lives
  };

  HostJob& job_of(int rank) { return *host_of(rank).job; }
  Host& host_of(int rank) { return hosts_[host_of_[static_cast<size_t>(rank)]]; }
  int slot_of(int rank) { return rank - host_of(rank).first_rank; }
  void add_host(const HostsJobOptions& options, int ranks);
  void turn(TimePoint at_latest);
  void hear();
  void start_epoch();
  void deliver(int host, const proto::ToAgent& order);

  Loop loop_;
  EpochRelay relay_;
  std::vector<size_t> host_of_;  // by rank
  std::deque<std::pair<int, proto::FromAgent>> said_;
  bool started_ = false;
  std::set<int> ended_;
  std::deque<Host> hosts_;  // last: their loop and relay are above
};

}  // namespace hvd
