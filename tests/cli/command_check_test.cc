// What an agent says of a command that it could not start; job_check_test has what hvdrun says of
// its own host.
#include "cli/command_check.h"

#include <elf.h>

#include <cstddef>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/folder.h"

using namespace hvd;

namespace {

std::string check(const std::vector<std::string>& command, const std::string& directory,
                  const std::string& program = "", bool far = true) {
  const auto refusal = check_command({.command = command,
                                      .program = program,
                                      .directory = directory,
                                      .path = "/usr/bin:/bin",
                                      .start = "hvdrun ...",
                                      .far = far});
  return refusal ? refusal->message : "";
}

// This very program, for a loader that is not there.
struct Foreign {
  Foreign() {
    std::ifstream own("/proc/self/exe", std::ios::binary);
    own.read(bytes.data(), std::streamsize(bytes.size()));
    const size_t loader = bytes.find("/lib");
    REQUIRE(loader != std::string::npos);
    bytes[loader + 3] = 'x';
    asks = "asks to be loaded by \"" + bytes.substr(loader, bytes.find('\0', loader) - loader) +
           "\", which is not there: it was built for another system; ";
  }
  std::string bytes = std::string(4096, '\0'), asks;
};

}  // namespace

TEST_CASE("command check: on another host what is missing may be shipped") {
  const Folder folder;
  CHECK(check({"./train", "1"}, folder.path()) ==
        "command \"./train\" in \"" + folder.path() +
            "\" cannot be started: No such file or directory; copy it there, or send it with "
            "--ship ./train");
}

TEST_CASE("command check: advice repeats the command, not the options") {
  const Folder folder;
  folder.write("a", "#!/bin/sh\n", 0755);
  folder.write("x.sh", "#!/bin/sh\n", 0644);
  folder.write("y.py", "#!/not/there\n", 0755);
  CHECK(check({"a", "gather"}, folder.path()) ==
        "command \"a\" is not found on the PATH; try: hvdrun ... ./a gather");
  CHECK(check({"./x.sh"}, folder.path()) ==
        "\"./x.sh\" has no permission to be executed; try: hvdrun ... sh ./x.sh");
  CHECK_THAT(check({"./y.py"}, folder.path()),
             Catch::StartsWith("\"./y.py\" asks to be run by \"/not/there\", which is not there"));
  CHECK(check({"sh ./x.sh"}, folder.path()) ==
        "there is no command \"sh ./x.sh\"; try: hvdrun ... sh ./x.sh");
}

TEST_CASE("command check: a program for another system's loader is told as such") {
  const Foreign foreign;
  const Folder folder;
  folder.write("train", foreign.bytes, 0755);
  const std::string said = "\"./train\" " + foreign.asks;
  CHECK(check({"./train"}, folder.path()) == said + "send it with --ship ./train");
  const std::string built = said + "build it for this one, or link it statically";
  CHECK(check({"./train"}, folder.path(), "", false) == built);
  CHECK(check({"./train"}, folder.path(), folder.in("train")) == built);  // it came by --ship
}

TEST_CASE("command check: of a program that the PATH finds its place is told, and none is sent") {
  const Foreign foreign;
  const Folder folder;
  folder.write("train", foreign.bytes, 0755);
  const auto refusal = check_command({.command = std::vector<std::string>{"train"},
                                      .program = "",
                                      .directory = "/",
                                      .path = folder.path(),
                                      .start = "hvdrun ...",
                                      .far = true});
  REQUIRE(refusal);
  CHECK(refusal->message == "\"" + folder.in("train") + "\" " + foreign.asks +
                                "build it for this one, or link it statically");
}

TEST_CASE("command check: what may be sent is told of another host alone") {
  const Folder folder;
  const std::vector<std::string> named = {"train"}, by_path = {"./train"}, whole = {"/a/train"};
  const auto place = [&](const std::vector<std::string>& command, bool far) {
    return CommandPlace{.command = command,
                        .program = "",
                        .directory = "/",
                        .path = folder.path(),
                        .start = "hvdrun ...",
                        .far = far};
  };
  const std::string missing = "command \"train\" is not found on the PATH; check its spelling";
  CHECK(check_command(place(named, false))->message == missing + " or give its path");
  CHECK(check_command(place(named, true))->message ==
        missing + ", install it there, or name it by its path here and send that with --ship");
  const std::string directory = "make that directory there, or name another by --wdir";
  CHECK(missing_directory_advice(place(by_path, false)) == directory);
  CHECK(missing_directory_advice(place(named, true)) == directory);
  CHECK(missing_directory_advice(place(whole, true)) == directory);
  CHECK(missing_directory_advice(place(by_path, true)) ==
        directory + "; --ship ./train sends the program, which then needs none");
}

TEST_CASE("command check: a program of another machine is left to who emulates that") {
  Foreign foreign;
  const Folder folder;
  foreign.bytes[offsetof(Elf64_Ehdr, e_machine) + 1] ^= 0x40;
  folder.write("train", foreign.bytes, 0755);
  CHECK(check({"./train"}, folder.path()).empty());
}

TEST_CASE("command check: an interpreter for another system's loader is told as such") {
  const Foreign foreign;
  const Folder folder;
  folder.write("python", foreign.bytes, 0755);
  folder.write("train", "#! " + folder.in("python") + " -u\n", 0755);
  CHECK(check({"./train"}, folder.path()) ==
        "\"./train\" asks to be run by \"" + folder.in("python") + "\", and that " + foreign.asks +
            "correct its first line or put an interpreter before it");
}

TEST_CASE("command check: of what was shipped the copy is looked at, and the user's word said") {
  const Folder folder;
  folder.write("copy.sh", "#!/bin/sh\n", 0644);
  for (const char* word : {"./x.sh", "x.sh"})
    CHECK(check({word}, "/", folder.in("copy.sh")) ==
          "\"" + std::string(word) + "\" has no permission to be executed; try: hvdrun ... sh " +
              word);
  CHECK(check({"./x"}, "/", folder.in("gone")) ==
        "command \"./x\" in \"/\" cannot be started: No such file or directory; it was sent there "
        "and is gone since; start the job again");
}
