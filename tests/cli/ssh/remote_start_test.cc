// What a remote shell may send, however cut, and what becomes of it.
#include "cli/ssh/remote_start.h"

#include "cli/ssh/remote_script.h"
#include "tests/support/catch.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

const TimePoint kBegin{1h};

std::string mark(const std::string& line) { return std::string(kRemoteMark) + line + "\n"; }

std::string hello(const std::string& body, FrameKind kind = FrameKind::kHello) {
  std::string bytes(kFrameMagic);
  append_header(bytes, {uint32_t(body.size()), kind, Stream::kStdout, 0, 0});
  return bytes + body;
}

// All that is to be written now, as if it were.
std::string drain(RemoteStart& start) {
  std::string text(start.text());
  start.text_written(text.size());
  if (start.wants_file()) {
    text += "<file>";
    start.file_written(100 - start.file_at());
  }
  return text;
}

}  // namespace

TEST_CASE("remote_start: an agent that is there speaks, however its words are cut") {
  const std::string all = "Welcome!\nhvdrun-\x7fhvdrun" + mark("found") + hello("words");
  for (size_t cut = 1; cut <= all.size(); ++cut) {
    RemoteStart start(100, "x86_64", kBegin);
    for (size_t at = 0; at < all.size(); at += cut) {
      REQUIRE(start.phase() != StartPhase::kReady);
      start.take_output(std::string_view(all).substr(at, cut), kBegin + 1s);
    }
    REQUIRE(start.failure().empty());
    REQUIRE(start.phase() == StartPhase::kReady);
    REQUIRE(start.hello() == "words");
    REQUIRE(start.noise() == "Welcome!\nhvdrun-\x7fhvdrun");
    REQUIRE(drain(start).empty());
  }
}

TEST_CASE("remote_start: a host that asks gets the file, again for each folder it tries") {
  RemoteStart start(100, "x86_64", kBegin);
  start.take_output(mark("need"), kBegin);
  REQUIRE(start.asks_for_file());
  REQUIRE(drain(start).empty());  // until it is answered
  start.answer("abc", kBegin + 1s);
  REQUIRE(start.phase() == StartPhase::kCopying);
  REQUIRE(start.since() == kBegin + 1s);
  REQUIRE(drain(start) == "100 abc\n<file>");
  start.take_output(mark("need"), kBegin + 2s);
  start.answer("abc", kBegin + 2s);
  REQUIRE(drain(start) == "100 abc\n<file>");
  start.take_output(mark("copied"), kBegin + 3s);
  REQUIRE(start.phase() == StartPhase::kStarting);
  start.take_output(hello(""), kBegin + 4s);
  REQUIRE(start.phase() == StartPhase::kReady);
}

TEST_CASE("remote_start: what the script gives up for is the failure") {
  const std::pair<std::string, std::string> rows[] = {
      {"machine aarch64", "its processor is \"aarch64\" and this hvdrun is for x86_64"},
      {"machine \x1b[2J", "its processor is \"\\x1b[2J\""},
      {"damaged", "the agent arrived damaged"},
      {"nowhere", "no folder there takes the agent, 1 MiB"},
      {"copied ", "it sent \"copied \" when that makes no sense"},
      {"", "it sent \"\" when that makes no sense"},
  };
  for (const auto& [line, wanted] : rows) {
    RemoteStart start(100, "x86_64", kBegin);
    start.take_output(mark(line), kBegin);
    REQUIRE(start.phase() == StartPhase::kFailed);
    CAPTURE(start.failure());
    REQUIRE(start.failure().starts_with(wanted));
    start.take_output(mark("found") + hello("x"), kBegin);  // and stays
    REQUIRE(start.phase() == StartPhase::kFailed);
  }
}

TEST_CASE("remote_start: a host that does not keep to the rules fails, and costs no memory") {
  const auto failure = [](const std::string& bytes) {
    RemoteStart start(100, "x86_64", kBegin);
    start.take_output(bytes, kBegin);
    REQUIRE(start.phase() == StartPhase::kFailed);
    return start.failure();
  };
  REQUIRE(failure(mark("need") + mark("need")) == "it sent \"need\" when that makes no sense");
  REQUIRE(failure(std::string(kRemoteMark) + std::string(5000, 'x')) ==
          "it sent a line without an end");
  REQUIRE(failure(hello("x", FrameKind::kOutput)) ==
          "its agent's first words are none of an hvdrun's");
  REQUIRE(failure(hello(std::string(70'000, 'x'))) ==
          "its agent's first words are none of an hvdrun's");
  REQUIRE(failure(hello("x") + "y") ==
          "its agent said more than its first words before it was answered");
  REQUIRE(failure(std::string(kFrameMagic) + std::string(24, '\xff')) ==
          "an agent's stream holds a malformed frame header");

  RemoteStart asks(100, "x86_64", kBegin);
  int answers = 0;
  for (; asks.phase() != StartPhase::kFailed && answers < 100; ++answers) {
    asks.take_output(mark("need"), kBegin);
    if (asks.asks_for_file()) asks.answer("abc", kBegin);
    drain(asks);
  }
  REQUIRE(answers < 20);

  RemoteStart floods(100, "x86_64", kBegin);
  for (int i = 0; i < 100; ++i) {
    floods.take_output(std::string(1 << 16, 'n') + "hvdrun-remote", kBegin);
    floods.take_words(std::string(1 << 16, 'w'));
  }
  REQUIRE(floods.noise().size() <= 64 << 10);
  REQUIRE(floods.words().size() <= 64 << 10);
  floods.take_output(hello("still"), kBegin);
  REQUIRE(floods.hello() == "still");
}

TEST_CASE("remote_start: a silent login shell gets a line feed each second, until it is heard") {
  RemoteStart start(100, "x86_64", kBegin);
  start.nudge(kBegin + 900ms);
  REQUIRE(drain(start).empty());
  REQUIRE(start.next_nudge() == kBegin + 1s);
  start.nudge(kBegin + 1s);
  REQUIRE(drain(start) == "\n");
  REQUIRE(start.next_nudge() == kBegin + 2s);
  for (int i = 2; i < 500; ++i) start.nudge(kBegin + i * 1s);  // nobody takes them
  REQUIRE(start.text().size() <= 64);
  drain(start);
  start.take_output("motd\n", kBegin + 600s);
  REQUIRE(start.next_nudge());
  start.take_output(mark("found"), kBegin + 600s);
  REQUIRE_FALSE(start.next_nudge());
  start.nudge(kBegin + 700s);
  REQUIRE(drain(start).empty());
}

}  // namespace hvd
