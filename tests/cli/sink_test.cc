// Sinks: order, limits, failures, and several targets behind one thread.
#include "cli/sink.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "cli/pipe.h"
#include "runtime/base/deadline.h"
#include "tests/support/catch.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

void wait_until(Sink& sink, const std::function<bool()>& condition) {
  const Deadline deadline = Deadline::in(20s);
  while (!condition()) {
    pollfd one{sink.wake_fd(), POLLIN, 0};
    REQUIRE(poll(&one, 1, deadline.poll_timeout_ms()) == 1);
    sink.clear_wake();
  }
}

// Until the pipe is full: the writer stands in its next write.
void wait_until_blocked(const Pipe& pipe) {
  for (const Deadline limit = Deadline::in(20s);; poll(nullptr, 0, 1)) {
    int unread = 0;
    REQUIRE(ioctl(pipe.read.get(), FIONREAD, &unread) == 0);
    if (unread == fcntl(pipe.write.get(), F_GETPIPE_SZ)) return;
    REQUIRE_FALSE(limit.passed());
  }
}

std::string read_some(int fd) {
  char buffer[65536];
  const ssize_t n = read(fd, buffer, sizeof buffer);
  return {buffer, size_t(n > 0 ? n : 0)};
}

}  // namespace

TEST_CASE("sink: writes in order, each block to its target") {
  Pipe one = make_pipe(), two = make_pipe();
  Sink sink("test", {one.write.get(), two.write.get()}, 1 << 20);
  for (int i = 0; i < 100; ++i) sink.push(size_t(i % 2), std::to_string(i) + "\n");
  wait_until(sink, [&] { return sink.idle(); });
  std::string wanted[2];
  for (int i = 0; i < 100; ++i) wanted[i % 2] += std::to_string(i) + "\n";
  CHECK(read_some(one.read.get()) == wanted[0]);
  CHECK(read_some(two.read.get()) == wanted[1]);
  CHECK(sink.lost_bytes() == 0);
}

TEST_CASE("sink: a reader that stands still can be given up, and what is lost is counted") {
  Pipe pipe = make_pipe();
  Sink sink("test", {pipe.write.get()}, 100'000);
  const std::string block(65536, 'x');
  for (int i = 0; i < 4; ++i) sink.push(0, block);  // the pipe holds one of them
  pollfd begun{pipe.read.get(), POLLIN, 0};
  REQUIRE(poll(&begun, 1, 20'000) == 1);
  CHECK(sink.full());
  sink.give_up();
  CHECK_FALSE(sink.full());
  CHECK(sink.idle());
  sink.push(0, block);  // dropped too
  CHECK(sink.idle());
  CHECK(sink.lost_bytes() >= int64_t(3 * block.size()));
  CHECK(sink.unread_bytes() == sink.lost_bytes());
  size_t got = 0;  // so that its thread can end
  while (got < block.size()) got += read_some(pipe.read.get()).size();
  CHECK(sink.lost_bytes() >= int64_t(3 * block.size()));
}

TEST_CASE("sink: a reader is seen to take a page, and a byte") {
  Pipe pipe = make_pipe();
  Sink sink("test", {pipe.write.get()}, 100'000);
  CHECK(sink.takes());  // there is nothing to take
  for (int i = 0; i < 3; ++i) sink.push(0, std::string(65536, 'x'));
  wait_until_blocked(pipe);
  const Deadline limit = Deadline::in(20s);
  const auto wait_until_still = [&] {
    while (sink.takes()) REQUIRE_FALSE(limit.passed());
  };
  const auto wait_until_it_takes = [&] {  // the writer may be between two writes
    while (!sink.takes()) REQUIRE_FALSE(limit.passed());
  };
  wait_until_still();
  CHECK_FALSE(sink.takes());
  char page[4096];
  REQUIRE(read(pipe.read.get(), page, 1) == 1);
  wait_until_it_takes();
  wait_until_still();
  REQUIRE(read(pipe.read.get(), page, sizeof page - 1) == sizeof page - 1);
  wait_until_blocked(pipe);
  CHECK(sink.takes());
  wait_until_still();
  REQUIRE(read(pipe.read.get(), page, sizeof page) == sizeof page);
  wait_until_blocked(pipe);
  wait_until_still();
  sink.give_up();
  CHECK(sink.idle());
  const auto lost = int64_t(2 * 65536 - 2 * sizeof page);
  while (sink.lost_bytes() != lost && !limit.passed()) poll(nullptr, 0, 1);
  CHECK(sink.lost_bytes() == lost);
  size_t got = 2 * sizeof page;
  while (got < 2 * 65536) got += read_some(pipe.read.get()).size();  // so that its thread can end
}

TEST_CASE("sink: what waits is dropped up to whole lines and kept words, and counted") {
  Pipe pipe = make_pipe();
  Sink sink("test", {pipe.write.get()}, 1 << 20);
  std::string lines;
  for (int i = 0; i < 30'000; ++i) lines += std::to_string(100'000 + i) + "\n";
  sink.push(0, lines);
  wait_until_blocked(pipe);
  sink.push(0, "dropped\n");
  sink.push(0, "kept\n", true);
  sink.push(0, "dropped too\n");
  sink.drop();
  CHECK_FALSE(sink.idle());
  sink.push(0, "later\n", true);
  std::string got;
  while (!got.ends_with("later\n")) got += read_some(pipe.read.get());
  wait_until(sink, [&] { return sink.idle(); });
  const size_t whole = got.size() - std::string("kept\nlater\n").size();
  CHECK(whole % 7 == 0);
  CHECK(whole < lines.size());
  CHECK(got == lines.substr(0, whole) + "kept\nlater\n");
  CHECK(sink.unread_bytes() == int64_t(lines.size() - whole) + 8 + 12);
  CHECK(sink.lost_bytes() == sink.unread_bytes());
}

TEST_CASE("sink: with nothing to drop nothing changes") {
  Pipe pipe = make_pipe();
  Sink sink("test", {pipe.write.get()}, 100'000);
  sink.push(0, "one");
  wait_until(sink, [&] { return sink.idle(); });
  sink.drop();
  sink.push(0, "two");
  wait_until(sink, [&] { return sink.idle(); });
  CHECK(sink.lost_bytes() == 0);
  CHECK(read_some(pipe.read.get()) == "onetwo");
}

TEST_CASE("sink: says when it is full, and wakes when it no longer is") {
  Pipe pipe = make_pipe();
  Sink sink("test", {pipe.write.get()}, 100'000);
  CHECK_FALSE(sink.full());
  const std::string block(65536, 'x');
  for (int i = 0; i < 4; ++i) sink.push(0, block);  // the pipe holds one of them
  CHECK(sink.full());
  size_t got = 0;
  while (got < 4 * block.size()) got += read_some(pipe.read.get()).size();
  wait_until(sink, [&] { return !sink.full(); });
  wait_until(sink, [&] { return sink.idle(); });
}

TEST_CASE("sink: one target that fails is remembered and counted, the others go on") {
  signal(SIGPIPE, SIG_IGN);
  Pipe closed = make_pipe(), open_pipe = make_pipe();
  closed.read.reset();
  Sink sink("test", {closed.write.get(), open_pipe.write.get()}, 1 << 20);
  sink.push(0, "lost");
  wait_until(sink, [&] { return sink.error(0) != 0 && sink.idle(); });
  CHECK(sink.error(0) == EPIPE);
  sink.push(0, "lost too");
  sink.push(1, "fine");
  wait_until(sink, [&] { return sink.idle(); });
  CHECK(sink.error(1) == 0);
  CHECK(sink.lost_bytes() == 12);
  CHECK(sink.unread_bytes() == 0);
  CHECK(read_some(open_pipe.read.get()) == "fine");
}

TEST_CASE(
    "sink: a full disk is an error with its number, and what it cost nobody has left unread") {
  UniqueFd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  REQUIRE(full);
  Sink sink("test", {full.get()}, 1 << 20);
  sink.push(0, "abc");
  wait_until(sink, [&] { return sink.error(0) != 0 && sink.idle(); });
  CHECK(sink.error(0) == ENOSPC);
  sink.drop();
  sink.push(0, "abcde");
  sink.give_up();
  sink.push(0, "abcdefg");
  CHECK(sink.lost_bytes() == 15);
  CHECK(sink.unread_bytes() == 0);
}

TEST_CASE("sink: what is queued is written before it goes") {
  Pipe pipe = make_pipe();
  {
    Sink sink("test", {pipe.write.get()}, 1 << 20);
    for (int i = 0; i < 10; ++i) sink.push(0, "line\n");
  }
  CHECK(read_some(pipe.read.get()).size() == 50);
}

TEST_CASE("sink: a descriptor that somebody made non-blocking loses nothing") {
  Pipe pipe = make_pipe();
  set_nonblocking(pipe.write.get());
  Sink sink("test", {pipe.write.get()}, 1 << 20);
  for (int i = 0; i < 4; ++i) sink.push(0, std::string(65536, 'x'));
  size_t got = 0;
  while (got < 4 * 65536) got += read_some(pipe.read.get()).size();
  wait_until(sink, [&] { return sink.idle(); });
  CHECK(sink.error(0) == 0);
}

}  // namespace hvd
