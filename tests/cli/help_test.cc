// Help, man page and feature list: complete, and readable on 80 columns.
#include "cli/help.h"

#include <algorithm>
#include <sstream>

#include "cli/agent_watch.h"
#include "cli/features.h"
#include "cli/options.h"
#include "tests/support/catch.h"

using namespace hvd;

namespace {

bool has(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

}  // namespace

TEST_CASE("help: every spelling of every option is in the full help and in the man page") {
  const std::string help = full_help();
  std::string man = man_page();
  for (size_t at; (at = man.find("\\-")) != std::string::npos;) man.erase(at, 1);
  for (const Option& option : all_options()) {
    for (std::string_view spelling : spellings(option)) {
      CHECK(has(help, spelling) == (option.fate != OptionFate::kForTests));
      CHECK(has(man, spelling) == (option.fate != OptionFate::kForTests));
    }
  }
}

TEST_CASE("help: the level is hvdrun's, and decides on libhvd's stall warning alone") {
  const std::string text(find_option("--log-level")->text);
  CHECK(has(text, "what hvdrun logs: "));
  CHECK(has(text, "with the last two the ranks' libhvd leaves out its stall warning"));
}

TEST_CASE("help: for how long a host may be silent is said as it is") {
  const auto limit = std::chrono::duration_cast<std::chrono::seconds>(AgentWatch::kHostSilence);
  CHECK_THAT(
      std::string(find_option("--agent-timeout")->text),
      Catch::EndsWith("another machine after " + std::to_string(limit.count()) + " at most"));
}

TEST_CASE("help: what becomes of an option that is given twice is said as it is") {
  std::string help = full_help();
  std::replace(help.begin(), help.end(), '\n', ' ');
  CHECK(has(help,
            "the last one counts, unless it says \"may be given again\": then all count; or "
            "\"one only\": then a second is refused."));
  // command_line_test has that it is.
  for (const Option& option : all_options())
    CHECK(has(option.text, "one only") == (option.name == "--hostfile"));
}

TEST_CASE("help: no line is longer than 80 columns") {
  for (const std::string& text : {short_help(), full_help()}) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 80);
  }
}

TEST_CASE("help: the short one has three examples and says where the rest is") {
  const std::string help = short_help();
  size_t examples = 0;
  for (size_t at = 0; (at = help.find("\n  hvdrun ", at)) != std::string::npos; ++at) ++examples;
  CHECK(examples == 3);
  CHECK(has(help, "hvdrun --help shows all options"));
  CHECK(has(help, "-np N, --num-proc N"));
  CHECK(has(help, "-H LIST, --hosts LIST"));
}

TEST_CASE("help: no line of the man page is taken for a request by mistake") {
  std::istringstream lines(man_page());
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || (line[0] != '.' && line[0] != '\'')) continue;
    const std::string word = line.substr(0, line.find(' '));
    const bool known = word == ".TH" || word == ".SH" || word == ".SS" || word == ".TP" ||
                       word == ".PP" || word == ".br";
    CHECK(known);
  }
}

TEST_CASE("options: no spelling belongs to two of them") {
  for (const Option& option : all_options()) {
    for (std::string_view spelling : spellings(option)) CHECK(find_option(spelling) == &option);
  }
}

TEST_CASE("features: the build is described in Horovod's layout") {
  const std::string text = check_build_text(false);
  std::vector<std::string> titles;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    if (line[0] != ' ') {
      titles.push_back(line);
    } else {
      const std::string box = line.substr(0, 8);
      CHECK((box == "    [X] " || box == "    [ ] "));
    }
  }
  REQUIRE(titles.size() == 4);
  CHECK(titles[0].rfind("hvdrun v", 0) == 0);
  CHECK(titles[1] == "Available Frameworks:");
  CHECK(titles[2] == "Available Controllers:");
  CHECK(titles[3] == "Available Tensor Operations:");
  for (const char* backend : {"shared memory", "tcp", "hierarchical"})
    CHECK(has(text, std::string("[X] ") + backend + "\n"));
  const std::string more = check_build_text(true);
  CHECK((has(more, "[ ] NCCL (built without CUDA)") ||
         has(more, "[X] NCCL (among GPUs, a plug-in of this build's libhvd, for NCCL 2.")));
}

TEST_CASE("features: the version names what is linked in") {
  CHECK(has(version_text(), "gRPC 1."));
  CHECK(has(version_text(), "Protocol Buffers 3."));
}
