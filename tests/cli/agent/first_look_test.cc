#include "cli/agent/first_look.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/until.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

// A file system whose server answers when it is told to, and has what is in `there`.
struct Server {
  std::atomic<bool> answers{true};
  std::vector<std::string> there = {}, asked = {};

  FirstLook::Look look() {
    return [this](const std::string& path) {
      asked.push_back(path);
      answers.wait(false);
      return std::ranges::find(there, path) != there.end();
    };
  }
};

void turn_until(Loop& loop, const bool& done) {
  until("it is done", [&] {
    loop.turn(Clock::now() + 1ms);
    return done;
  });
}

}  // namespace

TEST_CASE("first look: at all that is wanted, of each up to the first that is there") {
  Loop loop;
  Server server{.there = {"/b", "/e"}};
  bool done = false;
  FirstLook first(
      loop, {{"/a", "/b", "/c"}, {"/d"}, {"/e", "/f"}, {}}, [&] { done = true; }, server.look());
  turn_until(loop, done);
  CHECK(server.asked == std::vector<std::string>{"/a", "/b", "/d", "/e"});
  CHECK_FALSE(first.take_slow_path(Clock::now() + 1h));
}

TEST_CASE("first look: what does not answer holds nobody up, and is told once") {
  Loop loop;
  Server server{.answers = false};
  bool done = false;
  FirstLook first(loop, {{"/slow"}, {"/next"}}, [&] { done = true; }, server.look());
  loop.turn(Clock::now() + 1ms);
  CHECK_FALSE(done);
  std::optional<std::string> told;
  until("it is at it", [&] { return (told = first.take_slow_path(Clock::now() + 1h)); });
  CHECK(told == "/slow");
  CHECK_FALSE(first.take_slow_path(Clock::now() + 2h));
  server.answers = true;
  server.answers.notify_all();
  turn_until(loop, done);
  CHECK(server.asked.size() == 2);
}

TEST_CASE("first look: a path is there or not") {
  CHECK(FirstLook::look_at_path("/"));
  CHECK_FALSE(FirstLook::look_at_path("/no such/path"));
  CHECK_FALSE(FirstLook::look_at_path(""));
}
