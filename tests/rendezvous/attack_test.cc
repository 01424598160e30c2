// Strangers and impostors at hvdrun's door: refused and counted, and a good agent's stream goes on.
#include <fcntl.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <malloc.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/rendezvous/job_ends.h"
#include "tests/rendezvous/tls_peer.h"
#include "tests/support/seed.h"
#include "tests/support/until.h"

namespace hvd {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

size_t resident_bytes() {
  size_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * size_t(sysconf(_SC_PAGESIZE));
}

// An agent that is there all the time: it says one thing after the other, and each arrives.
class GoodAgent {
 public:
  explicit GoodAgent(JobServer& job) : job_(job), agent_(job.agent(0)) {
    job.server->permit(0, {0});
    agent_->send(attached(0));
    REQUIRE(at_server(*job.server, has_message).host == 0);
  }
  void speak() {
    const auto began = Clock::now();
    agent_->send(claimed(0));
    const Deadline deadline = Deadline::in(seconds(20));
    for (bool heard = false; !heard;) {
      wait_readable(job_.server->wake_fd(), deadline);
      for (const auto& news : job_.server->take()) {
        if (news.host != 0) continue;
        REQUIRE_FALSE(news.closed);
        heard = !news.messages.empty();
      }
    }
    longest_ = std::max(longest_, Clock::now() - began);
  }
  Clock::duration longest() const { return longest_; }

 private:
  JobServer& job_;
  std::unique_ptr<RendezvousClient> agent_;
  Clock::duration longest_{};
};

void send_all(int fd, const std::string& bytes) {
  [[maybe_unused]] const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// What an unpatient reader gets until the other end closes: how long that took, at most `limit`.
Clock::duration until_closed(int fd) {
  const auto began = Clock::now();
  char bytes[4096];
  while (recv(fd, bytes, sizeof bytes, 0) > 0) {
  }
  return Clock::now() - began;
}

// A stream of raw bytes where messages belong, from an agent with a good certificate.
class RawStream {
 public:
  explicit RawStream(const JobServer& job, const std::string& key = "",
                     const std::string& value = "") {
    const Credentials credentials = credentials_of(job.authority, {kJob, 1});
    grpc::SslCredentialsOptions options{credentials.authority, std::string(credentials.key.view()),
                                        credentials.certificate};
    grpc::ChannelArguments arguments;
    arguments.SetSslTargetNameOverride(kLauncherName);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel = grpc::CreateCustomChannel("ipv4:" + job.addresses[0].text(),
                                                   grpc::SslCredentials(options), arguments);
    if (!key.empty()) context_.AddMetadata(key, value);
    context_.set_deadline(std::chrono::system_clock::now() + seconds(20));
    call_ =
        grpc::GenericStub(channel).PrepareCall(&context_, "/hvd.proto.Rendezvous/Attach", &queue_);
    call_->StartCall(nullptr);
    started_ = next();
  }
  ~RawStream() {
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }
  void write(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    call_->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    next();
  }
  grpc::StatusCode finish() {
    grpc::Status status;
    call_->Finish(&status, nullptr);
    next();
    return status.error_code();
  }

 private:
  bool next() {
    void* tag = nullptr;
    bool ok = false;
    REQUIRE(queue_.Next(&tag, &ok));
    return ok;
  }
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  bool started_ = false;
};

}  // namespace

TEST_CASE("attack: without a certificate of the job's that is valid now, nobody is talked to") {
  JobServer job({.patience = seconds(2)});  // after which who went is told of
  GoodAgent good(job);
  const auto now = WallClock::now();
  const SocketAddress& door = job.addresses.front();
  const Credentials valid = credentials_of(job.authority, {kJob, 1});
  REQUIRE(connect_by_tls(door, &valid).talked_to);  // else this test could not fail
  size_t refused = 1;                               // it went without a stream, and will be told of
  const auto expect_refusal = [&](const Credentials* credentials) {
    CHECK_FALSE(connect_by_tls(door, credentials).talked_to);
    ++refused;
    const Deadline deadline = Deadline::in(seconds(20));
    while (job.server->refused() < refused && !deadline.passed()) good.speak();
    CHECK(job.server->refused() >= refused);
    good.speak();
  };
  SECTION("none") { expect_refusal(nullptr); }
  SECTION("of another authority with the same names") {
    const JobAuthority other(kJob);
    const Credentials theirs = credentials_of(other, {kJob, 0});
    expect_refusal(&theirs);
  }
  SECTION("expired") {
    const Credentials old =
        credentials_of(job.authority, {kJob, 1}, Validity{now - hours(2), now - hours(1)});
    expect_refusal(&old);
  }
  SECTION("not yet valid") {
    const Credentials early =
        credentials_of(job.authority, {kJob, 1}, Validity{now + hours(1), now + hours(2)});
    expect_refusal(&early);
  }
  SECTION("hvdrun's own, which is no client's") {
    const Credentials own = job.authority.launcher();
    expect_refusal(&own);
  }
}

TEST_CASE("attack: what is no TLS is closed") {
  JobServer job({.patience = milliseconds(500)});
  GoodAgent good(job);
  const unsigned seed = random_seed();
  INFO("HVD_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  std::string garbage(20'000, ' ');
  for (char& byte : garbage) byte = char(random());
  for (const std::string& words :
       {std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33),
        std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string("\x16\x03\x01\xff\xff", 5),
        garbage, std::string()}) {
    const UniqueFd stranger = connect_plainly(job.addresses.front());
    send_all(stranger.get(), words);
    CHECK(until_closed(stranger.get()) < seconds(9));
    good.speak();
  }
  job.wait_for_audit("127.0.0.1");
}

TEST_CASE("attack: who is slow, or closes its half, has its connection for as long as anybody") {
  JobServer job({.patience = milliseconds(300)});
  GoodAgent good(job);
  const auto began = Clock::now();
  UniqueFd half = connect_plainly(job.addresses.front());
  shutdown(half.get(), SHUT_WR);
  UniqueFd slow = connect_plainly(job.addresses.front());
  // A record that has room for 16 KiB, a byte at a time, each sooner than anybody's patience.
  send_all(slow.get(), std::string("\x16\x03\x01\x3f\xff\x01", 6));
  const timeval soon{0, 20'000};
  setsockopt(slow.get(), SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
  char byte = 0;
  ssize_t n = -1;
  while ((n = recv(slow.get(), &byte, 1, 0)) < 0 && (errno == EAGAIN || errno == EINTR) &&
         Clock::now() - began < seconds(20))
    send_all(slow.get(), "x");
  CHECK(n <= 0);
  CHECK(Clock::now() - began >= milliseconds(300));
  CHECK(Clock::now() - began < seconds(15));
  CHECK(until_closed(half.get()) < seconds(9));
  good.speak();
  job.wait_for_audit("it did not prove in time who it is");
}

TEST_CASE("attack: one address has 8 connections at once, and others come in beside it") {
  JobServer job({.patience = seconds(40), .at_least = seconds(40)}, {"127.0.0.1", "127.0.0.2"});
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 8; ++i) strangers.push_back(connect_plainly(job.addresses[0]));
  const UniqueFd ninth = connect_plainly(job.addresses[0]);
  CHECK(until_closed(ninth.get()) < seconds(9));
  // From another address, to either.
  const UniqueFd other = connect_plainly(job.addresses[0], milliseconds(300), "127.0.0.3");
  CHECK(until_closed(other.get()) >= milliseconds(290));
  // The ninth place is free once one of the eight is.
  strangers.pop_back();
  const auto agent = job.agent(1);
  agent->send(attached(1));
  CHECK(at_server(*job.server, has_message).host == 1);
  CHECK(job.server->refused() == 0);  // as behind a NAT
}

TEST_CASE("attack: where no agent comes, who was turned away is told of") {
  JobServer job({.at_least = seconds(5)});
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 8; ++i) strangers.push_back(connect_plainly(job.addresses[0]));
  const UniqueFd ninth = connect_plainly(job.addresses[0]);
  CHECK(until_closed(ninth.get()) < seconds(9));
  job.wait_for_audit("refused 127.0.0.1: too many connections from there");
}

TEST_CASE("attack: who is silent on all places of an address keeps no agent out") {
  JobServer job({.patience = seconds(60), .at_least = milliseconds(300)});
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 8; ++i) strangers.push_back(connect_plainly(job.addresses[0]));
  const auto agent = job.agent(1);
  agent->send(attached(1));
  CHECK(at_server(*job.server, has_message).host == 1);
  job.wait_for_audit("refused 127.0.0.1: others came, and it had not proven yet who it is");
}

TEST_CASE("attack: 64 strangers at once, and who comes then waits until one of them is out") {
  JobServer job({.patience = seconds(60), .at_least = milliseconds(1500)});
  std::vector<UniqueFd> strangers;
  const auto began = Clock::now();
  for (int i = 0; i < 64; ++i)
    strangers.push_back(
        connect_plainly(job.addresses[0], seconds(10), "127.0.1." + std::to_string(1 + i / 8)));
  const auto agent = job.agent(1);
  agent->send(attached(1));
  CHECK(at_server(*job.server, has_message).host == 1);
  CHECK(Clock::now() - began >= milliseconds(1500));
}

TEST_CASE("attack: once all have come nobody else is let in, and who is there stays") {
  JobServer job({}, {"127.0.0.1", "127.0.0.2"});
  GoodAgent good(job);
  job.server->close_door();
  for (const SocketAddress& address : job.addresses)
    until("nobody listens", [&] {
      const UniqueFd stranger(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
      return connect(stranger.get(), address.get(), address.size()) != 0;
    });
  good.speak();
}

TEST_CASE("attack: a good certificate does not make bad messages good") {
  JobServer job;
  job.server->permit(1, {1});
  GoodAgent good(job);
  SECTION("too large") {
    RawStream raw(job);
    raw.write(std::string((4 << 20) + 1, '\x0a'));
    CHECK(raw.finish() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  SECTION("garbage") {
    RawStream raw(job);
    raw.write("\xff\xff\xff\xff");
    CHECK(raw.finish() != grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  SECTION("nested a hundred thousand times") {
    RawStream raw(job);
    raw.write(std::string(100'000, '\x0b'));  // each opens a group in the one before
    CHECK(raw.finish() != grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  SECTION("metadata that is larger than all of ours") {
    RawStream raw(job, "x-large", std::string(12'000, 'x'));
    CHECK(raw.finish() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  good.speak();
  CHECK(good.longest() < seconds(5));
}

TEST_CASE("attack: 1,000 bad connections are refused, and cost a good agent nothing") {
  JobServer job({.patience = milliseconds(400)});
  GoodAgent good(job);
  const JobAuthority other(kJob);
  const Credentials theirs = credentials_of(other, {kJob, 0});
  const SocketAddress& door = job.addresses.front();
  std::vector<UniqueFd> open;
  size_t before = 0;
  constexpr int kWarm = 100, kAll = 1000;
  for (int i = 0; i < kWarm + kAll; ++i) {
    const std::string from = "127.0.2." + std::to_string(1 + i % 200);
    if (i == kWarm) {  // what gRPC and the allocator keep for ever is kept by now
      malloc_trim(0);
      before = resident_bytes();
    }
    switch (i % 4) {
      case 0:  // silent, and held open on this side
        open.push_back(connect_plainly(door, seconds(10), from));
        break;
      case 1:
        CHECK_FALSE(connect_by_tls(door, &theirs, from).talked_to);
        break;
      case 2:
        CHECK_FALSE(connect_by_tls(door, nullptr, from).talked_to);
        break;
      default:
        open.push_back(connect_plainly(door, seconds(10), from));
        send_all(open.back().get(), std::string(1000, char(i)));
    }
    if (i % 20 == 0) good.speak();
    if (open.size() > 200) open.clear();
  }
  good.speak();
  const size_t after = resident_bytes();
  const size_t grown = after > before ? after - before : 0;
  INFO("grew by " << grown / 1024 << " KiB; the good agent's slowest message took "
                  << std::chrono::duration_cast<milliseconds>(good.longest()).count() << " ms");
#if !defined(__SANITIZE_ADDRESS__)  // it keeps what was freed
  CHECK(grown <= size_t(16) << 20);
#endif
  CHECK(good.longest() < seconds(3));
  const Deadline deadline = Deadline::in(seconds(20));
  while (job.server->refused() < size_t(kAll) && !deadline.passed()) good.speak();
  CHECK(job.server->refused() >= size_t(kAll));
  CHECK(job.audit.size() <= 33);  // and not a thousand times
}

}  // namespace hvd
