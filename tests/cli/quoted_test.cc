// Words of the user's in messages.
#include "cli/quoted.h"

#include <vector>

#include "tests/support/catch.h"

using namespace hvd;
using namespace std::string_literals;

TEST_CASE("quoted: what cannot be printed is escaped, what is long is cut") {
  CHECK(in_quotes("a b") == "\"a b\"");
  CHECK(in_quotes("a\n\0\xff"s) == "\"a\\x0a\\x00\\xff\"");
  CHECK(in_quotes(std::string(60, 'a')) == "\"" + std::string(60, 'a') + "\"");
  CHECK(in_quotes("données/日本.py") == "\"données/日本.py\"");
  CHECK(in_quotes("caf\xe9 \xc2\x9b[2J \xe2\x80\xaeyp.x") ==
        "\"caf\\xe9 \\xc2\\x9b[2J \\xe2\\x80\\xaeyp.x\"");
  CHECK(in_quotes("日本", 5) == "\"日...\"");
  CHECK(in_quotes(std::string(61, 'a')) == "\"" + std::string(60, 'a') + "...\"");
}

TEST_CASE("printable: what is no UTF-8, or moves a cursor, is shown as question marks") {
  CHECK(printable("plain é 日 😀") == "plain é 日 😀");
  CHECK(printable("a\tb\n") == "a b?");
  CHECK(printable("caf\xe9 \x80\xff") == "caf? ??");
  CHECK(printable("\xc2\x9b[2J\x1b[2J\x7f") == "?[2J?[2J?");
  CHECK(printable("cut \xe6\x97") == "cut ??");
  CHECK(printable("a\xe2\x80\xae"
                  "b") == "a?b");
}

TEST_CASE("quoted: shell words can be typed as they stand") {
  CHECK(shell_word("train.py") == "train.py");
  CHECK(shell_word("") == "''");
  CHECK(shell_word("a b;$x") == "'a b;$x'");
  CHECK(shell_word("it's") == "'it'\\''s'");
  CHECK(shell_word("a\\b\n'") == "$'a\\\\b\\x0a\\''");
  CHECK(shell_word("données/été.py") == "'données/été.py'");
  CHECK(shell_word("l'été") == "'l'\\''été'");
  CHECK(shell_word("été\xe9'") == "$'été\\xe9\\''");
  const std::vector<std::string> words = {"python", "train.py", "a b"};
  CHECK(shell_words(words, 100) == "python train.py 'a b'");
  CHECK(shell_words(words, 10) == "python ...");
}
