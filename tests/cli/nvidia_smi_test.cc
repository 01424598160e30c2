// Stand-ins for nvidia-smi, first on the PATH: what is asked, and how long is waited.
#include "cli/nvidia_smi.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cerrno>

#include "runtime/base/deadline.h"
#include "runtime/base/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/folder.h"

namespace hvd {
namespace {

using Trouble = NvidiaSmiAnswers::Trouble;
using namespace std::chrono_literals;

NvidiaSmiAnswers ask(const Folder& folder, std::vector<GpuQuestion> questions,
                     std::chrono::milliseconds limit = 20s) {
  StartState start;
  start.environment = {"PATH=" + folder.path() + ":/usr/bin:/bin", "WORD=here"};
  return ask_nvidia_smi(questions, start, limit);
}

// No child of this process, running or ended.
bool nobody_is_left() { return waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD; }

}  // namespace

TEST_CASE("nvidia-smi: each question has an answer, whatever it ends with and wherever it speaks") {
  const Folder folder;
  folder.write("nvidia-smi", "#!/bin/sh\necho \"$WORD $1 $2\"\necho error >&2\nexit 9\n", 0755);
  const NvidiaSmiAnswers answers = ask(folder, {{"-L"}, {"topo", "-p2p"}});
  CHECK(answers.trouble == Trouble::kNone);
  CHECK(answers.texts == std::vector<std::string>{"here -L \nerror\n", "here topo -p2p\nerror\n"});
  CHECK(nobody_is_left());
}

TEST_CASE("nvidia-smi: a missing one and one that cannot be run are told apart") {
  const Folder folder;
  CHECK(ask(folder, {{"-L"}, {"-L"}}).trouble == Trouble::kMissing);
  folder.write("nvidia-smi", "#!/bin/sh\n", 0644);
  const NvidiaSmiAnswers answers = ask(folder, {{"-L"}});
  CHECK(answers.trouble == Trouble::kFailed);
  CHECK(answers.why == "nvidia-smi cannot be run: Permission denied");
}

TEST_CASE("nvidia-smi: who hangs is waited for until the deadline, and ended") {
  const Folder folder;
  folder.write("nvidia-smi",
               "#!/bin/sh\n[ $1 = -L ] && { echo first; exit; }\necho begun; exec sleep 600\n",
               0755);
  const TimePoint begin = Clock::now();
  const NvidiaSmiAnswers answers = ask(folder, {{"-L"}, {"topo"}}, 2s);
  CHECK(answers.trouble == Trouble::kLate);
  CHECK(answers.texts == std::vector<std::string>{"first\n", "begun\n"});
  CHECK(Clock::now() - begin >= 2s);
  CHECK(Clock::now() - begin < 60s);
  CHECK(nobody_is_left());
}

TEST_CASE("nvidia-smi: what it has started ends with it") {
  const Folder folder;
  REQUIRE(mkfifo(folder.in("alive").c_str(), 0600) == 0);
  folder.write("nvidia-smi",
               "#!/bin/sh\n(exec >" + folder.in("alive") + " 2>&1; sleep 600) & exec sleep 600\n",
               0755);
  const UniqueFd alive(open(folder.in("alive").c_str(), O_RDONLY | O_NONBLOCK));
  REQUIRE(ask(folder, {{"-L"}}, 1s).trouble == Trouble::kLate);
  CHECK(nobody_is_left());
  pollfd ended{alive.get(), POLLIN, 0};  // nobody holds the other end
  REQUIRE(poll(&ended, 1, 60'000) == 1);
  CHECK((ended.revents & POLLHUP) != 0);
}

TEST_CASE("nvidia-smi: who closes its output and stays is not waited for") {
  const Folder folder;
  folder.write("nvidia-smi", "#!/bin/sh\necho all\nexec sleep 30 >/dev/null 2>&1\n", 0755);
  const TimePoint begin = Clock::now();
  CHECK(ask(folder, {{"-L"}}).texts[0] == "all\n");
  CHECK(Clock::now() - begin < 20s);
  CHECK(nobody_is_left());
}

TEST_CASE("nvidia-smi: without one, who has none is told from who may have some") {
  NvidiaSmiAnswers answers;
  answers.trouble = Trouble::kMissing;
  CHECK_THAT(no_answer(answers, false), Catch::StartsWith("there is no GPU here: no /dev/nvidia0 "
                                                          "that may be opened, and no nvidia-smi"));
  CHECK_THAT(no_answer(answers, true),
             Catch::StartsWith("nvidia-smi, which tells of GPUs, is not on the PATH; "));
}

}  // namespace hvd
