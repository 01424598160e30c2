#include "tests/collectives/nccl/standin_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <stdexcept>

extern char** environ;

namespace hvd {

Process::Process(const std::string& rank_program, std::vector<std::string> variables) {
  for (char** each = environ; *each != nullptr; ++each) variables.emplace_back(*each);
  std::vector<char*> environment;
  for (std::string& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);
  std::array<int, 2> ends = {};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  std::string program = "/proc/self/exe", flag = "--rank-program", name = rank_program;
  std::array<char*, 4> arguments = {program.data(), flag.data(), name.data(), nullptr};
  const int result =
      posix_spawn(&id_, program.c_str(), &actions, nullptr, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  stderr_ = ends[0];
  if (result != 0) throw std::runtime_error("posix_spawn");
}

Process::~Process() {
  if (id_ > 0) {
    kill();
    ::waitpid(id_, nullptr, 0);
  }
  ::close(stderr_);
}

void Process::kill() { ::kill(id_, SIGKILL); }

bool Process::read_more() {
  pollfd polled = {stderr_, POLLIN, 0};
  if (::poll(&polled, 1, 60'000) != 1)
    throw std::runtime_error("a rank said nothing for 60 s; before: " + text_);
  std::array<char, 4096> piece;
  const ssize_t got = ::read(stderr_, piece.data(), piece.size());
  if (got > 0) text_.append(piece.data(), static_cast<size_t>(got));
  return got > 0;
}

void Process::wait_for_line(const std::string& begin) {
  for (;;) {
    const size_t found = ("\n" + text_).find("\n" + begin);
    if (found != std::string::npos && text_.find('\n', found) != std::string::npos) return;
    if (!read_more()) throw std::runtime_error("a rank ended early: " + text_);
  }
}

int Process::wait() {
  while (read_more()) {
  }
  int status = 0;
  ::waitpid(id_, &status, 0);
  id_ = -1;
  return status;
}

}  // namespace hvd
