// Reaches hosts by ssh: one ssh for each, so many at once, every one of which becomes an agent.
//
// Lives on its owner's loop and thread, which has to live as long as the process. What busy hosts
// drop is tried again, at random moments so that many do not come back together, and so is who may
// be there later, if asked for; what will not change is reported at once, and the rest when its
// time is over, which stands while a host waits for its turn or takes what is sent to it, as
// rsync's --timeout does: a slow line is no failure. A host's key that ssh has never seen is taken,
// and kept, by another attempt, unless the user's configuration forbids it; a changed one is
// refused, whatever that says.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include "cli/carrier.h"
#include "cli/loop.h"
#include "cli/ssh/agent_file.h"
#include "cli/ssh/remote_start.h"
#include "cli/ssh/ssh_command.h"
#include "cli/ssh/start_time.h"

namespace hvd {

class SshCarrier {
 public:
  struct Options {
    SshOptions ssh;
    std::vector<std::string> environment;          // "NAME=value"; ssh gets ssh_environment()
    std::string path;                              // where ssh is looked for
    int at_once = 64;                              // starts; hosts that are up do not count
    std::vector<std::string> role = {"--remote"};  // RemoteAgent::role
    const ShipOffer* offer = nullptr;              // to every host; kept by the caller
    bool ends_after_hello = false;                 // whoever is started does, and well
  };
  // Each host gets one of them, once. They may start other hosts, but not destroy the carrier.
  struct Callbacks {
    // The pipes are not blocking, and nothing is left in them of what came before `hello`. The
    // lease has had kFrameMagic put into it and wants frames: the agent passes over what came
    // before that, which may be line feeds that no start file read. There is no control stream:
    // the agent connects. Whoever gets them ends and reaps that ssh, by kill_ssh().
    std::function<void(int host, AgentChannels channels, std::string hello)> started;
    std::function<void(int host, std::string reason)> failed;
    // As `failed`, which is called without it, but the reason is this machine's: of what is
    // shipped.
    std::function<void(int host, std::string reason)> not_shipped = {};
    // For a log, each time: the phase that a host's start is in now, or why it is tried again.
    std::function<void(int host, const std::string& what)> noted = {};
    // ssh was told to take new host keys, and took these (new_host_keys()), whatever comes of it.
    std::function<void(int host, const std::vector<std::string>& keys)> new_keys = {};
  };
  struct Progress {
    StartPhase phase = StartPhase::kConnecting;
    TimePoint since;
    bool queued = false;  // others come first, or a retry has to wait
    bool judged = false;  // the last attempt has failed, and no other has heard anything yet
    int attempts = 0;
    std::string reason;  // of the last attempt's failure
    uint64_t copied = 0, bytes = 0;
    uint64_t shipped = 0, to_ship = 0;
  };

  SshCarrier(Loop& loop, AgentFile& file, Options options, Callbacks callbacks);
  ~SshCarrier();  // kills and reaps every ssh that nobody got

  // `host` is the caller's number for it. One that cannot be reached is tried again until `there`.
  // From its turn on, or from `there` if that is later, it has so much patience; but from when it
  // is reached, if that is sooner, and anew whenever it has taken some of what is sent to it.
  void start(int host, const Host& target, Clock::duration patience,
             Deadline there = Deadline::in({}));
  // Neither callback comes for it any more: its ssh is killed. Not from a callback.
  void give_up(int host);
  void stop();  // who was not handed over: killed; not from a callback
  void end() {  // and who was
    stop();
    for (const pid_t pid : handed_over_) kill_ssh(pid);
  }
  void excuse(Clock::duration time);  // all deadlines come so much later
  void turn(TimePoint now);           // does what is due
  std::optional<TimePoint> next_deadline() const;
  // If that child, which must not have been reaped, is an ssh of this carrier's, handed over or
  // not: kills it and what it started for a jump host, which ignores the SIGHUP that ssh sends it,
  // since ssh does. To be called for one that has ended, too.
  void kill_ssh(pid_t pid) const;
  bool is_ssh(pid_t pid) const { return kept_.contains(pid) || handed_over_.contains(pid); }
  // True if that child, which has been reaped, was this carrier's.
  bool child_ended(pid_t pid, int wait_status);

  // Nothing for a host that has started or failed.
  std::optional<Progress> progress(int host) const;

 private:
  struct Ssh;
  struct Start;

  // ssh_pipes.cc
  void close_watched(UniqueFd& fd);
  void read_output(Start& start);
  void read_words(Start& start);
  void read_rest(Start& start, const UniqueFd& fd, void (SshCarrier::*read)(Start&));
  void look(Start& start, TimePoint now);
  void note_phase(Start& start);
  void feed(Start& start);
  static void note_taken(Start& start, TimePoint now);
  // Bytes that were written, or less with errno as write() has it; nothing: the start has failed.
  std::optional<ssize_t> feed_shipped(Start& start, const RemoteStart::Piece& piece);

  // ssh_carrier.cc
  void turn(Start& start, TimePoint now);
  static bool hangs(Start& start, TimePoint now);
  void begin(Start& start, TimePoint now);
  void hand_over(Start& start);
  void tell_new_keys(Start& start);
  static bool ask_differently(Start& start, int wait_status);
  static StartPhase phase_of(const Ssh& ssh);
  void judge(Start& start, int wait_status, TimePoint now);
  void try_again(Start& start, std::string reason, Clock::duration most, TimePoint now);
  void fail(int host, const std::string& reason, bool of_ours = false);
  void drop(Start& start);
  std::string time_is_over(const Start& start, TimePoint now) const;
  std::string by_hand(const Start& start) const;

  Loop& loop_;
  AgentFile& file_;
  const Options options_;
  const Callbacks callbacks_;
  std::minstd_rand random_;
  std::map<int, std::unique_ptr<Start>> starts_;
  std::unordered_set<pid_t> kept_, handed_over_;  // every ssh that is not reaped
  int running_ = 0;
};

}  // namespace hvd
