// Agents and hosts that do not answer or are gone, and what the job makes of it.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "cli/agent/clean_host.h"
#include "cli/agent/descendants.h"
#include "cli/agent/job_processes.h"
#include "cli/agent/process_state.h"
#include "cli/messages.h"
#include "cli/quoted.h"
#include "cli/signals.h"
#include "cli/ssh/ssh_command.h"
#include "cli/supervisor_impl.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kCleanLimit{10'000};  // of a host whose end readers hold up
static_assert(kOneJobMost + std::chrono::seconds(3) <= kCleanLimit);  // ssh takes its time, too
constexpr milliseconds kKillLimit{300};  // of what forks without end, until sweep()
constexpr size_t kWordsShown = 300;
// What last words before one cut differ by: a beat, a look that is a tick old, and some delay.
constexpr milliseconds kTogether{2500};

std::string seconds(milliseconds time) {
  return std::to_string(time / std::chrono::seconds(1)) + " s";
}

// One on another host starts nothing before it has reached hvdrun; one here may have, and its
// keeper has ended that.
std::string lost_words(const HostAgent& agent) {
  const std::string& words = agent.last_words();
  const std::string how = agent.how_ended().empty() ? "" : " (" + agent.how_ended() + ")";
  if (agent.attached())
    return agent.name() + " was lost" + how +
           (agent.remote() ? "; its ranks end with it" : "; its ranks were ended");
  if (!agent.remote())
    return agent.name() + " ended before it had reached hvdrun" + how +
           (words.empty() ? "" : "; its last words were " + in_quotes(words, kWordsShown));
  return "no agent on " + agent.host().name + ": it ended before it had reached hvdrun" +
         (words.empty()
              ? ", without a word; what --ssh-command names has to leave ssh its standard "
                "input, by which hvdrun speaks to it (no -n, no </dev/null)"
              : "; its last words were " + in_quotes(words, kWordsShown));
}

}  // namespace

// All hosts elsewhere whose agents may still speak, and they are several: one host's trouble is no
// reason for that.
bool Supervisor::all_fell_silent_with(HostAgent& agent) const {
  int silent = 0;
  for (const auto& one : agents_) {
    if (!one->remote() || one->ended() || one->keeper_gone()) continue;
    if (one->watch().silence() + kTogether < agent.watch().silence()) return false;
    ++silent;
  }
  return agent.remote() && silent > 1;
}

void Supervisor::on_watch(HostAgent& agent, AgentWatch::Due due) {
  const std::string who = agent.name();
  const std::string silence = seconds(agent.watch().silence());
  switch (due) {
    case AgentWatch::Due::kNothing:
      break;
    case AgentWatch::Due::kSaySilent:
      say(who + " has not answered for " + silence);
      break;
    case AgentWatch::Due::kCloseLease:
      if (!agent.remote() && agent.watch().excuse(held_by_debugger(agent.process()))) return;
      if (membership_.ending())
        say(who + (agent.remote() ? " does not answer; if its keeper lives, it ends what runs there"
                                  : " does not answer; its keeper ends the job"));
      lose(agent, all_fell_silent_with(agent)
                      ? "no other host has answered for " + silence +
                            "; all fell silent together: look at this machine's network first"
                      : who + " did not answer for " + silence +
                            (agent.remote() ? "" : " (--agent-timeout)"));
      agent.close_lease();
      break;
    case AgentWatch::Due::kKillKeeper:
      if (agent.keeper_killed) {
        // Said before.
      } else if (agent.remote() && agent.ended())
        say("the ssh to " + agent.host().name +
            (agent.missing_output() > 0
                 ? " has brought nothing of what is missing of the output for " +
                       seconds(AgentWatch::kHostSilence)
                 : " does not end, as something there holds its output open") +
            "; killing it");
      else if (!agent.remote())
        say(agent.ended()          ? "the keeper does not end; killing it"
            : agent.control_open() ? "the agent and its keeper do not answer; killing them"
                                   : "the agent is lost and its keeper does not end; killing it");
      agent.keeper_killed = true;
      // Not reaped yet, so the pid is its own; what it leaves comes to us. An ssh leads a group of
      // its own, in which what it started is.
      kill(agent.remote() ? -agent.pipes().pid() : agent.pipes().pid(), SIGKILL);
      break;
    case AgentWatch::Due::kGiveUp:
      for (const Descendant& one : descendants(getpid()))
        if (one.pid == agent.pipes().pid())
          say("process " + std::to_string(one.pid) + " (" +
              (agent.remote() ? "the ssh to " + agent.host().name : "the keeper") +
              ") is not waited for any longer: " + why_not_ended(one, true));
      on_keeper_gone(agent, SIGKILL);
      break;
  }
}

void Supervisor::on_keeper_gone(HostAgent& agent, int status) {
  agent.pipes().read_words_there();  // what the keeper said of its end, if it came to that
  const TimePoint now = Clock::now();
  agent.note_keeper_end(status, now);
  note_held();
  give_credit();
  if (agent.cut_off()) {
    const auto left = std::chrono::ceil<std::chrono::seconds>(agent.safe_at().value_or(now) - now);
    say("the connection to " + agent.host().name + " is lost" +
        (left.count() > 0 ? "; waiting until what runs there has ended, up to " + seconds(left)
                          : ""));
    // Where its stream still lives it is told to end.
    lose(agent, lost_words(agent));
    agent.close_lease();
    if (agent.attached()) clean_after(agent);
  } else if (WIFSIGNALED(status) && !agent.keeper_killed && !agent.ended())
    say((agent.remote() ? "the ssh to " + agent.host().name : "the keeper") + " was killed by " +
        signal_name(WTERMSIG(status)) + "; the job is ended");
}

// Its agent and keeper end what runs there, or were killed together, with what ranks had started
// left to nobody. That is looked for while who is cut off is waited for anyway: below an agent or a
// keeper that still ends the job there is nothing of the kind.
void Supervisor::clean_after(const HostAgent& agent) {
  const auto unknown = [this](int host) {
    const Host& there = spec_.hosts.at(size_t(host));
    if (!agent_of(host)->ended())
      say("whether anything still runs on " + there.name + " is not known; once it is back, " +
          clean_by_hand(spec_.ssh, there) + " tells and ends it");
  };
  CleanOrder order;
  order.job = record_.job();
  try {
    if (!cleaning_)
      cleaning_.emplace(loop_, spec_, start_, role_words(order),
                        RemoteErrand::Events{
                            .told =
                                [this, order](int host, const std::string& message) {
                                  proto::CleanReport report;
                                  if (!report.ParseFromString(message)) return false;
                                  HostAgent* lost = agent_of(host);
                                  if (lost && nobody_lives(report, lost->identity))
                                    lost->note_nobody_left();
                                  if (report.jobs().empty()) return true;
                                  for (const std::string& line : describe(report, order))
                                    say(spec_.hosts.at(size_t(host)).name + ": " + line);
                                  return true;
                                },
                            .failed = [unknown](int host, const std::string&) { unknown(host); }});
    const TimePoint now = Clock::now(), until = agent.over_at().value_or(now + kCleanLimit);
    cleaning_->start(agent.number(), until - now, Deadline::in({}), until);
  } catch (const Error&) {  // hvdrun's own file cannot be read
    unknown(agent.number());
  }
}

// A keeper that ended has left nobody. If it was killed with its agent, what ranks had started is
// below us now; who reads their output may be waited for long, so that does not wait for sweep().
// Other keepers and every ssh go on; a look at the GPUs that runs is given up.
void Supervisor::kill_left(const HostAgent& agent) {
  if (agent.remote() || agent.keeper_ended()) return;
  gpu_look_.reset();
  kill_descendants(Deadline::in(kKillLimit), [this](pid_t child) {
    const auto is_keeper = [&](const auto& one) {
      return !one->keeper_gone() && one->pipes().pid() == child;
    };
    return strangers_.have(child) || (remote_hosts_ && remote_hosts_->is_ssh(child)) ||
           (cleaning_ && cleaning_->is_ssh(child)) || std::ranges::any_of(agents_, is_keeper);
  });
}

// An agent without a last word: its ranks were ended, whatever they had done. That is known before
// their output has come out, which its reader may put off for ever.
void Supervisor::note_lost(TimePoint now) {
  for (const auto& agent : agents_) {
    if (agent->lost || agent->ended() || !agent->silenced(now)) continue;
    agent->lost = true;
    kill_left(*agent);
    const std::string words = lost_words(*agent);
    if (!agent->dismissed()) record_.note_agent_lost({agent->host().name, words}, agent->stopping);
    if (!agent->frames().noise().empty()) say("before the agent spoke: " + agent->frames().noise());
    lose(*agent, words);
    if (!say_why_at_) say_why_at_ = now + kReportSoon;
  }
}

}  // namespace hvd
