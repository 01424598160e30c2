// What is to be tried for a command that is not there.
#include "cli/meant_command.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

using namespace hvd;

namespace {

using Words = std::vector<std::string>;

Words meant(const Words& command) {
  return meant_command(command,
                       [](const std::string& word) { return word == "sh" || word == "./train"; });
}

}  // namespace

TEST_CASE("meant command: a quoted command is its words, for a shell where it has to be one") {
  CHECK(meant({"sh train.sh --lr 1", "x"}) == Words{"sh", "train.sh", "--lr", "1", "x"});
  CHECK(meant({"./train *.txt"}) == Words{"sh", "-c", "./train *.txt"});
  CHECK(meant({"cd x && ./train"}) == Words{"sh", "-c", "cd x && ./train"});
  CHECK(meant({"./train # twice"}) == Words{"sh", "-c", "./train # twice"});
  CHECK(meant({"./other *.txt"}).empty());
  CHECK(meant({"other program"}).empty());
  CHECK(meant({"other"}).empty());
  CHECK(meant({""}).empty());
}

TEST_CASE("meant command: a setting goes with -x, unless the command is in the same word") {
  CHECK(meant({"LR=1", "./train", "x"}) == Words{"-x", "LR=1", "./train", "x"});
  CHECK(meant({"LR=1", "./other"}) == Words{"-x", "LR=1", "./other"});
  CHECK(meant({"_a1=two words", "./train"}) == Words{"-x", "_a1=two words", "./train"});
  CHECK(meant({"LR=1 python train.py", "--epochs", "3"}) ==
        Words{"sh", "-c", "LR=1 python train.py \"$@\"", "sh", "--epochs", "3"});
  CHECK(meant({"LR=1"}).empty());
  for (const char* none : {"1LR=2", "\xc3\xa9=2", "\xe9=2", "=2", "a-b=2"})
    CHECK(meant({none, "./train"}).empty());
}

TEST_CASE("meant command: further words go to a line of a shell's where its end takes them") {
  for (const std::string taking :
       {"cd x && ./train", "LR=1 sh 'a b'", "./train >log", "LR=$LR sh "})
    CHECK(meant({taking, "3"}) == Words{"sh", "-c", taking + " \"$@\"", "sh", "3"});
  for (const std::string line :
       {"./train x $1", "sh ${1}", "sh \"$@\"", "sh $*", "sh # twice", "sh x;", "sh x &",
        "cd x; (./train)", "if sh x; then ./train; fi", "sh <<x", "LR=1 sh x; done", "sh x | "})
    CHECK(meant({line, "3"}) == Words{"sh", "-c", line});
}
