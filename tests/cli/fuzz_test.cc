// Random host lists, host files and command lines: whatever comes in, only a usage error comes out.
//
// Seeded: the seed is printed with a failure and replays it (HVD_TEST_SEED).
#include <chrono>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/environment_settings.h"
#include "cli/host_choice.h"
#include "cli/hosts.h"
#include "cli/options.h"
#include "runtime/base/deadline.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "tests/support/catch.h"

using namespace hvd;

namespace {

constexpr auto kTimeEach = std::chrono::milliseconds(300);
constexpr size_t kMessageBytesMax = 1000;

unsigned first_seed() {
  return static_cast<unsigned>(env::get_integer("HVD_TEST_SEED").value_or(20'261'121));
}

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  size_t below(size_t limit) { return engine_() % limit; }
  template <typename Items>
  std::string one_of(const Items& items) {
    return std::string(items[below(std::size(items))]);
  }
  std::string bytes(size_t length_max) {
    std::string out(below(length_max + 1), ' ');
    for (char& byte : out) byte = static_cast<char>(engine_());
    return out;
  }

 private:
  std::mt19937 engine_;
};

// Pieces that mean something to a parser, in random order, now and then with noise between them.
constexpr const char* kHostPieces[] = {
    "a",       "node",        "localhost", "127.0.0.1",  "::1",   "[::1]",     "[",     "]",
    ":",       ",",           "@",         "-",          "0",     "1",         "65535", "65536",
    "[1-4]",   "[01-03,7]",   " ",         "\t",         "\n",    "#",         "=",     "slots",
    "slots=2", "\r\n",        "%eth0",     "..",         "[0-9]", "[99999-1]", "user",  "\xff",
    "$(x)",    "99999999999", "[0-99]",    "max_slots=4"};

std::string host_text(Random& random) {
  std::string text;
  for (size_t i = 0, count = random.below(12); i < count; ++i) {
    text += random.below(20) == 0 ? random.bytes(8) : random.one_of(kHostPieces);
  }
  return text;
}

constexpr const char* kWords[] = {"2",    "0",     "-1",        "abc",  "",     "--",   "-",
                                  "ls",   "a:2",   "A=1",       "auto", "none", "0,2",  "1e99",
                                  "nan",  "--no-", "localhost", "=",    "[x]",  "%%",   "{",
                                  "info", "-np=",  "--num",     "-x=",  "\n",   "--=1", "0-999999"};

std::vector<std::string> command_line(Random& random) {
  std::vector<std::string> words;
  const auto options = all_options();
  for (size_t i = 0, count = random.below(8); i < count; ++i) {
    const Option& option = options[random.below(options.size())];
    std::string word(random.one_of(spellings(option)));
    if (random.below(4) == 0) word += "=" + random.one_of(kWords);
    if (random.below(16) == 0) word = random.bytes(8);
    words.push_back(word);
    for (int values = value_count(option); values > 0 && random.below(8) != 0; --values) {
      words.push_back(random.below(8) == 0 ? random.bytes(12) : random.one_of(kWords));
    }
  }
  if (random.below(3) != 0) words.push_back("./train");
  return words;
}

// Runs `attempt` with new seeds for a while. It may throw a usage error with a message of one
// printable line, and nothing else. Counts both outcomes, so that the test can see that both occur.
void expect_usage_errors_only(const std::function<void(Random&)>& attempt) {
  const Deadline deadline = Deadline::in(kTimeEach);
  int fine = 0, refused = 0;
  for (unsigned seed = first_seed(); fine + refused < 1000 || !deadline.passed(); ++seed) {
    Random random(seed);
    INFO("HVD_TEST_SEED=" << seed);
    try {
      attempt(random);
      ++fine;
    } catch (const Error& error) {
      ++refused;
      const std::string message = error.what();
      const bool usage =
          error.code() == ErrorCode::kInvalidArgument || error.code() == ErrorCode::kUnsupported;
      const bool printable =
          !message.empty() && message.size() < kMessageBytesMax && is_shown(message);
      if (!usage || !printable) FAIL(message);
    } catch (const std::exception& error) {
      FAIL(error.what());
    }
  }
  CHECK(fine > 0);
  CHECK(refused > 0);
}

}  // namespace

TEST_CASE("fuzz: host lists") {
  expect_usage_errors_only([](Random& random) {
    for (const GivenHost& host : parse_host_list(host_text(random))) {
      // Whatever was accepted can be given to a program as a word.
      if (host.name.empty() || host.name[0] == '-' || host.name.size() > 253) FAIL(host.name);
      if (host.name.find_first_of(" ,@[]$/\\\"'`;&|<>") != std::string::npos) FAIL(host.name);
      if (!host.user.empty() && host.user[0] == '-') FAIL(host.user);
      if (host.slots && (*host.slots < 0 || *host.slots > 65'535)) FAIL(*host.slots);
    }
  });
}

TEST_CASE("fuzz: host files") {
  expect_usage_errors_only([](Random& random) {
    std::string text;
    for (size_t i = 0, count = random.below(5); i < count; ++i) text += host_text(random) + "\n";
    parse_host_file(text, "hosts.txt");
  });
}

TEST_CASE("fuzz: environment files") {
  constexpr const char* kPieces[] = {"A",  "export", " ",  "\t", "=",     "'",    "\"",    "\\",
                                     "\n", "#",      "$x", "B",  "RANK=", "\r\n", "A=1\n", "*"};
  expect_usage_errors_only([&](Random& random) {
    std::string text;
    for (size_t i = 0, count = random.below(12); i < count; ++i)
      text += random.below(20) == 0 ? random.bytes(8) : random.one_of(kPieces);
    for (const EnvironmentSetting& one : parse_environment_file(text, "job.env")) {
      // Whatever was accepted can be an entry of an environment, and says nothing of a rank's
      // place.
      if (one.name.empty() || one.name.find_first_of("= \n*") != std::string::npos) FAIL(one.name);
      if (one.value.value().find('\0') != std::string::npos || one.name == "RANK") FAIL(one.name);
    }
  });
}

TEST_CASE("fuzz: choosing hosts") {
  expect_usage_errors_only([](Random& random) {
    const std::vector<std::string> command = {random.bytes(8)};
    const ThisMachine machine{{"node1"}, {}, {"user"}, static_cast<int>(random.below(3))};
    const int size = static_cast<int>(random.below(3));
    const HostChoice choice =
        choose_hosts(parse_host_list(host_text(random)), size, machine, command);
    if (choice.size < 1) FAIL("a job of " << choice.size);
  });
}

TEST_CASE("fuzz: command lines and environments") {
  expect_usage_errors_only([](Random& random) {
    const CommandLine line =
        parse_command_line(command_line(random), [&](const char*) -> std::optional<std::string> {
          if (random.below(4) != 0) return std::nullopt;
          return random.one_of(kWords);
        });
    if (line.request == Request::kShow ? line.text.empty() : line.spec.command.empty()) {
      FAIL("nothing to do");
    }
  });
}
