// What -x and environment files set, and how bad ones are refused.
#include "cli/environment_settings.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "cli/agent/worker_environment.h"
#include "runtime/base/error.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace hvd;

namespace {

using Words = std::vector<std::string>;

// "A=1|B=" of a file.
std::string read(std::string_view text) {
  std::string out;
  for (const EnvironmentSetting& one : parse_environment_file(text, "f"))
    out += (out.empty() ? "" : "|") + one.name + "=" + one.value.value();
  return out;
}

std::string refusal(std::string_view text) {
  try {
    return "none, but " + read(text);
  } catch (const Error& error) {
    return error.code() == ErrorCode::kInvalidArgument ? error.what() : "wrong code";
  }
}

// All that is warned about of a command line without blanks in its words, and of what is set here.
Words warnings_of(const char* text, const std::map<std::string, std::string>& environment = {}) {
  std::istringstream stream(text);
  Words words, entries;
  for (std::string word; stream >> word;) words.push_back(word);
  for (const auto& [name, value] : environment) entries.push_back(name + "=" + value);
  CommandLine line = parse_command_line(words, [](const char*) { return std::nullopt; });
  find_environment(line, entries);
  return line.warnings;
}

}  // namespace

TEST_CASE("environment file: a value is what stands there, without the blanks around it") {
  CHECK(read("A=1\nB=x y \n\n  C = z=\t\r\nD=\n") == "A=1|B=x y|C=z=|D=");
  CHECK(read("\xef\xbb\xbf"
             "A=1") == "A=1");
  CHECK(read("A=$HOME `x` \\n 'q'") == "A=$HOME `x` \\n 'q'");
  CHECK(read("A=\xc3\xa9").size() == 4);
  CHECK(read("").empty());
}

TEST_CASE("environment file: comments and export") {
  CHECK(read("# A=1\n  #\nexport B=2 # two\nC=a#b\nD=#fff\nE= #\nexport\tF=1\nexportG=2") ==
        "B=2|C=a#b|D=#fff|E=|F=1|exportG=2");
}

TEST_CASE("environment file: quotes") {
  CHECK(read("A=' # \\n $x '  # b\nB=\"\\\"\\\\\\$\\`\\n\\t\\x\"\nC=\"\"\nD='it\"s'") ==
        "A= # \\n $x |B=\"\\$`\n\t\\x|C=|D=it\"s");
  CHECK(refusal("A=1\nB='x") ==
        "f:2: \"B\": its value has no closing '; a value ends with its line");
  CHECK(refusal("B=\"x\\\"") ==
        "f:1: \"B\": its value has no closing \"; a value ends with its line");
  CHECK(refusal("B='x'y") == "f:1: \"B\": something follows the closing quote of its value");
}

TEST_CASE("environment file: a wrong line is named by its number, and no value is shown") {
  constexpr const char* kLine = "f:3: a line is NAME=VALUE, a comment behind # or blank";
  for (const char* line :
       {"secret", "=secret", "A B=secret", "A*=secret", "a\x01=secret", "export"})
    CHECK(refusal(std::string("A=1\n\n") + line) == kLine);
  CHECK(refusal("RANK=secret") ==
        "f:1: RANK has no effect: hvdrun gives each rank its own RANK; leave it out");
  CHECK(refusal(std::string_view("A=sec\0ret", 9)) == "f:1: \"A\" holds a zero byte; remove it");
  CHECK(refusal("A=" + std::string(131'070, 'x')) ==
        "f:1: \"A\" is 131072 bytes long; a variable may have 131071");
  CHECK(read("A=" + std::string(131'069, 'x')).size() == 131'071);
}

TEST_CASE("environment: what is wrong with a variable is said without its value") {
  const std::string_view canary = "canary";
  const Words wrong[] = {{"-x", "A B=canary"},
                         {"-x", "=canary"},
                         {"-x", "RANK=canary"},
                         {"-x", "HVD_AGENT=canary"},
                         {"-x", "A*=canary"},
                         {"-x@0", "A B=canary"},
                         {"-x@0", "RANK=canary"},
                         {"-x@0", "A?=canary"},
                         {"-x@1-0", "A=canary"},
                         {"-x@", "A=canary", "B=canary"},
                         {"-x@", "A=can ary", "B=1"},
                         {"-x@", "A=canary d", "B=1"},
                         {"-xA=canary"},
                         {"--enw=A=canary"},
                         {"--env@=A=canary", "B=1"},
                         {"-X=A=canary"},
                         {"-x", "A=canary" + std::string(131'072, 'x')}};
  for (Words words : wrong) {
    words.push_back("ls");
    try {
      parse_command_line(words, [](const char*) { return std::nullopt; });
      FAIL_CHECK(words[1]);
    } catch (const Error& error) {
      CHECK(std::string_view(error.what()).find(canary) == std::string_view::npos);
    }
  }
}

TEST_CASE("environment: wildcards stand for what is set here, but for what is each rank's own") {
  const Words here = {"NCCL_DEBUG=INFO", "NCCL_X=", "RANK=1", "LOCAL_RANK=0", "HOME=/root", "A=1"};
  Words warnings;
  const std::vector<EnvironmentSetting> given = {
      {"NCCL_*", {}, {}}, {"B", "1", {}}, {"?", {}, {}}, {"*RANK", {}, {}}, {"OMPI_*", {}, {}}};
  CHECK(expand_wildcards(given, here, {}, warnings) ==
        std::vector<EnvironmentSetting>{
            {"NCCL_DEBUG", {}, {}}, {"NCCL_X", {}, {}}, {"B", "1", {}}, {"A", {}, {}}});
  CHECK(warnings == Words{"-x '*RANK' passes nothing on: no variable of such a name is set here",
                          "-x 'OMPI_*' passes nothing on: no variable of such a name is set here"});
}

TEST_CASE("environment: a wildcard undoes nothing that the command line or a directory sets") {
  const Words here = {"A1=here", "A2=here", "A3=here", "HOROVOD_LOG_LEVEL=warning", "PWD=/here"};
  const auto ranks_find = [&](const Words& words) {
    CommandLine line = parse_command_line(words, [&](const char* name) {
      return is_set_in(here, name) ? std::optional(value_in(here, name, "")) : std::nullopt;
    });
    find_environment(line, here);
    CHECK(line.warnings.empty());
    const Words names = chosen_names(here, line.spec.environment);
    CHECK(std::count(names.begin(), names.end(), "PWD") ==
          std::count(words.begin(), words.end(), "PWD"));
    Words all = with_settings(here, line.spec.environment);
    std::sort(all.begin(), all.end());
    return all;
  };
  const Words given = {"A1=given", "A2=here", "A3=here", "HOROVOD_LOG_LEVEL=debug", "PWD=/here"};
  const Words options = {"--log-level", "debug", "-x"};
  const auto with = [&](Words rest) {
    rest.insert(rest.begin(), options.begin(), options.end());
    rest.insert(rest.end(), {"-np", "1", "ls"});
    return rest;
  };
  CHECK(ranks_find(with({"A1=given", "-x", "*"})) == given);
  CHECK(ranks_find(with({"*", "-x", "A1=given"})) == given);
  CHECK(ranks_find(with({"A1=given", "-x", "H*", "-x", "P*", "-x", "A1*"})) == given);
  // A name that is spelt out goes on winning, and what is for some ranks is no other's.
  CHECK(ranks_find(with({"A1=given", "-x", "A1", "-x", "*", "-x", "PWD"}))[0] == "A1=here");
  CHECK(ranks_find(with({"A?", "-x@0", "A1=given"}))[0] == "A1=here");
}

TEST_CASE("environment: a variable of Horovod's that does nothing here is warned about once") {
  CHECK(
      warnings_of("ls", {{"HOROVOD_TIMELINE", "t.json"}, {"HOROVOD_CYCLE_TIME", "5"}}) ==
      Words{"HOROVOD_CYCLE_TIME (in the environment) has no effect: an operation starts when all "
            "ranks are ready, not at the next cycle",
            "HOROVOD_TIMELINE (in the environment) is not supported yet and is ignored; unset it"});
  CHECK(warnings_of("-x HOROVOD_THREAD_AFFINITY=0,1 ls") ==
        Words{"-x HOROVOD_THREAD_AFFINITY is not supported yet and is ignored; put taskset or "
              "numactl before the command instead"});
  CHECK(warnings_of("-x HOROVOD_AUTOTUNE=1 ls") ==
        Words{"-x HOROVOD_AUTOTUNE is not supported yet and is ignored; leave it out"});
  CHECK(warnings_of("-x HOROVOD_AUTOTUNE=0 ls", {{"HOROVOD_AUTOTUNE", "1"}}).empty());
  for (const char* off : {"false", "False", "FALSE", "no", "off"})
    CHECK(warnings_of("ls", {{"HOROVOD_AUTOTUNE", off}}).empty());
  CHECK(warnings_of("ls", {{"HOROVOD_TIMELINE", "off"}}).size() == 1);  // a file of that name
  CHECK(warnings_of("ls", {{"HOROVOD_ELASTIC_TIMEOUT", "600"}}).empty());
  CHECK(warnings_of("--mpi ls", {{"HOROVOD_CONTROLLER", "mpi"}}) ==
        Words{"--mpi has no effect: hvdrun starts and connects the ranks itself"});
  // What an option exports in Horovod, for each that does nothing here.
  for (const char* name :
       {"FUSION_THRESHOLD", "CYCLE_TIME", "CACHE_CAPACITY", "HIERARCHICAL_ALLREDUCE",
        "HIERARCHICAL_ALLGATHER", "TORUS_ALLREDUCE", "AUTOTUNE", "AUTOTUNE_LOG",
        "AUTOTUNE_WARMUP_SAMPLES", "AUTOTUNE_STEPS_PER_SAMPLE", "AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        "AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "TIMELINE", "TIMELINE_MARK_CYCLES",
        "MPI_THREADS_DISABLE", "NUM_NCCL_STREAMS", "THREAD_AFFINITY", "GLOO_TIMEOUT_SECONDS",
        "CONTROLLER"}) {
    const std::string variable = std::string("HOROVOD_") + name;
    CAPTURE(variable);
    for (const char* unset : {"", "0"}) CHECK(warnings_of("ls", {{variable, unset}}).empty());
    const Words warnings = warnings_of("ls", {{variable, "1"}});
    REQUIRE(warnings.size() == 1);
    CHECK(warnings[0].find(variable + " (in the environment) ") == 0);
  }
}

TEST_CASE("environment: a variable of Horovod's in a file is warned about as any other") {
  const TemporaryDirectory folder;
  const std::string path = folder.path().string() + "/job.env";
  std::ofstream(path) << "HOROVOD_AUTOTUNE=1\n";
  const auto warnings = [&](std::vector<EnvironmentSetting> given, const Words& here) {
    CommandLine line;
    line.environment_files = {path};
    line.spec.environment = std::move(given);
    find_environment(line, here);
    return line.warnings;
  };
  const std::string words =
      "HOROVOD_AUTOTUNE (in --env-file) is not supported yet and is ignored; ";
  CHECK(warnings({}, {}) == Words{words + "leave it out"});
  CHECK(warnings({}, {"HOROVOD_AUTOTUNE=0"}) == Words{words + "leave it out"});
  CHECK(warnings({{"HOROVOD_AUTOTUNE", "0", {}}}, {}).empty());
  CHECK(warnings({{"HOROVOD_AUTOTUNE", {}, {}}}, {"HOROVOD_AUTOTUNE=0"}).empty());
  std::ofstream(path) << "HOROVOD_AUTOTUNE=0\n";
  CHECK(warnings({}, {"HOROVOD_AUTOTUNE=1"}).empty());
  CHECK(
      warnings({{"HOROVOD_AUTOTUNE", {}, {}}}, {"HOROVOD_AUTOTUNE=1"}) ==
      Words{"HOROVOD_AUTOTUNE (in the environment) is not supported yet and is ignored; unset it"});
}

TEST_CASE("environment: -x wins over files, the later file over the earlier, some ranks over all") {
  const TemporaryDirectory folder;
  const std::string one = folder.path().string() + "/one.env",
                    two = folder.path().string() + "/two.env";
  std::ofstream(one) << "A=file\nB=file\nC=file\n";
  std::ofstream(two) << "B=later\n";
  CommandLine line;
  line.environment_files = {one, two};
  line.spec.environment = {{"A", "given", {}}, {"C", "third", {2}}};
  find_environment(line, {});
  const Words all = with_settings(Words{"A=here", "D=here"}, line.spec.environment);
  const auto of = [&](std::string_view name) { return value_in(all, name, "none"); };
  CHECK(of("A") + of("B") + of("C") + of("D") == "givenlaterfilehere");
  CHECK(line.spec.environment.back() == EnvironmentSetting{"C", "third", {2}});

  CommandLine passing_on;
  passing_on.environment_files = {one};
  passing_on.spec.environment = {{"A", {}, {}}, {"C?", {}, {}}, {"?", {}, {}}, {"C", {}, {}}};
  const Words here = {"A=here", "B=here"};
  find_environment(passing_on, here);
  CHECK(with_settings(here, passing_on.spec.environment) == Words{"C=file", "A=here", "B=here"});

  line.environment_files = {folder.path().string() + "/none"};
  CHECK_THROWS_WITH(find_environment(line, {}),
                    "the environment file \"" + folder.path().string() +
                        "/none\" cannot be read: No such file or directory; check the path behind "
                        "--env-file");
  std::ofstream(one) << std::string((1 << 20) + 1, '\n');
  line.environment_files = {one};
  CHECK_THROWS_WITH(find_environment(line, {}),
                    one +
                        " is longer than the 1 MiB of the longest environment file; name another "
                        "by --env-file");
}
