// Lines stay whole, whatever pieces they come in.
#include "cli/line_tagger.h"

#include <algorithm>
#include <random>

#include "tests/support/catch.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

LineTagger two_streams() { return LineTagger({{"[0]:", "[0]+:", true}, {"[1]:", "[1]+:", true}}); }

}  // namespace

TEST_CASE("line tagger: lines stay whole when streams mix") {
  LineTagger tagger = two_streams();
  const TimePoint now{};
  std::string out;
  tagger.feed(0, "one ", now, out);
  tagger.feed(1, "other\n", now, out);
  tagger.feed(0, "line\nnext\n", now, out);
  CHECK(out == "[1]:other\n[0]:one line\n[0]:next\n");
  CHECK_FALSE(tagger.next_deadline());
}

TEST_CASE("line tagger: a carriage return ends a line and is kept") {
  LineTagger tagger = two_streams();
  const TimePoint now{};
  std::string out;
  tagger.feed(0, "10%\r20%\r", now, out);
  CHECK(out == "[0]:10%\r");  // the last one may be half of \r\n
  tagger.feed(0, "30%\r\nnext\r", now, out);
  CHECK(out == "[0]:10%\r[0]:20%\r[0]:30%\r\n");
  tagger.feed(0, "\n", now, out);
  CHECK(out == "[0]:10%\r[0]:20%\r[0]:30%\r\n[0]:next\r\n");
  CHECK_FALSE(tagger.next_deadline());
}

TEST_CASE("line tagger: a progress bar that pauses comes out as a line and holds nobody") {
  LineTagger tagger = two_streams();
  const TimePoint now{};
  std::string out;
  tagger.feed(0, "50%\r", now, out);
  tagger.tick(now + 200ms, out);
  CHECK(out == "[0]:50%\r");
  tagger.feed(1, "other\n", now + 210ms, out);
  tagger.feed(0, "60%\r", now + 220ms, out);
  tagger.finish(out);
  CHECK(out == "[0]:50%\r[1]:other\n[0]:60%\r");
}

TEST_CASE("line tagger: prompts come out and hold the sink for a while") {
  LineTagger tagger = two_streams();
  const TimePoint now{};
  std::string out;
  tagger.feed(0, "name? ", now, out);
  CHECK(tagger.next_deadline() == now + 200ms);
  tagger.tick(now + 199ms, out);
  CHECK(out.empty());
  tagger.tick(now + 200ms, out);
  CHECK(out == "[0]:name? ");
  tagger.feed(1, "waits\n", now + 300ms, out);
  CHECK(out == "[0]:name? ");
  tagger.tick(now + 1200ms, out);
  CHECK(out == "[0]:name? \n[1]:waits\n");
  tagger.feed(0, "bob\n", now + 1300ms, out);
  CHECK(out == "[0]:name? \n[1]:waits\n[0]+:bob\n");
  CHECK(tagger.splits() == 1);
}

TEST_CASE("line tagger: a line that ends frees the others") {
  LineTagger tagger = two_streams();
  const TimePoint now{};
  std::string out;
  tagger.feed(0, "half", now, out);
  tagger.tick(now + 200ms, out);
  tagger.feed(1, "other\n", now + 210ms, out);
  tagger.feed(0, " whole\nmore\n", now + 220ms, out);
  CHECK(out == "[0]:half whole\n[0]:more\n[1]:other\n");
  CHECK(tagger.splits() == 0);
}

TEST_CASE("line tagger: a reader that is behind splits nothing") {
  LineTagger tagger = two_streams();
  const TimePoint now{}, sent{1h};  // by another clock
  const auto heard = [&](size_t) { return sent + 199ms; };
  std::string out;
  tagger.feed(0, "half", now, out, sent);
  tagger.tick(now + 5s, out, heard);
  tagger.tick(now + 5s + 199ms, out);
  CHECK(out.empty());
  tagger.feed(0, " whole\n", now + 5s + 199ms, out, sent + 1ms);
  CHECK(out == "[0]:half whole\n");
  CHECK(tagger.splits() == 0);
}

TEST_CASE("line tagger: a prompt comes out though others write more than is read") {
  LineTagger tagger = two_streams();
  const TimePoint now{}, sent{1h};
  TimePoint newest = sent;
  const auto heard = [&](size_t) { return newest; };
  std::string out;
  tagger.feed(0, "name? ", now, out, sent);
  newest = sent + 200ms;
  tagger.tick(now + 5s, out, heard);
  CHECK(out == "[0]:name? ");
  tagger.feed(1, "waits\n", now + 5s, out, newest);
  newest = sent + 999ms;
  tagger.tick(now + 10s, out, heard);
  CHECK(out == "[0]:name? ");
  newest = sent + 1s;
  tagger.tick(now + 10s, out, heard);
  CHECK(out == "[0]:name? \n[1]:waits\n");
  tagger.feed(0, "bob\n", now + 11s, out, newest);
  CHECK(out == "[0]:name? \n[1]:waits\n[0]+:bob\n");
}

TEST_CASE("line tagger: who is not behind with one sender waits no longer for its prompt") {
  LineTagger tagger = two_streams();
  const TimePoint now{};
  const auto heard = [](size_t stream) {
    return stream == 1 ? std::optional(TimePoint{}) : std::nullopt;
  };
  std::string out;
  tagger.feed(0, "name? ", now, out, TimePoint(1h));
  tagger.tick(now + 200ms, out, heard);
  CHECK(out == "[0]:name? ");
}

// What has not come of a character follows it, or the continuation tag, with the rest.
TEST_CASE("line tagger: a line is not split within a character") {
  for (const char* const whole : {"\u00e9", "\u20ac", "\U0001f600"}) {
    const std::string character = whole;
    for (size_t came = 1; came < character.size(); ++came) {
      CAPTURE(character, came);
      LineTagger tagger = two_streams();
      TimePoint now{};
      std::string out;
      tagger.feed(0, "x" + character.substr(0, came), now, out);
      tagger.tick(now += 200ms, out);
      CHECK(out == "[0]:x");
      CHECK_FALSE(tagger.next_deadline());
      tagger.feed(1, "waits\n", now, out);
      while (const auto due = tagger.next_deadline()) tagger.tick(now = *due, out);
      CHECK(out == "[0]:x\n[1]:waits\n");
      tagger.feed(0, character.substr(came) + "\n", now, out);
      CHECK(out == "[0]:x\n[1]:waits\n[0]+:" + character + "\n");
    }
  }
  LineTagger tagger = two_streams();
  std::string out;
  const std::string big(kLineBytesMax, 'x');
  tagger.feed(0, big + "\xc3", TimePoint{}, out);
  CHECK(out == "[0]:" + big);
  tagger.finish(out);
  CHECK(out == "[0]:" + big + "\xc3");
}

TEST_CASE("line tagger: bytes that begin no character come out as prompts do") {
  for (const char* const bytes : {"x\xff", "x\xe2\x28", "x\xa9\xa9\xa9\xa9", "\x80"}) {
    LineTagger tagger = two_streams();
    const TimePoint now{};
    std::string out;
    tagger.feed(0, bytes, now, out);
    tagger.tick(now + 200ms, out);
    CHECK(out == std::string("[0]:") + bytes);
    CHECK_FALSE(tagger.next_deadline());
  }
}

TEST_CASE("line tagger: lines beyond 64 KiB come in pieces") {
  LineTagger tagger = two_streams();
  const TimePoint now{};
  std::string out;
  const std::string big(kLineBytesMax + 1, 'x');
  tagger.feed(0, big, now, out);
  CHECK(out == "[0]:" + big);
  out.clear();
  tagger.feed(1, std::string(kHeldBytesMax, 'y') + "\n", now, out);  // too much to hold back
  CHECK(out.substr(0, 6) == "\n[1]:y");
  CHECK(tagger.splits() == 1);
  out.clear();
  tagger.feed(1, "rest", now, out);
  tagger.feed(0, "z", now, out);
  tagger.finish(out);
  CHECK(out == "[0]+:z\n[1]:rest");
}

TEST_CASE("line tagger: a last line without an end gets one only from the next line") {
  LineTagger tagger = two_streams();
  const TimePoint now{};
  std::string out;
  tagger.feed(0, "a\nb", now, out);
  tagger.finish(out);
  CHECK(out == "[0]:a\n[0]:b");
  tagger.feed(1, "c\n", now, out);
  CHECK(out == "[0]:a\n[0]:b\n[1]:c\n");
}

TEST_CASE("line tagger: a held line that never ends is closed for those who wait") {
  LineTagger tagger = two_streams();
  const TimePoint now{};
  std::string out;
  tagger.feed(0, "half", now, out);
  tagger.tick(now + 200ms, out);
  tagger.feed(1, "other\n", now + 210ms, out);
  tagger.finish(out);
  CHECK(out == "[0]:half\n[1]:other\n");
}

TEST_CASE("line tagger: a stamp stands before every tag but those that want none") {
  LineTagger tagger({{"[0]:", "[0]+:", true}, {"", "", false}, {"", "", true}});
  const TimePoint now{};
  std::string out;
  tagger.set_stamp("noon");
  tagger.feed(0, "a\nb\n", now, out);
  tagger.feed(1, "hvdrun: c\n", now, out);
  tagger.feed(2, "d\n", now, out);
  CHECK(out == "noon[0]:a\nnoon[0]:b\nhvdrun: c\nnoon d\n");
}

TEST_CASE("line tagger: without tags lines stay whole too") {
  LineTagger tagger({{"", "", true}, {"", "", true}});
  const TimePoint now{};
  std::string out;
  tagger.feed(0, "one\ntwo", now, out);
  tagger.feed(1, "other\n", now, out);
  tagger.feed(0, " three\n", now, out);
  CHECK(out == "one\nother\ntwo three\n");
}

// Against a reference: whatever the cuts, each stream's lines come out whole and in order while all
// are short.
TEST_CASE("line tagger: random cuts keep every line") {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    LineTagger tagger = two_streams();
    std::string text[2], out, wanted[2], seen[2];
    size_t at[2] = {0, 0};
    const char* const ends[] = {"\n", "\n", "\r\n", "\r"};
    for (int i = 0; i < 100; ++i) {
      for (int s = 0; s < 2; ++s) {
        // A line begins with a letter, so that no \r meets a \n of the next one.
        const std::string line =
            std::string(1 + random() % 40, char('a' + random() % 26)) + ends[random() % 4];
        text[s] += line;
        wanted[s] += "[" + std::to_string(s) + "]:" + line;
      }
    }
    while (at[0] < text[0].size() || at[1] < text[1].size()) {
      const size_t s = random() % 2, take = std::min<size_t>(random() % 90, text[s].size() - at[s]);
      tagger.feed(s, std::string_view(text[s]).substr(at[s], take), TimePoint{}, out);
      at[s] += take;
    }
    tagger.finish(out);
    for (std::string_view left = out; !left.empty();) {
      size_t end = left.find_first_of("\r\n") + 1;
      if (left[end - 1] == '\r' && end < left.size() && left[end] == '\n') ++end;
      REQUIRE(left.size() > 1);
      seen[left[1] - '0'] += left.substr(0, end);
      left.remove_prefix(end);
    }
    REQUIRE(seen[0] == wanted[0]);
    REQUIRE(seen[1] == wanted[1]);
  }
}

}  // namespace hvd
