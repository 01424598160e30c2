// How long a job of many hosts takes to be ready, and what that costs hvdrun: its side of the
// control streams here, all the agents in a process of their own, each on a stream as a real one's.
//
// Ready: every agent was told to start its ranks, has said that they run and wait in init(), and
// has been told the first epoch.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/epoch_relay.h"
#include "cli/messages.h"
#include "cli/start_state.h"
#include "rendezvous/client.h"
#include "rendezvous/membership.h"
#include "rendezvous/server.h"
#include "runtime/base/deadline.h"

namespace hvd {
namespace {

constexpr std::chrono::minutes kLimit{5};
constexpr const char* kJob = "benchmark";

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

// A blocking pipe for what is said before the streams are there, as ssh carries it, and for the
// last word.
class Words {
 public:
  explicit Words(UniqueFd fd) : fd_(std::move(fd)) {}

  void say(const std::string& word) {
    const uint32_t size = uint32_t(word.size());
    move(::write, const_cast<uint32_t*>(&size), sizeof size);
    move(::write, const_cast<char*>(word.data()), word.size());
  }
  std::string hear() {
    uint32_t size = 0;
    move(::read, &size, sizeof size);
    std::string word(size, 0);
    move(::read, word.data(), size);
    return word;
  }

 private:
  template <typename Call>
  void move(Call call, void* at, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
      const ssize_t n = call(fd_.get(), static_cast<char*>(at) + done, bytes - done);
      if (n <= 0) fail("the other side is gone");
      done += size_t(n);
    }
  }
  UniqueFd fd_;
};

struct Shape {
  int hosts = 512, ranks = 8;  // of each
  bool tls = true;
};

// The process of the agents.
class Agents {
 public:
  Agents(const Shape& shape, std::vector<UniqueFd> sockets, Words& words)
      : shape_(shape), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    std::vector<AgentKey> keys(size_t(shape.tls ? shape.hosts : 0));
    for (const AgentKey& key : keys) words.say(key.request());
    const std::string authority = shape.tls ? words.hear() : "", address = words.hear();
    for (int host = 0; host < shape.hosts; ++host) {
      if (shape.tls)
        agents_.push_back(std::make_unique<RendezvousClient>(RendezvousClient::Remote{
            {address}, keys[size_t(host)].with(authority, words.hear()), kLimit}));
      else
        agents_.push_back(std::make_unique<RendezvousClient>(std::move(sockets[size_t(host)])));
      epoll_event event{EPOLLIN, {.u32 = uint32_t(host)}};
      epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, agents_.back()->wake_fd(), &event);
      proto::FromAgent hello;
      hello.mutable_attached()->set_host(host);
      agents_.back()->send(hello);
      proto::FromAgent listening;
      listening.mutable_listening()->add_addresses("127.0.0.1:" + std::to_string(10'000 + host));
      agents_.back()->send(listening);
    }
  }

  void run_until_ready() {
    int ready = 0;
    while (ready < shape_.hosts) {
      epoll_event events[64];
      const int count = epoll_wait(epoll_.get(), events, 64, 60'000);
      if (count <= 0) fail(std::to_string(ready) + " agents are ready, and nothing moves");
      for (int i = 0; i < count; ++i) {
        RendezvousClient& agent = *agents_[events[i].data.u32];
        const RendezvousClient::Incoming news = agent.take();
        if (news.closed) fail("a stream was closed: " + news.why);
        for (const proto::ToAgent& order : news.messages) {
          if (order.has_start()) start(agent, order.start());
          ready += order.has_start_epoch();
        }
      }
    }
  }

 private:
  static void start(RendezvousClient& agent, const proto::StartWorkers& order) {
    proto::FromAgent started, wanted;
    for (const proto::World& world : order.worlds()) {
      started.mutable_started()->add_ranks(world.rank());
      started.mutable_started()->add_pids(1);
    }
    agent.send(started);
    for (const proto::World& world : order.worlds()) {
      proto::FromAgent claimed;
      claimed.mutable_claimed()->set_rank(world.rank());
      claimed.mutable_claimed()->set_pid(1);
      agent.send(claimed);
      wanted.mutable_epoch_wanted()->add_ranks(world.rank());
      agent.send(wanted);  // as they come into init(), one more each time
    }
  }

  const Shape shape_;
  const UniqueFd epoll_;
  std::vector<std::unique_ptr<RendezvousClient>> agents_;
};

// hvdrun's side: the server, the job's Membership, and what it tells to whom.
class Launcher {
 public:
  Launcher(const Shape& shape, const StartState& state)
      : shape_(shape),
        state_(state),
        hosts_(size_t(shape.hosts)),
        sessions_(size_t(shape.hosts), -1),
        slots_(make_slots(hosts_, shape)),
        membership_(hosts_, slots_, {.size_min = 0, .start_timeout = kLimit}, Clock::now()) {
    spec_.command = {"./train", "--epochs", "60"};
    spec_.directory = "/";
  }

  void let_in(std::vector<UniqueFd> sockets, Words& words) {
    if (shape_.tls) {
      const JobAuthority authority(kJob);
      std::vector<std::string> requests;
      for (int host = 0; host < shape_.hosts; ++host) requests.push_back(words.hear());
      RendezvousServer::Remote remote;
      remote.job = kJob;
      remote.credentials = authority.launcher();
      const std::string here[] = {"127.0.0.1"};
      remote.listeners = listen_on(here);
      remote.limits = {.all = 64, .per_address = 64};  // they come from one address here
      remote.audit = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
      words.say(authority.certificate());
      words.say(remote.listeners.front().address.text());
      server_ = std::make_unique<RendezvousServer>(std::move(remote));
      for (int host = 0; host < shape_.hosts; ++host)
        words.say(authority.sign(requests[size_t(host)], host));
    } else {
      words.say("");
      server_ = std::make_unique<RendezvousServer>();
      for (UniqueFd& socket : sockets) server_->add(std::move(socket));
    }
    for (const Slot& slot : slots_) permitted_[slot.host].insert(slot.world.rank);
    for (const auto& [host, ranks] : permitted_) server_->permit(host, ranks);
  }

  void run_until_started() {
    perform(membership_.begin(Clock::now()));
    const Deadline deadline = Deadline::in(kLimit);
    while (told_ < shape_.hosts) {
      pollfd one{server_->wake_fd(), POLLIN, 0};
      if (poll(&one, 1, deadline.poll_timeout_ms()) <= 0)
        fail(std::to_string(told_) + " agents were told the epoch, and nothing moves");
      for (const RendezvousServer::Incoming& news : server_->take())
        for (const proto::FromAgent& message : news.messages) hear(news.session, message);
    }
  }

 private:
  static std::vector<Slot> make_slots(std::vector<Host>& hosts, const Shape& shape) {
    for (size_t i = 0; i < hosts.size(); ++i)
      hosts[i] = {"host" + std::to_string(i), "", shape.ranks, true};
    return assign_slots(hosts, shape.hosts * shape.ranks);
  }

  void hear(int session, const proto::FromAgent& message) {
    const TimePoint now = Clock::now();
    if (message.has_attached()) {
      sessions_[size_t(message.attached().host())] = session;
      perform(membership_.apply(event::AgentJoined{message.attached().host()}, now));
    } else if (message.has_listening()) {
      relay_.note(host_of(session), message.listening());
    } else if (message.has_started()) {
      const auto& ranks = message.started().ranks();
      perform(membership_.apply(event::WorkersStarted{{ranks.begin(), ranks.end()}}, now));
    } else if (message.has_claimed()) {
      perform(membership_.apply(event::RankClaimed{message.claimed().rank()}, now));
    } else if (message.has_epoch_wanted()) {
      const auto& ranks = message.epoch_wanted().ranks();
      perform(membership_.apply(event::EpochWanted{{ranks.begin(), ranks.end()}}, now));
    }
  }

  int host_of(int session) const {
    return int(std::find(sessions_.begin(), sessions_.end(), session) - sessions_.begin());
  }

  void perform(const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      if (const auto* start = std::get_if<action::StartWorkers>(&action)) {
        proto::ToAgent order;
        *order.mutable_start() =
            start_message(spec_, state_, start->worlds, start->host, shape_.hosts);
        server_->send(sessions_[size_t(start->host)], order);
      } else if (const auto* epoch = std::get_if<action::StartEpoch>(&action)) {
        relay_.start(*epoch);
      } else {
        fail("the job ends");
      }
    }
  }

  const Shape shape_;
  const StartState& state_;
  std::vector<Host> hosts_;
  std::vector<int> sessions_;
  const std::vector<Slot> slots_;
  JobSpec spec_;
  Membership membership_;
  std::map<int, std::set<int>> permitted_;
  std::unique_ptr<RendezvousServer> server_;
  EpochRelay relay_{[this](int host, const proto::ToAgent& order) {
    server_->send(sessions_[size_t(host)], order);
    ++told_;
  }};
  int told_ = 0;
};

double peak_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::atof(line.c_str() + 6) / 1024;
  fail("/proc/self/status says nothing of VmHWM");
}

struct Pairs {
  std::vector<UniqueFd> ours, theirs;
  void add() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) fail(std::strerror(errno));
    ours.emplace_back(ends[0]);
    theirs.emplace_back(ends[1]);
  }
};

int run(const Shape& shape) {
  const StartState state = take_start_state();
  Pairs words, streams;
  words.add();
  for (int host = 0; host < (shape.tls ? 0 : shape.hosts); ++host) streams.add();
  const pid_t child = fork();  // before either side has a thread
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    words.ours.clear();
    streams.ours.clear();
    Words to_launcher(std::move(words.theirs.front()));
    Agents agents(shape, std::move(streams.theirs), to_launcher);
    agents.run_until_ready();
    to_launcher.say("ready");
    to_launcher.hear();  // until the other side has looked at itself
    std::_Exit(0);
  }
  words.theirs.clear();
  streams.theirs.clear();
  Words to_agents(std::move(words.ours.front()));
  Launcher launcher(shape, state);
  const TimePoint begin = Clock::now();
  launcher.let_in(std::move(streams.ours), to_agents);
  launcher.run_until_started();
  to_agents.hear();
  const double took_s = std::chrono::duration<double>(Clock::now() - begin).count();
  std::printf("{\"ready\": %.3f, \"hvdrun memory\": %.1f}\n", took_s, peak_mib());
  std::fflush(stdout);
  to_agents.say("");
  waitpid(child, nullptr, 0);
  std::_Exit(0);  // as hvdrun leaves: nobody waits for gRPC's threads
}

}  // namespace
}  // namespace hvd

int main(int argc, char** argv) {
  const std::string how = argc == 4 ? argv[3] : "";
  const hvd::Shape shape{argc == 4 ? std::atoi(argv[1]) : 0, argc == 4 ? std::atoi(argv[2]) : 0,
                         how == "tls"};
  if (shape.hosts < 1 || shape.ranks < 1 || (how != "tls" && how != "sockets")) {
    std::fprintf(stderr, "usage: %s HOSTS RANKS tls|sockets\n", argv[0]);
    return 2;
  }
  try {
    return hvd::run(shape);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    std::_Exit(1);
  }
}
