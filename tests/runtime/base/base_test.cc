// Errors, environment, deadlines, fault points.
#include <fcntl.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"
#include "runtime/base/fault_point.h"
#include "runtime/base/present_gpus.h"
#include "runtime/base/private_fd.h"
#include "runtime/base/process_mark.h"
#include "runtime/base/usable_cpus.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace hvd;

TEST_CASE("env: a number that is none is named") {
  setenv("HVD_TEST_NUMBER", "12", 1);
  CHECK(env::get_integer("HVD_TEST_NUMBER") == 12);
  setenv("HVD_TEST_NUMBER", "12x", 1);
  CHECK_THROWS_WITH(env::get_integer("HVD_TEST_NUMBER"), Catch::Contains("HVD_TEST_NUMBER=12x"));
  env::unset("HVD_TEST_NUMBER");
  CHECK_FALSE(env::get_integer("HVD_TEST_NUMBER").has_value());
}

TEST_CASE("deadline: never has no timeout and does not pass") {
  CHECK(Deadline::never().poll_timeout_ms() == -1);
  CHECK_FALSE(Deadline::never().passed());
  const TimePoint now = Clock::now();
  CHECK(Deadline::at(now + std::chrono::microseconds(1500)).poll_timeout_ms(1000, now) == 2);
  CHECK(Deadline::at(now).passed(now));
}

TEST_CASE("fault point: acts at the k-th passing and only there") {
  fault::arm("*:2:throw");
  CHECK_NOTHROW(fault_point("*"));
  CHECK_THROWS_AS(fault_point("*"), Error);
  CHECK_NOTHROW(fault_point("*"));
  fault::arm(nullptr);
}

TEST_CASE(
    "fault point: delays hold threads up, beside what is armed, until they are switched off") {
  constexpr int kPoints = 100'000;
  const auto pass_all = [] {
    const TimePoint begin = Clock::now();
    for (int i = 0; i < kPoints; ++i) fault_point("*");
    return Clock::now() - begin;
  };
  fault::arm("delay:7");
  CHECK(pass_all() > std::chrono::milliseconds(5));  // 780 times 30 µs are expected
  fault::arm("*:2:throw");
  CHECK_NOTHROW(fault_point("*"));
  CHECK_THROWS_AS(fault_point("*"), Error);
  fault::arm(nullptr);
  CHECK(fault::armed);
  fault::arm("delay:0");
  CHECK_FALSE(fault::armed);
  CHECK_THROWS_AS(fault::arm("delay:x"), Error);
}

TEST_CASE("fault point: takes no name, count or action that could never be meant") {
  const auto refusal = [](const char* text) -> std::string {
    try {
      fault::arm(text);
    } catch (const Error& error) {
      return error.what();
    }
    fault::arm(nullptr);
    return "";
  };
  CHECK_THAT(refusal("foo"), Catch::Contains("neither NAME:K:ACTION nor count:FILE"));
  CHECK_THAT(refusal("count:"), Catch::Contains("neither NAME:K:ACTION nor count:FILE"));
  CHECK_THAT(refusal("typo_point:1:kill"), Catch::Contains("no fault point is called"));
  for (const char* text : {"store_ask:0:kill", "store_ask::kill", "store_ask:1x:kill"})
    CHECK_THAT(refusal(text), Catch::Contains("at which passing"));
  for (const char* text : {"store_ask:1:", "store_ask:1:exit=256", "store_ask:1:die"})
    CHECK_THAT(refusal(text), Catch::Contains("no action is called"));
  for (const char* text : {"store_ask:1:exit=0", "*:12:stop", "store_ask:1:throw"})
    CHECK(refusal(text).empty());
}

TEST_CASE("present gpus: each of the driver's files is one, whatever its number") {
  const TemporaryDirectory devices;
  for (const char* name :
       {"nvidia0", "nvidia2", "nvidia11", "nvidia", "nvidiactl", "nvidia-uvm", "nvidia3x", "null"})
    std::ofstream(devices.path() / name);
  CHECK(present_gpus(devices.path().c_str()) == 3);
  CHECK(present_gpus((devices.path() / "none").c_str()) == 0);
}

TEST_CASE("usable cpus: no more than the affinity mask allows, and at least one") {
  int all = 0, bound = 0;
  std::jthread([&] {  // the mask is the thread's
    all = usable_cpus();
    cpu_set_t mask, one;
    sched_getaffinity(0, sizeof mask, &mask);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu)
      if (CPU_ISSET(cpu, &mask)) CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    bound = usable_cpus();
  })
      .join();
  CHECK(all >= 1);
  CHECK(bound == 1);
}

TEST_CASE("private fd: a forked child closes those that are open, and nothing else") {
  std::vector<PrivateFd> open_ones;
  for (int i = 0; i < 150; ++i) open_ones.emplace_back(UniqueFd(eventfd(0, EFD_CLOEXEC)));
  const int closed = open_ones[70].get();
  open_ones[70].reset();
  const UniqueFd reused(fcntl(open_ones[0].get(), F_DUPFD_CLOEXEC, closed));
  REQUIRE(reused.get() == closed);
  PrivateFd moved = std::move(open_ones[3]);
  open_ones.erase(open_ones.begin() + 3);
  const pid_t child = fork();
  if (child == 0) {
    PrivateFd::close_all_in_child();
    const auto is_open = [](int fd) { return fcntl(fd, F_GETFD) >= 0; };
    bool right = is_open(reused.get()) && !is_open(moved.get());
    for (const PrivateFd& one : open_ones) right &= !one || !is_open(one.get());
    const int taken = fcntl(reused.get(), F_DUPFD, moved.get());
    moved.reset();
    right &= is_open(taken);
    _exit(right ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(fcntl(moved.get(), F_GETFD) >= 0);
}

TEST_CASE("process mark: a forked child and its child are told from the process that was marked") {
  const ProcessMark marked;
  const pid_t child = fork();
  if (child == 0) {
    const ProcessMark own;
    const bool right = marked.in_child() && !own.in_child();
    const pid_t grandchild = fork();
    if (grandchild == 0) _exit(marked.in_child() && own.in_child() ? 0 : 1);
    int status = -1;
    waitpid(grandchild, &status, 0);
    _exit(right && status == 0 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK_FALSE(marked.in_child());
}
