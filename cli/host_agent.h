// One host's agent as hvdrun knows it: its pipes, its control stream, whether it answers, and how
// it and its keeper ended.
//
// Lives on the supervisor's loop, which decides what follows from all this.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/agent_clock.h"
#include "cli/agent_pipes.h"
#include "cli/agent_watch.h"
#include "cli/carrier.h"
#include "cli/frame.h"
#include "cli/host_identity.h"
#include "cli/interfaces.h"
#include "cli/loop.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/server.h"
#include "rendezvous/slots.h"
#include "runtime/base/deadline.h"

namespace hvd {

class HostAgent {
 public:
  // `number`: of the host among the job's. A remote one has spoken, and its control stream comes
  // by itself.
  HostAgent(int number, Host host, Loop& loop, AgentChannels channels,
            AgentPipes::Callbacks callbacks, std::vector<char>& buffer,
            AgentWatch::Duration timeout);

  int number() const { return number_; }
  const Host& host() const { return host_; }
  std::string name() const { return "the agent on " + host_.name; }
  bool remote() const { return host_.remote; }
  AgentPipes& pipes() { return pipes_; }
  const AgentPipes& pipes() const { return pipes_; }
  AgentWatch& watch() { return watch_; }
  FrameReader& frames() { return frames_; }

  // What it is to start from; until it is sent, orders may be put into it.
  proto::Bootstrap& bootstrap() { return bootstrap_; }
  void send_bootstrap();
  bool bootstrapped() const { return bootstrapped_; }
  TimePoint began() const { return began_; }

  // Its control stream. What is ordered before it has attached is sent then.
  void attach(RendezvousServer& server, int session, pid_t process);
  void heard(TimePoint now);
  void order(RendezvousServer& server, const proto::ToAgent& order);
  void close_control() { control_open_ = false; }
  bool control_open() const { return control_open_; }
  bool attached() const { return session_.has_value(); }
  bool is(int session) const { return session_ == session; }
  pid_t process() const { return process_; }  // 0: not known yet
  AgentClock& clock() { return clock_; }

  // From when on it runs ranks, by our order: there is no output of theirs before.
  void note_start() { runs_ranks_ = true; }
  bool runs_ranks() const { return runs_ranks_; }
  void close_lease();  // nothing below it may run any longer
  // The job ends. One elsewhere that has not reached hvdrun runs nothing, and hears of it so.
  void dismiss();
  bool dismissed() const { return dismissed_; }
  // Its last word was heard: so much output its ranks had.
  void note_end(int64_t output_bytes);
  void note_output(size_t bytes, TimePoint now);
  // More of its ranks' output may be on its way: some is unread, or came just now. (Over a slow
  // line nothing else tells between two frames.)
  bool sends(TimePoint now) const;
  // After its last word: bytes of output that ssh, say, has not brought yet.
  int64_t missing_output() const;
  // While there are any, its ssh has its time; not while we do not read, either.
  void be_patient(TimePoint now);
  void note_words(std::string_view line);
  const std::string& last_words() const { return words_; }  // a line of its stderr
  // As "it was killed by SIGKILL"; empty when nobody has told.
  const std::string& how_ended() const { return how_ended_; }
  void note_keeper_end(int status, TimePoint now);
  void note_nobody_left() { cut_off_ = false; }  // the host itself says so
  bool ended() const { return ended_; }
  bool keeper_gone() const { return keeper_gone_at_.has_value(); }
  bool keeper_ended() const { return keeper_ended_; }  // by itself: nobody is left below it
  // The keeper is gone, and no word of the agent's comes any more. Of a host that is cut off
  // nothing is known: there it is the time when whoever is there has ended itself.
  bool silenced(TimePoint now) const;
  // And what was in the channels has come out or is given up.
  bool over(TimePoint now) const;
  bool cut_off() const { return cut_off_; }
  // Of a host that is cut off: nothing runs there from then on.
  std::optional<TimePoint> safe_at() const;
  std::optional<TimePoint> over_at() const;  // at the latest; nothing while readers hold it up

  bool held = false;           // a debugger holds one of its ranks
  bool told_held = false;      // that one holds ranks of other hosts
  bool asked = false;          // it owes an answer to what was asked last
  bool keeper_killed = false;  // by us
  bool lost = false;           // and that has been said
  bool stopping = false;       // it has heard that the job ends
  HostIdentity identity;
  int gpus = 0;                              // of the host, where its slots stand for them
  int gpus_there = 0;                        // of the host, in all
  std::vector<InterfaceAddress> interfaces;  // of the host
  std::string by_ssh;                        // its address there, as other hosts may know it
  InterfaceAddress place;                    // where other hosts reach it
  std::string way_back;                      // where hvdrun listens for it
  size_t stdin_given = 0, stdin_taken = 0;   // bytes
  bool stdin_gone = false;                   // nobody there reads any more
  int master_port = 0;                       // that it holds

 private:
  const int number_;
  const TimePoint began_ = Clock::now();
  const Host host_;
  AgentPipes pipes_;
  AgentWatch watch_;
  FrameReader frames_;
  std::string words_;
  proto::Bootstrap bootstrap_;
  bool bootstrapped_ = false;
  std::optional<int> session_;
  pid_t process_ = 0;
  std::vector<proto::ToAgent> early_orders_;
  bool control_open_ = true;
  AgentClock clock_;
  bool runs_ranks_ = false, dismissed_ = false;
  int64_t output_bytes_ = 0, output_bytes_all_ = 0;  // that have come; of its ranks
  TimePoint output_at_{};                            // the last
  bool ended_ = false, keeper_ended_ = false, cut_off_ = false;
  std::string how_ended_;
  TimePoint heard_{};
  std::optional<TimePoint> keeper_gone_at_;
};

}  // namespace hvd
