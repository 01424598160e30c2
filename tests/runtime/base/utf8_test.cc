// Text as UTF-8: characters told from other bytes, and cut between them.
#include "runtime/base/utf8.h"

#include <string>

#include "tests/support/catch.h"

using namespace hvd;

TEST_CASE("utf-8: a character has so many bytes, and what is none has 0") {
  CHECK(character_bytes("") == 0);
  CHECK(character_bytes("ax") == 1);
  CHECK(character_bytes("éx") == 2);
  CHECK(character_bytes("日x") == 3);
  CHECK(character_bytes("😀x") == 4);
  for (const char* none : {"\x80", "\xe9", "\xc3x", "\xe6\x97", "\xe6x\xa5", "\xf0\x9f\x98", "\xff",
                           "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80",
                           "\xf4\x90\x80\x80", "\xf5\x80\x80\x80"}) {
    INFO(none);
    CHECK(character_bytes(none) == 0);
  }
}

TEST_CASE("utf-8: a character without its end is told from what can be none") {
  for (const char* begun : {"\xc3", "\xe6", "\xe6\x97", "\xf0", "\xf0\x9f", "\xf0\x9f\x98"}) {
    INFO(begun);
    CHECK(is_begun_character(begun));
  }
  for (const char* other : {"", "a", "é", "\x80", "\xff", "\xc0", "\xc3x", "\xe0\x80", "\xed\xa0",
                            "\xf0\x80", "\xf4\x90", "\xf0\x9fx", "日"}) {
    INFO(other);
    CHECK_FALSE(is_begun_character(other));
  }
}

TEST_CASE("utf-8: a character that would change the line around it is not shown") {
  for (const char* shown :
       {"a", " ", "~", "\xc2\xa0", "é", "日", "😀", "\xe2\x80\x8a", "\xe2\x80\x90", "\xe2\x80\xa7",
        "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe2\x81\xb0", "\xe3\x80\xae", "\xef\xbb\xbc"}) {
    INFO(shown);
    CHECK(shown_bytes(shown) == std::string(shown).size());
  }
  CHECK(shown_bytes(std::string_view("\0", 1)) == 0);
  for (const char* none : {"", "\n", "\x1b[2J", "\x7f", "\xc2\x80", "\xc2\x9b", "\xc2\x9f",
                           "\xe2\x80\x8b", "\xe2\x80\x8f", "\xe2\x80\xa8", "\xe2\x80\xae",
                           "\xe2\x81\xa0", "\xe2\x81\xaf", "\xef\xbb\xbf", "\xe9"}) {
    INFO(none);
    CHECK(shown_bytes(none) == 0);
  }
  for (const char* shown :
       {"\u00ac",     "\u00ae",     "\u034e",     "\u0350",     "\u061b",     "\u061d",
        "\u115e",     "\u1161",     "\u17b3",     "\u17b6",     "\u180a",     "\u1810",
        "\u3163",     "\u3165",     "\ufe0f",     "\uff9f",     "\uffa1",     "\uffef",
        "\ufffc",     "\U0001bc9f", "\U0001bca4", "\U0001d172", "\U0001d17b", "\U000dfffd",
        "\U000e1000", "❤️"}) {
    INFO(shown);
    CHECK(is_shown(shown));
  }
  for (const char* none :
       {"\u00ad",     "\u034f",     "\u061c",     "\u115f",     "\u1160",     "\u17b4",
        "\u17b5",     "\u180b",     "\u180f",     "\u3164",     "\uffa0",     "\ufff0",
        "\ufffb",     "\U0001bca0", "\U0001bca3", "\U0001d173", "\U0001d17a", "\U000e0000",
        "\U000e0100", "\U000e01ef", "\U000e0fff"}) {
    INFO(none);
    CHECK(shown_bytes(none) == 0);
  }
  CHECK(is_shown("a é 日"));
  CHECK(is_shown(""));
  CHECK_FALSE(is_shown("é\n"));
}

TEST_CASE("utf-8: a text is cut between its characters, on both sides") {
  const std::string text = "aé日😀";  // 1, 2, 3 and 4 bytes
  const size_t heads[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 10};
  const size_t tails[] = {0, 0, 0, 0, 4, 4, 4, 7, 7, 9, 10, 10};
  for (size_t bytes = 0; bytes < std::size(heads); ++bytes) {
    INFO(bytes);
    CHECK(head_of(text, bytes) == text.substr(0, heads[bytes]));
    CHECK(tail_of(text, bytes) == text.substr(text.size() - tails[bytes]));
  }
}

TEST_CASE("utf-8: bytes that are no text are cut anywhere, but never made longer") {
  const std::string bytes(20, '\x80');
  for (size_t most = 0; most < bytes.size(); ++most) {
    CHECK(head_of(bytes, most) == bytes.substr(0, most));
    CHECK(tail_of(bytes, most) == bytes.substr(0, most > 3 ? most : 0));
  }
}

TEST_CASE("utf-8: a copy fits with its zero") {
  char place[6];
  copy_text(place, sizeof place, "日日");
  CHECK(std::string(place) == "日");
  copy_text(place, sizeof place, "abcde");
  CHECK(std::string(place) == "abcde");
  copy_text(place, 1, "é");
  CHECK(std::string(place).empty());
}
