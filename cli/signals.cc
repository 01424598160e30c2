#include "cli/signals.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstring>

namespace hvd {
namespace {

void set_default_and_unblock(int signal) {
  ::signal(signal, SIG_DFL);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, signal);
  pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
}

}  // namespace

void settle_signals() {
  signal(SIGCHLD, SIG_DFL);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

SignalReader::SignalReader(std::initializer_list<int> signals,
                           unsigned long long ignored_at_start) {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : signals)
    if (!(ignored_at_start >> (signal - 1) & 1)) sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  fd_.reset(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

std::vector<int> SignalReader::take() {
  std::vector<int> signals;
  signalfd_siginfo info;
  while (read(fd_.get(), &info, sizeof info) == ssize_t(sizeof info))
    signals.push_back(int(info.ssi_signo));
  return signals;
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name ? "SIG" + std::string(name) : "signal " + std::to_string(signal);
}

void die_by(int signal) {
  set_default_and_unblock(signal);
  kill(getpid(), signal);  // not raise(): the process, not this thread
  _exit(128 + signal);
}

void let_tstp_stop() {
  set_default_and_unblock(SIGTSTP);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, SIGTSTP);
  pthread_sigmask(SIG_BLOCK, &one, nullptr);
}

}  // namespace hvd
