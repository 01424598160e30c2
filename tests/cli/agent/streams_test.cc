// Bytes through an agent: workers' output as frames, stdin to its readers, and the credit for it.
#include "cli/agent/streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <numeric>
#include <random>

#include "cli/pipe.h"
#include "tests/support/catch.h"
#include "tests/support/seed.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;
using Key = std::pair<int, Stream>;

// A forwarder between pipes of workers and a reader of the frames.
struct Forwarding {
  Forwarding() : out(make_pipe()), forwarder(loop, out.write.get()) {
    set_nonblocking(out.read.get());
  }

  int add(int rank, Stream stream) {  // the worker's end
    Pipe pipe = make_pipe();
    set_nonblocking(pipe.read.get());
    forwarder.add(rank, stream, std::move(pipe.read));
    set_nonblocking(pipe.write.get());
    workers.push_back(std::move(pipe.write));
    return workers.back().get();
  }

  void turn() {
    const TimePoint soon = Clock::now() + 5ms;
    loop.turn(std::min(soon, forwarder.next_deadline().value_or(soon)));
    forwarder.on_deadline(Clock::now());
  }

  // Takes what has come out; false: nothing.
  bool read_some() {
    char buffer[64 << 10];
    const ssize_t count = read(out.read.get(), buffer, sizeof buffer);
    if (count <= 0) return false;
    std::string_view input(buffer, size_t(count));
    for (FrameReader::Piece piece; frames.next(input, piece);) {
      const Key key{piece.header.rank, piece.header.stream};
      if (piece.header.kind == FrameKind::kOwnWordsOver)
        over[key].push_back(seen[key]);
      else
        REQUIRE(piece.header.kind == FrameKind::kOutput);
      seen[key] += piece.bytes;
    }
    return true;
  }

  bool until(const std::function<bool()>& done) {
    for (const Deadline limit = Deadline::in(60s); !done(); turn(), read_some())
      if (limit.passed()) return false;
    return true;
  }

  Loop loop;
  Pipe out;
  OutputForwarder forwarder;
  std::vector<UniqueFd> workers;
  FrameReader frames{true};
  std::map<Key, std::string> seen;
  std::map<Key, std::vector<std::string>> over;  // what was seen when own words were over
};

void write_all(int fd, std::string_view text) {
  REQUIRE(write(fd, text.data(), text.size()) == ssize_t(text.size()));
}

std::string random_bytes(std::mt19937& random, size_t count) {
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = char(random());
  return bytes;
}

void ignore_broken_pipes() { signal(SIGPIPE, SIG_IGN); }

}  // namespace

TEST_CASE("streams: the end of a rank's own words stands behind them, wherever they have got to") {
  const size_t before = GENERATE(0u, 1u, 1000u, 60'000u, 700'000u), turns = GENERATE(0u, 1u, 3u);
  const bool midst = GENERATE(false, true);  // of a frame's bytes, of this stream or another
  CAPTURE(before, turns, midst);
  Forwarding one;
  if (midst) fcntl(one.out.write.get(), F_SETPIPE_SZ, 4096);
  const int words = one.add(0, Stream::kStderr), other = one.add(1, Stream::kStderr);
  one.add(0, Stream::kStdout);
  fcntl(words, F_SETPIPE_SZ, 1 << 20);
  if (before > 0) write_all(words, std::string(before, 'a'));
  const std::string others(midst ? 60'000 : 5, 'o');
  write_all(other, others);
  for (size_t i = 0; i < turns; ++i) one.turn();
  if (turns == 3) one.read_some();
  one.forwarder.end_own_words(0);
  write_all(words, std::string(100, 'b'));
  one.forwarder.end_own_words(0);  // the first counts
  const Key key{0, Stream::kStderr};
  REQUIRE(one.until([&] { return one.seen[key].size() == before + 100 && !one.over.empty(); }));
  one.workers.clear();
  REQUIRE(one.until([&] { return one.forwarder.empty(); }));
  while (one.read_some()) {
  }
  CHECK(one.over == std::map<Key, std::vector<std::string>>{{key, {std::string(before, 'a')}}});
  CHECK(one.seen[key] == std::string(before, 'a') + std::string(100, 'b'));
  CHECK(one.seen[{1, Stream::kStderr}] == others);
}

TEST_CASE("streams: a rank that cannot write, since nobody reads, is known until somebody does") {
  Forwarding one;
  const int stuck = one.add(0, Stream::kStderr);
  one.add(1, Stream::kStdout);
  const std::string block(4096, 'x');
  for (const Deadline limit = Deadline::in(60s); !one.forwarder.blocks(0); one.turn()) {
    REQUIRE_FALSE(limit.passed());
    while (write(stuck, block.data(), block.size()) > 0) {
    }
  }
  CHECK_FALSE(one.forwarder.blocks(1));
  REQUIRE(one.until([&] { return !one.forwarder.blocks(0); }));
}

TEST_CASE("output forwarder: a rank may read its own output, and goes on to be heard") {
  Forwarding job;
  const int loud = job.add(0, Stream::kStdout), thief = job.add(1, Stream::kStdout),
            after = job.add(2, Stream::kStdout);
  const std::string block(4096, 'x');
  while (!job.forwarder.blocks(0)) {
    while (write(loud, block.data(), block.size()) > 0) {
    }
    job.turn();
  }
  const auto take_back = [](int fd) {  // all that is in the pipe, as through /proc/self/fd/1
    const UniqueFd pipe(
        open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    char bytes[64 << 10];
    size_t taken = 0;
    for (ssize_t n; (n = read(pipe.get(), bytes, sizeof bytes)) > 0;) taken += size_t(n);
    return taken;
  };
  // Bytes that woke the forwarder, and bytes that a frame has promised.
  write_all(thief, "taken back");
  job.turn();
  CHECK(take_back(thief) == 10);
  const bool promised_too = GENERATE(false, true), ends_then = GENERATE(false, true);
  if (promised_too) REQUIRE(take_back(loud) > 0);
  if (ends_then) job.workers.front().reset();
  write_all(after, "is looked at later than the thief");
  REQUIRE(job.until([&] { return job.seen.contains({2, Stream::kStdout}); }));
  write_all(thief, "later");
  REQUIRE(job.until([&] { return job.seen[{1, Stream::kStdout}] == "later"; }));
  job.workers.clear();
  REQUIRE(job.until([&] { return job.forwarder.empty(); }));
}

TEST_CASE("output forwarder: each stream's bytes come out under its rank, the magic first") {
  Forwarding job;
  write_all(job.add(3, Stream::kStdout), "hello");
  write_all(job.add(4, Stream::kStderr), "world");
  REQUIRE(job.until([&] { return job.seen.size() == 2; }));
  CHECK(job.seen[{3, Stream::kStdout}] == "hello");
  CHECK(job.seen[{4, Stream::kStderr}] == "world");
  CHECK(job.frames.noise().empty());
  CHECK_FALSE(job.forwarder.empty());
  job.workers.clear();
  REQUIRE(job.until([&] { return job.forwarder.empty(); }));
}

TEST_CASE("output forwarder: no byte is lost, doubled or moved, whoever writes how much when") {
  const unsigned seed = random_seed();
  INFO("HVD_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  Forwarding job;
  std::map<Key, std::string> wanted;
  std::vector<std::pair<Key, int>> writers;
  for (int rank = 0; rank < 6; ++rank)
    for (Stream stream : {Stream::kStdout, Stream::kStderr})
      writers.push_back({{rank, stream}, job.add(rank, stream)});
  for (int i = 0; i < 3000; ++i) {
    const auto& [key, fd] = writers[random() % writers.size()];
    const std::string bytes = random_bytes(random, 1 + random() % (i % 10 == 0 ? 60'000 : 300));
    const ssize_t taken = write(fd, bytes.data(), bytes.size());
    if (taken > 0) wanted[key] += bytes.substr(0, size_t(taken));
    if (random() % 3 == 0) job.turn();
    if (random() % 4 == 0) job.read_some();
  }
  job.workers.clear();
  REQUIRE(job.until([&] { return job.forwarder.empty() && !job.read_some(); }));
  CHECK(job.seen == wanted);
  CHECK_FALSE(job.frames.inside_frame());
}

TEST_CASE("output forwarder: a reader that does not read blocks the writers and loses nothing") {
  Forwarding job;
  const int fd = job.add(0, Stream::kStdout);
  const std::string block(64 << 10, 'x');
  size_t written = 0;
  bool blocked = false;
  for (const Deadline limit = Deadline::in(60s); !blocked && !limit.passed();) {
    const ssize_t taken = write(fd, block.data(), block.size());
    if (taken > 0) written += size_t(taken);
    job.turn();
    blocked = taken < 0 && write(fd, block.data(), block.size()) < 0;
  }
  REQUIRE(blocked);
  CHECK(written > (1 << 20));  // what both pipes hold
  job.workers.clear();
  REQUIRE(job.until([&] { return job.forwarder.empty() && !job.read_some(); }));
  CHECK(job.seen[{0, Stream::kStdout}].size() == written);
}

TEST_CASE("output forwarder: drained means what is there, not the end of the file") {
  Forwarding job;
  const int fd = job.add(0, Stream::kStdout);
  const std::string text(100'000, 'y');
  fcntl(fd, F_SETPIPE_SZ, 1 << 20);
  write_all(fd, text);
  job.forwarder.drain();
  REQUIRE(job.until([&] { return job.forwarder.empty() && !job.read_some(); }));
  CHECK(job.seen[{0, Stream::kStdout}] == text);  // although a writer still holds its end
}

TEST_CASE("output forwarder: who goes on writing while it is drained does not keep it") {
  Forwarding job;
  const std::map<Key, int> writers = {{{0, Stream::kStdout}, job.add(0, Stream::kStdout)},
                                      {{1, Stream::kStderr}, job.add(1, Stream::kStderr)}};
  std::map<Key, size_t> written;
  const std::string block(4096, 'x');
  const auto fill = [&] {
    for (const auto& [key, fd] : writers)
      for (ssize_t n; (n = write(fd, block.data(), block.size())) > 0;) written[key] += size_t(n);
  };
  ignore_broken_pipes();
  for (const Deadline limit = Deadline::in(60s); !job.forwarder.blocks(0); job.turn()) {
    REQUIRE_FALSE(limit.passed());
    fill();
  }
  const auto there = written;
  job.forwarder.drain();
  REQUIRE(job.until([&] {
    fill();
    return job.forwarder.empty() && !job.read_some();
  }));
  for (const auto& [key, bytes] : there) CHECK(job.seen[key].size() == bytes);
  CHECK_FALSE(job.frames.inside_frame());
}

TEST_CASE("output forwarder: without a reader its writers see a broken pipe") {
  ignore_broken_pipes();
  Forwarding job;
  const int fd = job.add(0, Stream::kStdout);
  job.out.read.reset();
  const auto broken = [&] { return write(fd, "x", 1) < 0 && errno == EPIPE; };
  for (const Deadline limit = Deadline::in(60s); !broken();) {
    REQUIRE_FALSE(limit.passed());
    job.turn();
  }
  CHECK(job.forwarder.empty());
  CHECK_FALSE(job.forwarder.next_deadline());
}

namespace {

// A feeder with readers, and what it gave back.
struct Feeding {
  Feeding()
      : feeder(loop, [this](size_t bytes, bool all_gone) {
          credit += bytes;
          gone += all_gone;
        }) {}
  explicit Feeding(size_t count) : Feeding() { feeder.expect(count); }

  size_t attach() {
    Pipe pipe = make_pipe();
    set_nonblocking(pipe.write.get());
    set_nonblocking(pipe.read.get());
    readers.push_back(std::move(pipe.read));
    feeder.attach(std::move(pipe.write));
    return readers.size() - 1;
  }

  // What a reader finds now; "EOF" at its end.
  std::string take(size_t reader, size_t most = 1 << 20) {
    std::string bytes(most, '\0');
    const ssize_t count = read(readers[reader].get(), bytes.data(), most);
    if (count == 0) return "EOF";
    bytes.resize(count < 0 ? 0 : size_t(count));
    return bytes;
  }

  void turn() { loop.turn(Clock::now() + 1ms); }

  Loop loop;
  size_t credit = 0;
  int gone = 0;
  StdinFeeder feeder;
  std::vector<UniqueFd> readers;
};

}  // namespace

TEST_CASE("stdin feeder: bytes that came before the reader wait for it, and are credited once") {
  Feeding job(1);
  job.feeder.feed("early ");
  job.feeder.feed("bird");
  CHECK(job.credit == 0);
  job.attach();
  CHECK(job.take(0) == "early bird");
  CHECK(job.credit == 10);
  job.feeder.end();
  CHECK(job.take(0) == "EOF");
  CHECK(job.credit == 10);
}

TEST_CASE("stdin feeder: as long as nobody knows who reads, bytes and their end wait") {
  Feeding job;
  job.feeder.feed("early ");
  job.feeder.end();
  CHECK(job.credit == 0);
  job.feeder.expect(1);
  job.attach();
  CHECK(job.take(0) == "early ");
  CHECK(job.take(0) == "EOF");
  CHECK(job.credit == 6);
  Feeding nobody;
  nobody.feeder.feed("lost");
  nobody.feeder.expect(0);
  nobody.feeder.expect_no_more();
  CHECK(nobody.credit == 0);
  CHECK(nobody.gone == 1);
}

TEST_CASE("stdin feeder: the slowest of several readers sets the pace") {
  Feeding job(2);
  job.attach();
  job.feeder.feed("one");
  CHECK(job.credit == 0);  // the second is still to come
  job.attach();
  CHECK(job.credit == 3);
  const std::string much(300'000, 'z');
  job.feeder.feed(much);
  size_t fast = 0, slow = 0;
  while (fast < 3 + much.size()) {
    fast += job.take(0).size();
    job.turn();
  }
  CHECK(job.credit < 3 + much.size());
  while (slow < 3 + much.size()) {
    slow += job.take(1).size();
    job.turn();
  }
  CHECK(job.credit == 3 + much.size());
}

TEST_CASE(
    "stdin feeder: once all readers are gone it is said, once, and nothing is taken any more") {
  ignore_broken_pipes();
  Feeding job(2);
  job.attach();
  job.attach();
  job.readers[0].reset();
  job.feeder.feed("one");
  CHECK(job.take(1) == "one");
  CHECK(job.credit == 3);
  CHECK(job.gone == 0);
  job.readers[1].reset();
  job.feeder.feed("two");
  job.feeder.feed("three");
  CHECK(job.credit == 3);
  CHECK(job.gone == 1);
}

TEST_CASE("stdin feeder: a reader that is gone takes everything, and the others all of it") {
  ignore_broken_pipes();
  Feeding job(2);
  job.attach();
  job.attach();
  job.readers[0].reset();
  const std::string much(200'000, 'z');
  job.feeder.feed(much);
  job.feeder.end();
  std::string seen;
  for (std::string piece; (piece = job.take(1)) != "EOF"; job.turn()) seen += piece;
  CHECK(seen == much);
  CHECK(job.credit == much.size());
}

TEST_CASE("stdin feeder: where nobody will ever read that is said at once") {
  Feeding job(2);
  job.feeder.feed("lost");
  CHECK(job.gone == 0);
  job.feeder.expect_no_more();
  CHECK(job.gone == 1);
  CHECK(job.credit == 0);
}

TEST_CASE("stdin feeder: readers of any speed get every byte, and the credit is what all have") {
  const unsigned seed = random_seed();
  INFO("HVD_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  Feeding job(3);
  for (int i = 0; i < 3; ++i) job.attach();
  std::string sent, seen[3];
  bool ended[3] = {};
  constexpr size_t kBytes = 600'000;
  for (const Deadline limit = Deadline::in(60s); !(ended[0] && ended[1] && ended[2]);) {
    REQUIRE_FALSE(limit.passed());
    if (sent.size() < kBytes && sent.size() - job.credit < (64 << 10)) {
      const std::string bytes = random_bytes(random, 1 + random() % 20'000);
      sent += bytes;
      job.feeder.feed(bytes);
      if (sent.size() >= kBytes) job.feeder.end();
    }
    const size_t reader = random() % 3;
    const std::string piece = ended[reader] ? "" : job.take(reader, 1 + random() % 30'000);
    (piece == "EOF" ? ended[reader] = true : (seen[reader] += piece, false));
    job.turn();
    const size_t least = std::min({seen[0].size(), seen[1].size(), seen[2].size()});
    REQUIRE(job.credit >= least);
    REQUIRE(job.credit <= sent.size());
  }
  for (const std::string& one : seen) CHECK(one == sent);
  CHECK(job.credit == sent.size());
}

}  // namespace hvd
