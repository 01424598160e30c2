// How a job begins: its agents, here and on other hosts.
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <exception>
#include <set>
#include <utility>

#include "cli/agent/worker_environment.h"
#include "cli/gpu_settings.h"
#include "cli/job_check.h"
#include "cli/messages.h"
#include "cli/ssh/ssh_words.h"
#include "cli/supervisor_impl.h"
#include "runtime/base/error.h"
#include "runtime/base/fault_point.h"

namespace hvd {
namespace {

constexpr std::chrono::milliseconds kProgressFirst{1000};

// By host, elsewhere: of all, or of those whose files tell of GPUs.
std::map<int, int> ranks_with_gpus(const std::vector<std::unique_ptr<HostAgent>>& agents,
                                   const std::vector<Slot>& slots, bool of_all) {
  std::map<int, int> ranks;
  for (const auto& agent : agents)
    if (agent->remote() && (of_all || agent->gpus_there > 0))
      if (const auto own = std::ranges::count(slots, agent->number(), &Slot::host); own > 0)
        ranks[agent->number()] = int(own);
  return ranks;
}

}  // namespace

Supervisor::Supervisor(const JobSpec& spec, const std::vector<Slot>& slots, const StartState& start)
    : spec_(spec),
      slots_(slots),
      start_(start),
      signals_({SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT},
               start.ignored_signals & ~(1ull << (SIGCHLD - 1))),
      stop_asked_({SIGTSTP}, start.ignored_signals),
      output_(OutputOptions::of(spec)),
      log_(spec,
           [this](std::string_view line) {
             if (!output_.try_say(line, Clock::now())) ++unsaid_;
           }),
      record_(spec, slots, Clock::now()),
      authority_(has_remote_ranks(spec.hosts, slots) ? std::optional<JobAuthority>(record_.job())
                                                     : std::nullopt),
      server_(authority_ ? std::optional<RendezvousServer::Remote>(way_in()) : std::nullopt),
      membership_(spec.hosts, slots,
                  {.size_min = 0,
                   .start_timeout = spec.start_timeout,
                   .hosts_come = authority_.has_value(),
                   .gpus_unseen = uses_gpus(spec) && wants_gpu_look(spec, slots, start)},
                  Clock::now()),
      relay_(
          [this](int host, const proto::ToAgent& order) { agent_of(host)->order(server_, order); }),
      network_(
          [this](int host, const proto::ToAgent& order) { agent_of(host)->order(server_, order); }),
      other_pairs_([this](int host, const proto::ToAgent& order) {
        agent_of(host)->order(server_, order);
      }) {}

void Supervisor::begin(Carrier& carrier, const ShipOffer* offer) {
  look_at_gpus();
  start_agents(carrier, offer);
  fault_point("hvdrun_agent_started");
  loop_.watch(signals_.fd(), EPOLLIN, [this](uint32_t) { on_signals(); });
  watch_for_stop();
  loop_.watch(server_.wake_fd(), EPOLLIN, [this](uint32_t) { on_control(); });
  for (const auto& sink : output_.sinks())
    loop_.watch(sink->wake_fd(), EPOLLIN, [this](uint32_t) { on_sink(); });
  log_.began(record_.job(), spec_);
  perform(membership_.begin(Clock::now()));
  for (const auto& agent : agents_) agent->send_bootstrap();
  if (!authority_) begin_stdin();
  if (spec_.timeout.count() > 0) time_limit_ = Clock::now() + spec_.timeout;
  fault_point("hvdrun_bootstrap_sent");
}

// Beside the rest of the start, but that no rank that uses GPUs starts before it is over.
void Supervisor::look_at_gpus() {
  if (!wants_gpu_look(spec_, slots_, start_)) return;
  gpu_look_.emplace(
      loop_, spec_, slots_, start_,
      GpuLook::Events{
          .say =
              [this](const std::string& words) {
                if (!membership_.ending() && !record_.all_ended()) say(words);
              },
          .listed = [this](const std::vector<ListedGpu>& gpus) { take_whole_names(spec_, gpus); },
          .refuse =
              [this](const std::string& why) {
                tell(event::EndAsked{EndCause::kNotStarted, SIGTERM, why});
              },
          .enough = [this] { tell(event::GpusSeen{}); }});
  gpu_look_->turn(Clock::now());  // there may be none to ask
}

// Agents on this machine at once; those of other hosts come when they are there.
void Supervisor::start_agents(Carrier& carrier, const ShipOffer* offer) {
  std::set<int> used;
  for (const Slot& slot : slots_) used.insert(slot.host);
  for (const int number : used) {
    const Host& host = spec_.hosts.at(size_t(number));
    if (host.remote) continue;
    AgentChannels channels = carrier.start_agent(host);
    server_.add(std::move(channels.control));
    add_agent(number, std::move(channels));
  }
  if (!authority_) {
    begin_links();  // of pretended hosts
    return;
  }
  remote_hosts_.emplace(
      loop_, server_, *authority_, spec_, start_, offer,
      RemoteHosts::Events{
          .started =
              [this](int host, AgentChannels channels, const proto::Bootstrap& way_in,
                     const Hello& hello) {
                on_remote_started(host, std::move(channels), way_in, hello);
              },
          .failed = [this](const std::vector<FailedHost>& failed) { on_remote_failed(failed); },
          .noted = [this](int host, const std::string& what) { log_.starts(host, what); },
          .new_keys =
              [this](int, const std::vector<std::string>& keys) {
                new_keys_.insert(new_keys_.end(), keys.begin(), keys.end());
              }});
  for (const int number : used)
    if (spec_.hosts[size_t(number)].remote) remote_hosts_->start(number);
  say_progress_at_ = Clock::now() + kProgressFirst;
  are_you_there_at_ = Clock::now();
}

HostAgent& Supervisor::add_agent(int number, AgentChannels channels) {
  const Host& host = spec_.hosts.at(size_t(number));
  auto agent = std::make_unique<HostAgent>(
      number, host, loop_, std::move(channels),
      AgentPipes::Callbacks{[this, number](std::string_view bytes) {
                              if (HostAgent* one = agent_of(number)) on_output(*one, bytes);
                            },
                            [this, number](std::string_view line) { on_words(number, line); }},
      read_buffer_, spec_.agent_timeout);
  agent->identity = here_;
  if (authority_ && !host.remote) agent->interfaces = look_at_interfaces();
  agent->bootstrap().set_job(record_.job());
  agent->bootstrap().set_stop_grace_ms(int(spec_.stop_grace.count()));
  agent->bootstrap().set_port_low(spec_.ports.low);
  agent->bootstrap().set_port_high(spec_.ports.high);
  // Rank 0's host may yet turn out to be this one, by another name.
  const bool may_have_first = is_on(0, *agent) || (authority_ && !host.remote);
  const auto chosen = chosen_names(start_.environment, spec_.environment);
  agent->bootstrap().set_hold_port(may_have_first &&
                                   std::ranges::find(chosen, "MASTER_PORT") == chosen.end());
  const auto place = std::find_if(agents_.begin(), agents_.end(),
                                  [&](const auto& one) { return one->number() > number; });
  return **agents_.insert(place, std::move(agent));
}

RendezvousServer::Remote Supervisor::way_in() {
  RendezvousServer::Remote remote;
  remote.job = record_.job();
  remote.credentials = authority_->launcher();
  remote.audit = [this](const std::string& line) { say(line); };
  return remote;
}

void Supervisor::on_remote_started(int host, AgentChannels channels, const proto::Bootstrap& way_in,
                                   const Hello& hello) {
  HostAgent& agent = add_agent(host, std::move(channels));
  agent.identity = hello.identity;
  agent.gpus = hello.gpus;
  agent.gpus_there = hello.gpus_there;
  agent.interfaces = hello.interfaces;
  agent.by_ssh = hello.own_address;
  std::set<std::string> from;
  for (const InterfaceAddress& one : hello.interfaces) from.insert(one.address);
  server_.expect_from(host, std::move(from));
  if (!is_one_network(hello.identity, here_) && address_here_.empty())
    address_here_ = hello.hvdrun_address;
  for (const std::string& address : way_in.addresses())
    agent.way_back += (agent.way_back.empty() ? "" : " or ") + address;
  agent.bootstrap().MergeFrom(way_in);
  agent.send_bootstrap();
  if (!remote_hosts_->waiting()) on_all_hosts_there();
}

void Supervisor::say_new_keys() {
  if (new_keys_.empty()) return;
  if (wants_warnings(spec_)) say(new_keys_line(new_keys_));
  new_keys_.clear();
}

void Supervisor::on_remote_failed(const std::vector<FailedHost>& failed) {
  for (const FailedHost& one : failed)
    record_.note_not_started(spec_.hosts.at(size_t(one.host)).name, one.reason);
  std::vector<std::string> lines = no_agent_lines(failed, spec_.hosts);
  const std::string first = std::move(lines.back());  // the report says it
  lines.pop_back();
  for (const std::string& line : lines) say(line);
  const bool of_ours = failed.front().of_ours;
  tell(event::EndAsked{of_ours ? EndCause::kOwnFailure : EndCause::kNotStarted, SIGTERM, first});
}

// How many GPUs each has, and which of them are one, is known now, and so who gets which ranks.
SettledHosts Supervisor::settle() {
  const bool counts = counts_gpus(spec_.hosts);
  std::vector<std::optional<HostIdentity>> identities(spec_.hosts.size());
  for (const auto& agent : agents_) {
    identities[size_t(agent->number())] = agent->identity;
    count_slots(spec_.hosts[size_t(agent->number())], agent->gpus);
  }
  if (spec_.size_open) {
    spec_.size = 0;
    for (const Host& host : spec_.hosts) spec_.size += host.slots;
  }
  SettledHosts settled = settle_hosts(spec_.hosts, identities, spec_.size);
  if (!counts) return settled;
  if (const auto refusal = check_ranks(spec_, settled.slots, users_environment(spec_, start_)))
    throw Error(ErrorCode::kInvalidArgument, refusal->message);
  if (!spec_.size_open) return settled;
  const size_t watched = output_.sinks().size();
  output_.seat(spec_.size);
  for (size_t i = watched; i < output_.sinks().size(); ++i)
    loop_.watch(output_.sinks()[i]->wake_fd(), EPOLLIN, [this](uint32_t) { on_sink(); });
  spec_.size_open = false;
  log_.counted(spec_.size);
  return settled;
}

void Supervisor::on_all_hosts_there() {
  if (membership_.ending()) return;
  say_new_keys();
  const bool counts = counts_gpus(spec_.hosts);
  SettledHosts settled;
  try {
    settled = settle();
    check_ranks_of_gpus(spec_, settled.slots);
    for (const auto& agent : agents_)  // this machine's were looked at before anything started
      if (agent->remote() && std::ranges::count(settled.slots, agent->number(), &Slot::host) > 0)
        check_devices_of(spec_, agent->host().name, agent->gpus_there);
  } catch (const Error& error) {
    const std::string rule =
        counts ? "; a host without a count has one slot for each of its GPUs, or one" : "";
    return tell(event::EndAsked{EndCause::kOwnFailure, SIGTERM, error.what() + rule});
  }
  for (const std::string& note : settled.notes)
    if (wants_warnings(spec_)) say(note);
  slots_ = std::move(settled.slots);
  record_.seat(slots_);
  retire_idle_agents();
  close_door();
  for (const auto& agent : agents_) {
    std::set<int> ranks;
    for (const Slot& slot : slots_)
      if (slot.host == agent->number()) ranks.insert(slot.world.rank);
    if (agent->remote()) server_.permit(agent->number(), std::move(ranks));
  }
  if (gpu_look_) gpu_look_->ask_elsewhere(ranks_with_gpus(agents_, slots_, !counts));
  begin_stdin();  // all who read it are there
  const bool unproven = begin_links();
  perform(membership_.seat(slots_, unproven, clock_.time(Clock::now())));
  prove_network(Clock::now());
}

// Once every agent that has ranks is in: none that is lost comes back.
void Supervisor::close_door() {
  if (remote_hosts_ && !remote_hosts_->waiting() &&
      std::ranges::all_of(agents_, [](const auto& one) { return one->attached(); }))
    server_.close_door();
}

// Their ends are nobody's news: no rank was to run there.
void Supervisor::retire_idle_agents() {
  std::vector<std::unique_ptr<HostAgent>> needed;
  for (auto& agent : agents_) {
    const bool has_ranks = std::any_of(slots_.begin(), slots_.end(), [&](const Slot& slot) {
      return slot.host == agent->number();
    });
    if (!has_ranks) agent->close_lease();
    (has_ranks ? needed : retired_).push_back(std::move(agent));
  }
  agents_ = std::move(needed);
}

// Of rank 0's host, as all hosts reach it.
std::string Supervisor::master_address() const {
  const auto first =
      std::find_if(agents_.begin(), agents_.end(), [&](const auto& one) { return is_on(0, *one); });
  return first == agents_.end() || agents_.size() == 1 ? "127.0.0.1" : (*first)->place.address;
}

ExitStatus supervise(const JobSpec& spec, const std::vector<Slot>& slots, const StartState& start,
                     Carrier& carrier, const ShipOffer* offer) {
  settle_signals();
  sigset_t ttin;
  sigemptyset(&ttin);
  sigaddset(&ttin, SIGTTIN);
  pthread_sigmask(SIG_BLOCK, &ttin, nullptr);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  // Never destroyed, not when its start fails either: the process leaves by _exit, and gRPC's
  // shutdown may wait for a thread that it could not start.
  Supervisor& supervisor = *new Supervisor(spec, slots, start);
  try {
    supervisor.begin(carrier, offer);
    return supervisor.run();
  } catch (const std::exception&) {
    supervisor.write_what_was_said();
    throw;
  }
}

}  // namespace hvd
