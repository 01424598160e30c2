#include "tests/support/host_job.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "rendezvous/agent_socket.h"
#include "runtime/base/env.h"

extern char** environ;

namespace hvd {
namespace {

constexpr int kBoardFd = 199;  // in a rank

RankBoard* map_boards(int fd, int count) {
  const size_t bytes = sizeof(RankBoard) * static_cast<size_t>(count);
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) throw std::runtime_error("the test cannot map its boards");
  return static_cast<RankBoard*>(at);
}

}  // namespace

void RankBoard::write(const std::string& what) {
  const size_t length = std::min(what.size(), sizeof text - 1);
  std::memcpy(text, what.data(), length);
  text[length] = 0;
}

RankBoard& rank_board() {
  static RankBoard* const own = [] {
    const int slot = AgentAddress::parse(env::get("HVD_AGENT").value_or("")).slot;
    return map_boards(kBoardFd, slot + 1) + slot;
  }();
  return *own;
}

HostJob::HostJob(HostJobOptions options)
    : options_(std::move(options)), loop_(options_.loop != nullptr ? *options_.loop : own_loop_) {
  const int ranks = options_.ranks;
  board_memory_.reset(memfd_create("hvd-test-boards", MFD_CLOEXEC));
  if (ftruncate(board_memory_.get(), static_cast<off_t>(sizeof(RankBoard)) * ranks) != 0)
    throw std::runtime_error("the test cannot make its boards");
  boards_ = map_boards(board_memory_.get(), ranks);
  ranks_.resize(static_cast<size_t>(ranks));

  HostMemoryEvents events;
  events.epoch_wanted = [this](const std::vector<int>& slots, bool all) {
    if (options_.epoch_wanted) {
      options_.epoch_wanted(slots, all);
    } else if (all && (!options_.whole || static_cast<int>(slots.size()) == options_.ranks)) {
      start_epoch(slots);
    } else if (all) {
      memory_->refuse_init("a rank has ended", false);
    }
  };
  events.dead = [this](int slot, const Death&) { rank(slot).dead = Clock::now(); };
  events.given_up = [this](int slot, const std::string& why) { rank(slot).given_up = why; };
  events.links_wanted = options_.links_wanted;
  events.warn = [this](const std::string& text) { warnings_.push_back(text); };
  if (options_.add_events) options_.add_events(events);
  HostMemoryOptions memory = options_.memory;
  memory.slots = ranks;
  memory_ = std::make_unique<HostMemory>(loop_, memory, std::move(events));
  for (int slot = 0; slot < ranks; ++slot) spawn(slot);
}

HostJob::~HostJob() {
  for (int slot = 0; slot < options_.ranks; ++slot) {
    Rank& one = rank(slot);
    if (!one.pidfd) continue;
    signal(slot, SIGKILL);
    siginfo_t info;
    waitid(P_PIDFD, static_cast<id_t>(one.pidfd.get()), &info, WEXITED);
    loop_.unwatch(one.pidfd.get());
  }
  memory_.reset();
  munmap(boards_, sizeof(RankBoard) * static_cast<size_t>(options_.ranks));
}

void HostJob::spawn(int slot) {
  std::vector<std::string> words;
  for (char** word = environ; *word != nullptr; ++word)
    if (std::strncmp(*word, "HVD_", 4) != 0) words.emplace_back(*word);
  words.push_back("HVD_AGENT=" + memory_->address(slot));
  for (const std::string& word : options_.environment) words.push_back(word);
  if (const auto own = options_.rank_environment.find(slot); own != options_.rank_environment.end())
    for (const std::string& word : own->second) words.push_back(word);
  std::vector<char*> environment;
  for (std::string& word : words) environment.push_back(word.data());
  environment.push_back(nullptr);
  std::string self = "/proc/self/exe", flag = "--rank-program", program = options_.program;
  char* const argv[] = {self.data(), flag.data(), program.data(), nullptr};

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, board_memory_.get(), kBoardFd);
  Rank& one = rank(slot);
  const int error =
      posix_spawn(&one.pid, self.c_str(), &actions, nullptr, argv, environment.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("the test cannot start a rank");
  one.pidfd.reset(static_cast<int>(syscall(SYS_pidfd_open, one.pid, 0)));
  memory_->started(slot, one.pid);
  loop_.watch(one.pidfd.get(), EPOLLIN, [this, slot](uint32_t) { reap(slot); });
}

void HostJob::reap(int slot) {
  Rank& one = rank(slot);
  siginfo_t info{};
  if (waitid(P_PIDFD, static_cast<id_t>(one.pidfd.get()), &info, WEXITED | WNOHANG) != 0 ||
      info.si_pid == 0)
    return;
  one.status = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
  one.reaped = Clock::now();
  loop_.unwatch(one.pidfd.get());
  one.pidfd.reset();
  if (memory_) memory_->ended(slot, one.status == 0);
}

void HostJob::start_epoch(const std::vector<int>& slots) {
  std::vector<EpochMember> members;
  const int size = static_cast<int>(slots.size());
  ++epochs_;
  for (int slot : slots) {
    const int local_rank = static_cast<int>(members.size());
    World world;
    world.epoch = epochs_;
    world.rank = world.local_rank = local_rank;
    world.size = world.local_size = size;
    world.host = "localhost";
    members.push_back({slot, world});
  }
  memory_->start_epoch(members);
}

bool HostJob::run(std::chrono::milliseconds limit) {
  return run_until(
      [this] {
        return std::all_of(ranks_.begin(), ranks_.end(),
                           [](const Rank& one) { return one.status.has_value(); });
      },
      limit);
}

bool HostJob::run_until(const std::function<bool()>& done, std::chrono::milliseconds limit) {
  const Deadline deadline = Deadline::in(limit);
  while (!done()) {
    if (deadline.passed()) return false;
    // A condition that only ranks change (a board) is looked at now and then.
    TimePoint next = std::min(deadline.when(), Clock::now() + std::chrono::milliseconds(5));
    if (memory_)
      if (const auto wish = memory_->deadline()) next = std::min(next, *wish);
    loop_.turn(next);
    if (memory_) memory_->tick(Clock::now());
  }
  return true;
}

void HostJob::signal(int slot, int number) {
  const Rank& one = rank(slot);
  if (one.pidfd) syscall(SYS_pidfd_send_signal, one.pidfd.get(), number, nullptr, 0);
}

std::string HostJob::describe() {
  std::string text = std::to_string(epochs_) + " epochs";
  for (int slot = 0; slot < options_.ranks; ++slot) {
    const Rank& one = rank(slot);
    text += "\nrank " + std::to_string(slot) + ": " +
            (one.status ? "status " + std::to_string(*one.status)
                        : "still running, " + (memory_ ? memory_->facts(slot).doing : "")) +
            (one.given_up.empty() ? "" : ", given up") + " \"" + board(slot).text + "\"";
  }
  for (const std::string& warning : warnings_) text += "\n" + warning;
  return text;
}

long count_fault_points(const std::string& file) {
  std::ifstream stream(file);
  std::string name;
  long count = 0, sum = 0;
  while (stream >> name >> count) sum += count;
  return sum;
}

}  // namespace hvd
