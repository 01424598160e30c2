// The life of the job step by step, for --verbose and --log-level.
//
// Lives on the supervisor's loop. spdlog puts time and level before each line; at the level that is
// the default nothing is made, and nothing said.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/exit_code.h"
#include "cli/job_spec.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/membership.h"

namespace spdlog {
class logger;
}

namespace hvd {

class JobLog {
 public:
  // `write` gets whole lines, their ends included.
  JobLog(const JobSpec& spec, std::function<void(std::string_view line)> write);
  ~JobLog();

  void began(const std::string& job, const JobSpec& spec);
  void counted(int ranks) const;                         // by the GPUs of the hosts
  void starts(int host, const std::string& what) const;  // how far the start of its agent is
  void note(int host, const proto::FromAgent& message);
  void note(const Action& action);
  void reached(const std::string& host, const std::string& address, const std::string& interface,
               const std::string& why) const;
  void unreached(const std::string& line) const;
  void ended(const ExitStatus& status, double seconds);

 private:
  void say(LogLevel level, const std::string& text) const;
  void listens(const std::string& agent, const proto::Listening& where);
  void perform(const action::StartWorkers& start);
  void perform(const action::StartEpoch& start);
  void perform(const action::RefuseEpoch& refuse);
  void perform(const action::EndJob& end);
  std::string host(int number) const { return hosts_.at(size_t(number)).name; }

  const std::vector<Host> hosts_;
  std::unique_ptr<spdlog::logger> logger_;  // empty: nobody wants to know
};

// What is said to the user beside the log, and not as an error: not with --log-level error.
bool wants_warnings(const JobSpec& spec);

}  // namespace hvd
