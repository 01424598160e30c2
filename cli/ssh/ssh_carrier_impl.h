// What the parts of SshCarrier share: one start, and the ssh that it has at the time.
#pragma once

#include <set>
#include <string>

#include "cli/ssh/ssh_carrier.h"

namespace hvd {

struct SshCarrier::Ssh {
  pid_t pid;
  UniqueFd in, out, words;
  RemoteStart remote;
  bool in_watched = false;
  int file = -1;  // of the offer, that `shipped` is open for
  UniqueFd shipped = {};
  std::optional<TimePoint> judged_at = {};  // then it is over, whether ssh has ended or not
};

struct SshCarrier::Start {
  int host;
  Host target;
  StartTime time;
  TimePoint due, since;  // of the next attempt; the first one's
  int attempts = 0;
  int broken = 0;  // of them, with something of ours running there
  HostKeys keys = HostKeys::kKnown;
  bool is_old_ssh = false;
  std::set<std::string> told_keys = {};  // of jump hosts, and then its own
  bool copy_anew = false;                // the copy there did not run
  std::string reason = {};               // why the last attempt failed
  std::optional<StartPhase> noted = {};  // last, in this attempt or the one that it goes on
  std::unique_ptr<Ssh> ssh = {};
};

}  // namespace hvd
