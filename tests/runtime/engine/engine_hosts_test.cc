// What several hosts add to the Engine: links that fail, lie or are slow, and ranks that end
// elsewhere.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "runtime/base/deadline.h"
#include "runtime/base/private_fd.h"
#include "runtime/engine/log_links.h"
#include "tests/runtime/engine/engine_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/until.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

// Behind those of the program's and the log's communicator.
uint32_t log_links(const Hosts& hosts) {
  return 2 * static_cast<uint32_t>(std::ranges::max(hosts));
}

// Descriptors of links as the ranks took them, by id and rank.
class LinkTap {
 public:
  explicit LinkTap(InProcessWorld& world) {
    world.on_links([this](uint32_t id, int rank, std::span<const UniqueFd> links) {
      std::lock_guard lock(mutex_);
      for (const UniqueFd& link : links)
        taken_[{id, rank}].emplace_back(fcntl(link.get(), F_DUPFD_CLOEXEC, 0));
    });
  }
  // Once the engines have met.
  int link(uint32_t id, int rank, size_t which = 0) {
    std::lock_guard lock(mutex_);
    return taken_.at({id, rank}).at(which).get();
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<uint32_t, int>, std::vector<UniqueFd>> taken_;
};

}  // namespace

TEST_CASE("hosts: links that cannot be had are init's error, with the reason, on every rank") {
  InProcessWorld world({2, 1, 1});
  world.refuse_links("host \"b\" cannot be reached at 10.0.0.2:4711: no route to host");
  std::array<std::string, 4> said;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 4; ++rank)
      threads.emplace_back([&, rank] {
        said[static_cast<size_t>(rank)] = error_of([&] { Engine engine(world.peers(rank), {}); });
      });
  }
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::StartsWith("CommFailure: init() failed: ") &&
                         Catch::Contains("host \"b\" cannot be reached at 10.0.0.2:4711"));
}

TEST_CASE("hosts: a rank of another host that does not come is what init waited for") {
  InProcessWorld world({1, 1});
  std::string said;
  std::jthread([&] {
    said = error_of([&] { Engine engine(world.peers(0), {.start_timeout = 100ms}); });
  }).join();
  CHECK_THAT(said, Catch::StartsWith("Error: init() failed: rank 0 waited 0.100 s for rank 1"));
}

TEST_CASE("hosts: what no leader says on a link of the log breaks the epoch off by name") {
  for (const int liar : {0, 2}) {
    CAPTURE(liar);
    InProcessWorld world({2, 2});
    LinkTap tap(world);
    std::array<std::string, 4> said;
    run_engines(
        world,
        [&](int rank, Engine& engine) {
          error_of([&] { barrier(engine); });  // may be broken off already
          if (rank == 1) {
            const char lie[64] = "GET / HTTP/1.1\r\n";
            CHECK(send(tap.link(log_links({2, 2}), liar), lie, sizeof lie, MSG_NOSIGNAL) ==
                  sizeof lie);
          }
          std::array<float, 2> data{};
          said[static_cast<size_t>(rank)] = error_of([&] {
            for (;;) sum_async(engine, data, "x")->wait();
          });
        },
        {.collective_timeout = 10s}, false);
    const std::string heard = std::to_string(2 - liar), from = std::to_string(liar);
    for (const std::string& text : said)
      CHECK_THAT(text, Catch::StartsWith("CommFailure: ") &&
                           Catch::Contains("rank " + heard +
                                           " got no message of the log on its "
                                           "link to rank " +
                                           from));
  }
}

TEST_CASE("hosts: a link of the log that ends, and nobody has died, is named") {
  InProcessWorld world({2, 1});
  LinkTap tap(world);
  std::array<std::string, 3> said;
  run_engines(
      world,
      [&](int rank, Engine& engine) {
        error_of([&] { barrier(engine); });  // may be broken off already
        if (rank == 1) shutdown(tap.link(log_links({2, 1}), 2), SHUT_RDWR);
        std::array<float, 2> data{};
        said[static_cast<size_t>(rank)] = error_of([&] {
          for (;;) sum_async(engine, data, "x")->wait();
        });
      },
      {.collective_timeout = 10s}, false);
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::StartsWith("CommFailure: ") &&
                         Catch::Contains(" lost its link to rank ") &&
                         Catch::Contains("nobody knows of its death"));
}

TEST_CASE("hosts: a death elsewhere ends every wait soon, by name") {
  for (const bool log : {false, true}) {
    CAPTURE(log);
    InProcessWorld world({2, 1, 1});
    std::array<std::string, 4> said;
    std::array<TimePoint, 4> ended{};
    std::atomic<TimePoint> died{};
    run_engines(
        world,
        [&](int rank, Engine& engine) {
          const auto me = static_cast<size_t>(rank);
          std::array<float, 2> data{};
          error_of([&] { barrier(engine); });  // may be broken off already
          if (rank == 3) {
            died = Clock::now();
            world.declare_dead(3);
            return;
          }
          said[me] = error_of([&] {
            for (;;)
              if (log)
                sum_async(engine, data, "x")->wait();
              else
                sum(engine, data);
          });
          ended[me] = Clock::now();
        },
        {}, false);
    for (const size_t rank : {0u, 1u, 2u}) {
      CHECK_THAT(said[rank],
                 Catch::StartsWith("CommFailure: ") && Catch::EndsWith(": rank 3 died"));
      CHECK(ended[rank] - died.load() < 10s);  // of a machine that does other things, too
    }
  }
}

TEST_CASE("hosts: who left is named to those that wait in the log, whichever rank it is") {
  for (const int leaving : {0, 1, 2, 3})
    for (const int waiting : {0, 1, 2, 3}) {
      if (waiting == leaving) continue;
      CAPTURE(leaving, waiting);
      std::array<std::string, 4> said;
      std::atomic<bool> told{false};
      run_engines(
          Hosts{2, 2},
          [&](int rank, Engine& engine) {
            std::array<float, 2> data{};
            error_of([&] { barrier(engine); });  // may be broken off already, by who waits
            if (rank == leaving) return engine.shutdown();
            if (rank != waiting) until("who waits is told", [&] { return told.load(); });
            said[static_cast<size_t>(rank)] =
                error_of([&] { sum_async(engine, data, "y")->wait(); });
            told = true;
          },
          {.collective_timeout = 20s}, false);
      for (int rank = 0; rank < 4; ++rank)
        if (rank != leaving)
          CHECK_THAT(said[static_cast<size_t>(rank)],
                     Catch::Contains("rank " + std::to_string(leaving) +
                                     " called shutdown() while other ranks went on"));
    }
}

// That it waits was told, or what it has acted on not yet: its leaving has to say both.
TEST_CASE("hosts: who has left waits for nobody, and nobody for it") {
  const bool in_log = GENERATE(false, true);
  CAPTURE(in_log);
  InProcessWorld world({1, 1});
  std::atomic<int> warnings{0};
  std::atomic<bool> left{false};
  int afterwards = -1;
  EngineOptions options{.stall_warning = 100ms};
  options.warn = [&](const std::string&) { ++warnings; };
  run_engines(
      world,
      [&](int rank, Engine& engine) {
        std::array<float, 2> data{};
        if (in_log) sum_async(engine, data, "x")->wait();
        if (!in_log && rank == 0) poll(nullptr, 0, 50);  // computes
        if (!in_log) barrier(engine);
        if (rank == 1) {
          engine.shutdown();
          left = true;
          return;
        }
        for (const Deadline end = Deadline::in(60s); !left && !end.passed();) poll(nullptr, 0, 1);
        const int before = warnings;
        const auto peers = world.peers(0);
        for (const Deadline end = Deadline::in(1s); !end.passed(); poll(nullptr, 0, 5))
          peers->ring(0, kEngineThread);  // looks now, not in a second
        afterwards = warnings - before;
        engine.shutdown();
      },
      options, false);
  CHECK(afterwards >= 0);
  CHECK(afterwards <= 1);  // of a look that had begun before
}

TEST_CASE("hosts: a link of the log that takes nothing holds up no other") {
  InProcessWorld world({1, 1, 1});
  const WorldShape shape{{{0, 1}, {1, 1}, {2, 1}}};
  const auto peers = world.peers(0);
  LogLinks links(*peers, shape, log_links({1, 1, 1}));
  std::vector<std::unique_ptr<Peers>> others;
  std::vector<UniqueFd> sockets;
  for (const int rank : {1, 2}) {
    others.push_back(world.peers(rank));
    others.back()->request_links(log_links({1, 1, 1}), std::array{0});
    sockets.push_back(std::move(others.back()->take_links(log_links({1, 1, 1}))->front()));
  }
  REQUIRE(links.take());
  const LogMessage entry{
      .kind = LogMessage::Kind::kEntry, .value = 3, .name = "x", .text = std::string(1000, 'y')};
  size_t posted = 0, read = 0;
  std::vector<std::byte> expected;
  encode(entry, peers->world().epoch, expected);
  const Deadline deadline = Deadline::in(60s);
  for (int round = 0; round < 20'000 && !deadline.passed(); ++round) {
    links.post(entry);
    posted += expected.size();
    links.flush();
    while (read < posted && !deadline.passed()) {  // the first one reads, the second one does not
      std::array<std::byte, 4096> bytes;
      const ssize_t came = recv(sockets[0].get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (came > 0) read += static_cast<size_t>(came);
      if (came <= 0) links.flush();
    }
  }
  CHECK(read == posted);
  CHECK(links.has_unsent());
  std::vector<pollfd> watched;
  links.watch(watched);
  REQUIRE(watched.size() == 1);
  CHECK(poll(watched.data(), 1, 0) == 0);  // until it takes more there is nothing to do
}

TEST_CASE("hosts: a forked child closes its parent's links") {
  InProcessWorld world({1, 1});
  LinkTap tap(world);
  std::atomic<int> status{-1};
  std::atomic<bool> forked{false};
  run_engines(world, [&](int rank, Engine& engine) {
    barrier(engine);
    if (rank == 0) {
      const pid_t child = fork();
      if (child == 0) {
        engine.forget_in_child();
        PrivateFd::close_all_in_child();
        int sockets = 0;
        for (int fd = 0; fd < 1024; ++fd) {
          struct stat about;
          sockets += fstat(fd, &about) == 0 && S_ISSOCK(about.st_mode);
        }
        _exit(sockets);
      }
      int ended = -1;
      waitpid(child, &ended, 0);
      status = ended;
      forked = true;
    }
    until("the child has ended", [&] { return forked.load(); });
  });
  // What is left are the copies that this test keeps: three links at both ends.
  CHECK(WEXITSTATUS(status.load()) == 6);
}
