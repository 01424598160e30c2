// A program that uses libhvd, for the end-to-end tests: `worker WHAT RANK` does WHAT where it is
// that rank.
//
// - loop: all ranks sum without end
// - bulk: the same, with more at once than sockets take
// - desert: RANK ends with exit code 0 after a few sums, without shutdown(); the others go on
// - leave: the same, after shutdown()
// - apathy: the same, but the others sum no more; when it is gone they end with exit code 7
// - crash: RANK kills itself with SIGSEGV after a few sums; the others say what they were told
// - idle: RANK sums no more after a few sums, and sleeps
// - apart: after a few sums RANK computes, rank 1 waits for an asynchronous operation, others sum
// - wait:NAME: after a few sums RANK sleeps, and the others wait for an operation of that name
// - held: all submit an operation, and call shutdown() once it is in the log
// - absent: RANK never calls init(), and sleeps
// - forget: all end with exit code 0 after a few sums, without shutdown()
// - epochs: ten times init(), a sum, shutdown()
#include <hvd/hvd.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

namespace {

void sum(size_t count = 1000) {
  std::vector<float> x(count, float(hvd::rank()));
  hvd::allreduce_(std::span(x), {.op = hvd::ReduceOp::kSum});
  if (x[7] != float(hvd::size() * (hvd::size() - 1)) / 2) std::abort();
}

void wait_for_maximum(const std::string& name) {
  std::vector<float> x(1000);
  hvd::allreduce_async_(x, {.name = name, .op = hvd::ReduceOp::kMax})->wait();
}

void leave_with_one_in_the_log() {
  std::vector<float> x(1000), other(hvd::rank() == 0 ? 1000 : 999);
  const auto held = hvd::allreduce_async_(x, {.name = "held"});
  const auto behind = hvd::allreduce_async_(other, {.name = "behind"});
  try {
    behind->wait();
  } catch (const hvd::CommFailure&) {
    throw;
  } catch (const hvd::Error&) {  // refused, and so the other one is in the log
  }
  hvd::shutdown();
}

// Without a call of hvd once it has its pid: nothing tells this rank what the other's end means.
void watch_end(bool here) {
  std::vector<int32_t> pid{here ? getpid() : 0};
  hvd::allreduce_(std::span(pid), {.op = hvd::ReduceOp::kSum});
  if (here) return;
  pollfd gone{static_cast<int>(syscall(SYS_pidfd_open, pid[0], 0)), POLLIN, 0};
  if (gone.fd >= 0 && poll(&gone, 1, 60'000) != 1) std::abort();
  std::fprintf(stderr, "my labels are wrong\n");
  std::_Exit(7);
}

int run(const std::string& what, bool here) {
  if (what == "absent" && here) {
    pause();
    return 0;
  }
  if (what == "epochs") {
    for (int i = 0; i < 10; ++i) {
      hvd::init();
      sum();
      hvd::shutdown();
    }
    return 0;
  }
  const bool waits = what.starts_with("wait:");
  hvd::init();
  for (int i = 0;; ++i) {
    sum(what == "bulk" ? 8'000'000 : 1000);
    if (i == 3) std::printf("going\n"), std::fflush(stdout);
    if (i >= 10 && what == "apart" && hvd::rank() == 1) wait_for_maximum("later");
    if (i >= 10 && what == "apathy") watch_end(here);
    if (i >= 10 && what == "forget") return 0;
    if (i >= 10 && what == "held") return leave_with_one_in_the_log(), 0;
    if (i >= 10 && waits && !here) wait_for_maximum(what.substr(5));
    if (i < 10 || !here || what == "loop" || what == "bulk") continue;
    if (what == "idle" || what == "apart" || waits) pause();
    if (what == "crash") raise(SIGSEGV);
    if (what == "leave") hvd::shutdown();
    std::_Exit(0);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const char* rank = std::getenv("HVD_RANK");
  try {
    return run(argv[1], rank != nullptr && std::string(argv[2]) == rank);
  } catch (const hvd::Error& error) {
    std::fprintf(stderr, "worker: %s\n", error.what());
    return 3;
  }
}
