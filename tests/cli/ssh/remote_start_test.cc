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

std::string frame(FrameKind kind, const std::string& body) {
  std::string bytes;
  append_header(bytes, {uint32_t(body.size()), kind, Stream::kStdout, 0, 0});
  return bytes + body;
}

std::string wish(const std::string& body) { return frame(FrameKind::kWanted, body); }

const ShipOffer kOffer{"the list", {{"/a", 10, 0}, {"/empty", 0, 0}, {"/c", 30, 0}}, 40};

// A start that has been asked for the list, and has answered.
RemoteStart shipping(const ShipOffer& offer = kOffer) {
  RemoteStart start(100, "x86_64", kBegin, &offer);
  start.take_output(mark("found") + std::string(kFrameMagic) + wish("list"), kBegin);
  drain(start);
  return start;
}

// What is written of the offer, "file:bytes" each.
std::string ship_all(RemoteStart& start) {
  std::string all;
  while (const auto piece = start.wants_shipped()) {
    all +=
        (all.empty() ? "" : " ") + std::to_string(piece->file) + ":" + std::to_string(piece->bytes);
    start.shipped_written(piece->bytes);
  }
  return all;
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
      {"copied", "it sent \"copied\" when that makes no sense"},  // it had asked for nothing
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
    floods.take_words(std::string(1 << 16, 'w'), kBegin);
  }
  REQUIRE(floods.noise().size() <= 64 << 10);
  REQUIRE(floods.words().size() <= 64 << 10);
  floods.take_output(hello("still"), kBegin);
  REQUIRE(floods.hello() == "still");
}

// Each line is looked for in all that has come: only so many of them may be.
TEST_CASE("remote_start: a step that was taken is not taken again") {
  RemoteStart start(100, "x86_64", kBegin);
  start.take_output(mark("found"), kBegin);
  REQUIRE(start.phase() == StartPhase::kStarting);
  start.take_output(mark("found"), kBegin);
  CHECK(start.failure() == "it sent \"found\" when that makes no sense");
}

TEST_CASE("remote_start: what comes as standard error for want of an output is no word of ssh's") {
  for (const std::string& bytes : {mark("need"), "noise\n" + mark("found"), hello("\x08\xff")}) {
    RemoteStart start(100, "x86_64", kBegin);
    for (const char byte : bytes) start.take_words({&byte, 1}, kBegin);
    REQUIRE(start.phase() == StartPhase::kFailed);
    REQUIRE(start.failure().find("redirects its standard output") != std::string::npos);
  }
  RemoteStart traced(100, "x86_64", kBegin);  // by set -x
  traced.take_words("+ exec /bin/sh -c 'mark=\"" + std::string(kRemoteMark) + "\"'\n", kBegin);
  REQUIRE(traced.phase() == StartPhase::kConnecting);
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

TEST_CASE("remote_start: what is shipped goes as it is asked for, and then the agent speaks") {
  RemoteStart start(100, "x86_64", kBegin, &kOffer);
  const std::string first = mark("found") + std::string(kFrameMagic) + wish("list");
  for (const char byte : first) start.take_output({&byte, 1}, kBegin + 1s);
  REQUIRE(start.phase() == StartPhase::kShipping);
  REQUIRE(start.since() == kBegin + 1s);
  REQUIRE(start.sends_list());
  REQUIRE(drain(start) == std::string(kFrameMagic) + frame(FrameKind::kShipment, "the list"));
  REQUIRE_FALSE(start.sends_list());
  REQUIRE(ship_all(start).empty());
  start.take_output(wish("2 1"), kBegin + 2s);
  REQUIRE(start.to_ship() == 30);
  start.shipped_written(12);
  REQUIRE(start.shipped() == 12);
  REQUIRE(start.wants_shipped()->at == 12);
  REQUIRE(ship_all(start) == "2:18");
  start.take_output(wish("1 0"), kBegin + 3s);
  REQUIRE(ship_all(start) == "0:10");
  REQUIRE(start.shipped() == 40);
  REQUIRE(start.to_ship() == 40);
  start.take_output(frame(FrameKind::kHello, "words"), kBegin + 4s);
  REQUIRE(start.phase() == StartPhase::kReady);
  REQUIRE(start.hello() == "words");
}

TEST_CASE(
    "remote_start: a host that asks for what is not offered, or at a wrong time, has failed") {
  for (const char* bad :
       {"3", "0 0", "-1", "0,2", "list", "0 ", " 0", "99999999999999999999", "a"}) {
    RemoteStart start = shipping();
    start.take_output(wish(bad), kBegin);
    INFO(bad);
    if (std::string_view(bad) == "0 ") {  // harmless
      CHECK(ship_all(start) == "0:10");
      continue;
    }
    CHECK(start.failure() == "it asked for what is shipped in a way that makes no sense");
    CHECK_FALSE(start.wants_shipped());
  }
  RemoteStart start = shipping();
  start.take_output(wish("0") + wish("2"), kBegin);
  CHECK(start.failure() == "it asked for what is shipped in a way that makes no sense");
  RemoteStart early(100, "x86_64", kBegin, &kOffer);
  early.take_output(std::string(kFrameMagic) + wish("0"), kBegin);
  CHECK(early.failure() == "it asked for what is shipped in a way that makes no sense");
  RemoteStart nothing(100, "x86_64", kBegin);
  nothing.take_output(std::string(kFrameMagic) + wish("list"), kBegin);
  CHECK(nothing.failure() == "its agent's first words are none of an hvdrun's");
  RemoteStart without(100, "x86_64", kBegin, &kOffer);
  without.take_output(hello("words"), kBegin);
  CHECK(without.failure() == "its agent began without what is shipped");
}

TEST_CASE("remote_start: asking for ever, and for more than the limit, is a failure") {
  RemoteStart start = shipping();
  int asked = 0;
  for (; start.failure().empty(); ++asked) {
    start.take_output(wish("0"), kBegin);
    ship_all(start);
    REQUIRE(asked < 1000);
  }
  CHECK(asked > 100);
  const ShipOffer limited{"the list", kOffer.files, 39};
  RemoteStart more = shipping(limited);
  more.take_output(wish("0"), kBegin);
  ship_all(more);
  more.take_output(wish("2"), kBegin);
  CHECK(more.failure().starts_with("what is to be shipped comes to"));
  RemoteStart large = shipping(limited);
  large.take_output(wish("0 2"), kBegin);
  CHECK(large.failure().starts_with("what is to be shipped comes to"));
  CHECK_FALSE(large.wants_shipped());
}

TEST_CASE("remote_start: why a host cannot be shipped to is said, as far as it can be shown") {
  RemoteStart start = shipping();
  std::string reason = "no\troom in \"é\"\x1b[2J ";
  while (reason.size() < 5000) reason += "日";
  start.take_output(frame(FrameKind::kNotShipped, reason), kBegin);
  CHECK(start.failure().starts_with(
      "what is shipped cannot be put there: no room in \"é\"?[2J 日日日"));
  CHECK(start.failure().ends_with("日"));
  CHECK(start.failure().size() < 1100);
}

}  // namespace hvd
