// What command lines mean, and how bad ones are refused.
#include "cli/command_line.h"

#include <map>
#include <sstream>

#include "cli/arguments.h"
#include "cli/options.h"
#include "runtime/base/error.h"
#include "tests/support/catch.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

using Words = std::vector<std::string>;
using Environment = std::map<std::string, std::string>;

CommandLine parse(const Words& words, const Environment& environment = {}) {
  return parse_command_line(words, [&](const char* name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    if (found == environment.end()) return std::nullopt;
    return found->second;
  });
}

// Words without blanks in them, for brevity.
CommandLine parse(const char* text, const Environment& environment = {}) {
  std::istringstream stream(text);
  Words words;
  for (std::string word; stream >> word;) words.push_back(word);
  return parse(words, environment);
}

// The whole table of Horovod 0.28.1, each with values that it accepts.
constexpr const char* kHorovodFlags[] = {"-v",
                                         "--version",
                                         "-np 2",
                                         "--num-proc 2",
                                         "-cb",
                                         "--check-build",
                                         "--disable-cache",
                                         "--start-timeout 30",
                                         "--network-interface eth0",
                                         "--network-interfaces eth0,eth1",
                                         "--output-filename d",
                                         "--verbose",
                                         "--config-file f",
                                         "-p 22",
                                         "--ssh-port 22",
                                         "-i f",
                                         "--ssh-identity-file f",
                                         "--fusion-threshold-mb 64",
                                         "--cycle-time-ms 1.5",
                                         "--cache-capacity 1024",
                                         "--hierarchical-allreduce",
                                         "--no-hierarchical-allreduce",
                                         "--hierarchical-allgather",
                                         "--no-hierarchical-allgather",
                                         "--torus-allreduce",
                                         "--no-torus-allreduce",
                                         "--autotune",
                                         "--no-autotune",
                                         "--autotune-log-file f",
                                         "--autotune-warmup-samples 3",
                                         "--autotune-steps-per-sample 10",
                                         "--autotune-bayes-opt-max-samples 20",
                                         "--autotune-gaussian-process-noise 0.8",
                                         "--min-num-proc 1",
                                         "--min-np 1",
                                         "--max-num-proc 4",
                                         "--max-np 4",
                                         "--slots-per-host 2",
                                         "--elastic-timeout 600",
                                         "--reset-limit 3",
                                         "--blacklist-cooldown-range 1 2",
                                         "--host-discovery-script ./d.sh",
                                         "--timeline-filename f",
                                         "--timeline-mark-cycles",
                                         "--no-timeline-mark-cycles",
                                         "--no-stall-check",
                                         "--stall-check",
                                         "--stall-check-warning-time-seconds 60",
                                         "--stall-check-shutdown-time-seconds 0",
                                         "--mpi-threads-disable",
                                         "--no-mpi-threads-disable",
                                         "--mpi-args a",
                                         "--tcp",
                                         "--binding-args a",
                                         "--num-nccl-streams 1",
                                         "--thread-affinity 1",
                                         "--gloo-timeout-seconds 30",
                                         "--log-level TRACE",
                                         "--log-with-timestamp",
                                         "--log-without-timestamp",
                                         "--log-hide-timestamp",
                                         "--no-log-hide-timestamp",
                                         "--prefix-output-with-timestamp",
                                         "-prefix-timestamp",
                                         "-H a:1",
                                         "--hosts a:1",
                                         "-hostfile f",
                                         "--hostfile f",
                                         "--gloo",
                                         "--mpi",
                                         "--jsrun"};

// "A=1 B" of what ranks get.
std::string environment_of(const CommandLine& line) {
  std::string out;
  for (const EnvironmentSetting& setting : line.spec.environment) {
    out += (out.empty() ? "" : " ") + setting.name + (setting.value ? "=" + *setting.value : "");
  }
  return out;
}

// The text of the error, or "" when there is none.
template <typename Input>
std::string error_of(const Input& input, const Environment& environment = {}) {
  try {
    parse(input, environment);
    return "";
  } catch (const Error& error) {
    const bool usage =
        error.code() == ErrorCode::kInvalidArgument || error.code() == ErrorCode::kUnsupported;
    return usage ? error.what() : std::string("wrong code: ") + error.what();
  }
}

}  // namespace

TEST_CASE("command line: every option lands in its field") {
  const CommandLine line = parse(
      "-np 4 -H localhost:4 -p 2222 -i key --ssh-command myssh --ssh-arg=-v --ssh-arg -4 -x A=1 -x "
      "B= "
      "--wdir /tmp --stdin all --timeout 1.5 --start-timeout 10 "
      "--stop-grace 0 --collective-timeout 0.25 --agent-timeout 7 "
      "--stall-check-warning-time-seconds 9 --stall-check-shutdown-time-seconds 90 "
      "--output-filename logs --prefix-output-with-timestamp --no-tag-output "
      "--output-ranks 3,0-1,1 --color never --result-file r.json --verbose --log-level DEBUG "
      "./train --epochs 3");
  CHECK(line.request == Request::kRun);
  CHECK(line.warnings.empty());
  CHECK(line.host_list == "localhost:4");
  CHECK_FALSE(line.host_file.has_value());
  const JobSpec& spec = line.spec;
  CHECK(spec.size == 4);
  CHECK(spec.hosts.empty());
  CHECK(spec.command == Words{"./train", "--epochs", "3"});
  CHECK(environment_of(line) ==
        "HOROVOD_START_TIMEOUT=10 HVD_COLLECTIVE_TIMEOUT=0.25 HOROVOD_STALL_CHECK_TIME_SECONDS=9 "
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=90 HOROVOD_LOG_LEVEL=debug A=1 B=");
  CHECK(spec.ssh == SshOptions{"myssh", 2222, "key", {"-v", "-4"}});
  CHECK(spec.directory == "/tmp");
  CHECK(spec.stdin_mode == StdinMode::kAll);
  CHECK(spec.timeout == 1500ms);
  CHECK(spec.start_timeout == 10s);
  CHECK(spec.stop_grace == 0ms);
  CHECK(spec.collective_timeout == 250ms);
  CHECK(spec.agent_timeout == 7s);
  CHECK(spec.stall_warning == 9s);
  CHECK(spec.stall_shutdown == 90s);
  CHECK(spec.output_directory == "logs");
  CHECK(spec.timestamps);
  CHECK_FALSE(spec.tags);
  CHECK(spec.output_ranks == std::vector{0, 1, 3});
  CHECK(spec.color == ColorMode::kNever);
  CHECK(spec.result_file == "r.json");
  CHECK(spec.verbose);
  CHECK(spec.log_level == LogLevel::kDebug);
}

TEST_CASE("command line: ports and networks") {
  const JobSpec spec =
      parse(
          "--port-range 4000-4002 --network-interface eth0,10.0.0.0/8 --network-interfaces=ib0 ls")
          .spec;
  CHECK(spec.ports.low == 4000);
  CHECK(spec.ports.high == 4002);
  CHECK(spec.networks == Words{"eth0", "10.0.0.0/8", "ib0"});
  for (const char* bad :
       {"4000", "4000-", "-4000", "4000-4001", "4002-4000", "0-10", "65000-65536", "a-b", "1-2-9"})
    CHECK(error_of(Words{std::string("--port-range=") + bad, "ls"}) ==
          "--port-range takes a range of at least 3 ports such as 4000-4099, not \"" +
              std::string(bad) + "\"");
  CHECK(error_of("--network-interface 10.0.0.0/33 ls") ==
        "--network-interface takes the name of an interface, a network such as 10.0.0.0/8 or an "
        "address, not \"10.0.0.0/33\"");
}

TEST_CASE("command line: pretended hosts") {
  const CommandLine line = parse("--pretend-hosts 2x3 ./train");
  CHECK(line.pretended_hosts == std::vector<Host>{{"pretended1", "", 3}, {"pretended2", "", 3}});
  for (const char* bad : {"2", "2x", "x2", "0x1", "1x0", "2x3x4", "1025x1", "-1x2", "2 x3"})
    CHECK(error_of(Words{"--pretend-hosts", bad, "./train"}) ==
          "--pretend-hosts takes hosts and slots such as 2x4, not \"" + std::string(bad) + "\"");
}

TEST_CASE("command line: a bare command has every default") {
  const JobSpec spec = parse("ls").spec;
  CHECK(spec.size == 0);
  CHECK(spec.command == Words{"ls"});
  CHECK(spec.timeout == 0ms);
  CHECK(spec.start_timeout == 30s);
  CHECK(spec.stop_grace == 5s);
  CHECK(spec.agent_timeout == 60s);
  CHECK(spec.stall_warning == 60s);
  CHECK(spec.stall_shutdown == 0s);
  CHECK(spec.stdin_mode == StdinMode::kRank0);
  CHECK(spec.color == ColorMode::kAuto);
  CHECK(spec.log_level == LogLevel::kWarning);
  CHECK(spec.tags);
}

TEST_CASE("command line: all spellings of an option are one option") {
  for (const char* text : {"-np 3 ls", "--num-proc 3 ls", "-np=3 ls", "--num-proc=3 ls"}) {
    CHECK(parse(text).spec.size == 3);
  }
  for (const char* text : {"-hostfile f ls", "--hostfile f ls", "-hostfile=f ls"}) {
    CHECK(parse(text).host_file == "f");
  }
  CHECK(parse("-H a:1,b:2 ls").host_list == "a:1,b:2");
  CHECK(parse("--hosts=[::1] ls").host_list == "[::1]");
  CHECK(parse("-H [a] ls").host_list == "[a]");
  CHECK(parse("-prefix-timestamp ls").spec.timestamps);
}

TEST_CASE("command line: the command begins at the first word that is no option, or behind --") {
  CHECK(parse("-np 2 prog -np 3 --help").spec.command == Words{"prog", "-np", "3", "--help"});
  CHECK(parse("-np 2 prog -np 3 --help").spec.size == 2);
  CHECK(parse("-np 2 -- --odd-name -x").spec.command == Words{"--odd-name", "-x"});
  CHECK(parse("-np 2 prog -- x").spec.command == Words{"prog", "--", "x"});
  CHECK(parse({"-np", "2", "-", "x"}).spec.command == Words{"-", "x"});
  CHECK(parse({"ls", "", "a b", "%%", "[x]"}).spec.command == Words{"ls", "", "a b", "%%", "[x]"});
}

TEST_CASE("command line: values reach their fields unchanged, whatever they hold") {
  for (const char* value : {"a b", "a,b", "[a,b]", "[]", "{}", "=", "a=b=c", "'x'", "\"x\"", "%%",
                            "--no-such", "-z", "-1", "\xc3\xa9", "a\nb"}) {
    CHECK(parse(Words{"--wdir", value, "ls"}).spec.directory == value);
    CHECK(parse(Words{std::string("--wdir=") + value, "ls"}).spec.directory == value);
    const CommandLine line = parse(Words{"-x", std::string("V=") + value, "-x", "W=1", "ls"});
    REQUIRE(line.spec.environment.size() == 2);
    CHECK(line.spec.environment[0].value == value);
    CHECK(line.spec.environment[1].name == "W");
  }
}

TEST_CASE("command line: of an option given twice the last one counts, but -x and -H add up") {
  CHECK(parse("-np 2 --num-proc 5 ls").spec.size == 5);
  CHECK(parse("--timeout 2 --timeout 3 --verbose --verbose ls").spec.timeout == 3s);
  CHECK(parse("-x A=1 -x A=2 ls").spec.environment.size() == 2);
  CHECK(parse("-H h1:1 -H h2:1,h3 ls").host_list == "h1:1,h2:1,h3");
  CHECK(error_of("--hostfile a --hostfile b ls") ==
        "--hostfile takes one file with all hosts, not \"a b\"");
}

TEST_CASE("command line: it beats the environment, which beats the defaults") {
  const Environment environment = {{"HOROVOD_START_TIMEOUT", "12"},
                                   {"HOROVOD_STALL_CHECK_TIME_SECONDS", "13"},
                                   {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "14"},
                                   {"HOROVOD_LOG_LEVEL", "info"}};
  const JobSpec from_environment = parse("ls", environment).spec;
  CHECK(from_environment.start_timeout == 12s);
  CHECK(from_environment.stall_warning == 13s);
  CHECK(from_environment.stall_shutdown == 14s);
  CHECK(from_environment.log_level == LogLevel::kInfo);
  const JobSpec from_line = parse("--start-timeout 1 --log-level ERROR ls", environment).spec;
  CHECK(from_line.start_timeout == 1s);
  CHECK(from_line.log_level == LogLevel::kError);
  CHECK(from_line.stall_warning == 13s);
}

TEST_CASE("command line: the stall check is on unless somebody switches it off") {
  CHECK_FALSE(parse("--no-stall-check ls").spec.stall_warning.has_value());
  CHECK_FALSE(parse("ls", {{"HOROVOD_STALL_CHECK_DISABLE", "1"}}).spec.stall_warning.has_value());
  CHECK(parse("ls", {{"HOROVOD_STALL_CHECK_DISABLE", "0"}}).spec.stall_warning == 60s);
  CHECK(parse("ls", {{"HOROVOD_STALL_CHECK_DISABLE", "False"}}).spec.stall_warning == 60s);
  CHECK_THROWS_WITH(parse("ls", {{"HOROVOD_STALL_CHECK_DISABLE", "maybe"}}),
                    Catch::Contains("(in the environment) takes 1 or 0, not \"maybe\""));
  CHECK(parse("ls", {{"HOROVOD_STALL_CHECK_DISABLE", ""}}).spec.stall_warning == 60s);
  CHECK(parse("--stall-check ls", {{"HOROVOD_STALL_CHECK_DISABLE", "1"}}).spec.stall_warning ==
        60s);
}

TEST_CASE("command line: ranks are told what it sets, and keep what it does not") {
  CHECK(environment_of(parse("ls", {{"HOROVOD_LOG_LEVEL", "info"}})).empty());
  CHECK(environment_of(parse("--log-level INFO ls")) == "HOROVOD_LOG_LEVEL=info");
  CHECK(environment_of(parse("--no-stall-check ls")) == "HOROVOD_STALL_CHECK_DISABLE=1");
  CHECK(environment_of(parse("--stall-check ls")) == "HOROVOD_STALL_CHECK_DISABLE=0");
  CHECK(environment_of(parse("-x HOROVOD_LOG_LEVEL=error --log-level info ls")) ==
        "HOROVOD_LOG_LEVEL=info HOROVOD_LOG_LEVEL=error");
}

TEST_CASE("command line: a bad default in the environment is named, and only when it is used") {
  CHECK(error_of("ls", {{"HOROVOD_START_TIMEOUT", "soon"}}) ==
        "HOROVOD_START_TIMEOUT (in the environment) takes a number of seconds from 0.001 to "
        "1000000, not \"soon\"");
  CHECK(error_of("--start-timeout 3 ls", {{"HOROVOD_START_TIMEOUT", "soon"}}).empty());
}

TEST_CASE("command line: -x of what is not set here is said") {
  CHECK(parse("-x A ls", {{"A", ""}}).warnings.empty());
  CHECK(parse("-x A ls").warnings ==
        Words{"-x A passes nothing on: it is not set here; -x A=VALUE sets it"});
}

TEST_CASE("command line: -x@ sets variables for some ranks") {
  for (const Words& words :
       {Words{"-x@0,2-3", "A=b=c", "ls"}, Words{"-x@0,2-3=A=b=c", "ls"},
        Words{"--env@3,2,0", "A=b=c", "ls"}, Words{"-x@", "2-3,0", "A=b=c", "ls"}})
    CHECK(parse(words).spec.environment ==
          std::vector<EnvironmentSetting>{{"A", "b=c", {0, 2, 3}}});
  const CommandLine both = parse("-x@1 A=1 -x@1 B= -x A=0 ls");
  CHECK(both.spec.environment ==
        std::vector<EnvironmentSetting>{{"A", "0", {}}, {"A", "1", {1}}, {"B", "", {1}}});
  const std::pair<Words, const char*> wrong[] = {
      {{"-x@a", "A=1", "ls"},
       "-x@ takes a list of ranks such as 0,2-5 before NAME=VALUE, not \"a\""},
      {{"-x@", "Z=1", "bash", "-c", "true"},
       "-x@ takes a list of ranks such as 0,2-5 before NAME=VALUE, not \"Z\""},
      {{"-x@-1", "A=1", "ls"}, "-x@ takes a list of ranks such as 0,2-5, not \"-1\""},
      {{"-x@0", "A", "ls"}, "-x@ takes NAME=VALUE behind the ranks, not \"A\""},
      {{"-x@0"}, "-x@0 takes RANKS NAME=VALUE, but nothing follows it"},
      {{"-x@0", "RANK=1", "ls"},
       "-x@ RANK has no effect: hvdrun gives each rank its own RANK; leave it out"},
      {{"-i@0", "ls"}, "unknown option \"-i@0\"; did you mean -i @0?"},
  };
  for (const auto& [words, message] : wrong) CHECK(error_of(words) == message);
}

TEST_CASE("command line: wildcards name no variable of their own") {
  CHECK(parse("-x NCCL_* ls").warnings.empty());
  CHECK(error_of("-x NCCL_*=1 ls") ==
        "-x \"NCCL_*\": a name with * or ? stands for variables that are set here, and takes no "
        "value");
  CHECK(parse("--env-file a --env-file=b ls").environment_files == Words{"a", "b"});
}

TEST_CASE("command line: what says where a rank stands cannot be set by -x") {
  CHECK(error_of("-x RANK=5 ls") ==
        "-x RANK has no effect: hvdrun gives each rank its own RANK; leave it out");
  for (const char* text : {"-x HVD_AGENT=5 ls", "-x HVD_SIZE= ls", "-x HOROVOD_LOCAL_RANK=0 ls",
                           "-x A=1 --env WORLD_SIZE=2 ls"})
    CHECK(error_of(text).find("gives each rank its own") != std::string::npos);
  for (const char* text : {"-x MASTER_ADDR=5 ls", "-x MASTER_PORT=5 ls", "-x OMP_NUM_THREADS=5 ls",
                           "-x RANKS=5 ls", "-x HVD_RANK_X=5 ls"})
    CHECK(error_of(text).empty());
  for (const auto& here : {Environment{}, Environment{{"RANK", "5"}}})
    CHECK(parse("-x RANK ls", here).warnings ==
          Words{"-x RANK has no effect: hvdrun gives each rank its own RANK; leave it out"});
}

TEST_CASE("command line: requests for information need no command and no ranks") {
  CHECK(parse("-h").request == Request::kShow);
  CHECK(parse("--help").text.find("--stall-check-shutdown-time-seconds") != std::string::npos);
  CHECK(parse("-np abc --help").request == Request::kShow);
  CHECK(parse("-v").text.rfind("hvdrun ", 0) == 0);
  CHECK(parse("--version").text == parse("-v").text);
  CHECK(parse("-cb").text == parse("--check-build").text);
  CHECK(parse("--dry-run -np 2 ls").request == Request::kDryRun);
  CHECK(parse("ls --help").request == Request::kRun);
}

TEST_CASE("command line: what is wrong and what to do is said in one line") {
  const std::pair<Words, const char*> table[] = {
      {{"-np", "0", "ls"}, "-np takes a whole number from 1 to 1000000, not \"0\""},
      {{"-np", "-1", "ls"}, "-np takes a whole number from 1 to 1000000, not \"-1\""},
      {{"-np", "abc", "ls"}, "-np takes a whole number from 1 to 1000000, not \"abc\""},
      {{"-np", "2x", "ls"}, "-np takes a whole number from 1 to 1000000, not \"2x\""},
      {{"-np", "99999999999999999999", "ls"},
       "-np takes a whole number from 1 to 1000000, not \"99999999999999999999\""},
      {{"-np"}, "-np takes N, but nothing follows it"},
      {{"-np", "--verbose", "ls"}, "-np takes N, but the option --verbose follows it"},
      {{"-np", "--", "ls"}, "-np takes N, but the option -- follows it"},
      {{"-np=", "ls"}, "-np takes N, not an empty word"},
      {{"--wdir", "", "ls"}, "--wdir takes DIR, not an empty word"},
      {{"--verbose=yes", "ls"}, "--verbose takes no value, but \"--verbose=yes\" was given"},
      {{}, "no command was given; put it behind the options, as in hvdrun -np 2 ./train"},
      {{"-np", "2"}, "no command was given; put it behind the options, as in hvdrun -np 2 ./train"},
      {{"-np", "2", "--"},
       "no command was given; put it behind the options, as in hvdrun -np 2 ./train"},
      {{"-np", "2", ""},
       "the command is an empty word; put one behind the options, as in hvdrun -np 2 ./train"},
      {{"--timeout", "-3", "ls"},
       "--timeout takes a number of seconds, 0 or from 0.001 to 100000000, not \"-3\""},
      {{"--timeout", "nan", "ls"},
       "--timeout takes a number of seconds, 0 or from 0.001 to 100000000, not \"nan\""},
      {{"--timeout", "inf", "ls"},
       "--timeout takes a number of seconds, 0 or from 0.001 to 100000000, not \"inf\""},
      {{"--timeout", "1e9", "ls"},
       "--timeout takes a number of seconds, 0 or from 0.001 to 100000000, not \"1e9\""},
      {{"--timeout", "0.0001", "ls"},
       "--timeout takes a number of seconds, 0 or from 0.001 to 100000000, not \"0.0001\""},
      {{"--stop-grace", "1000001", "ls"},
       "--stop-grace takes a number of seconds, 0 or from 0.001 to 1000000, not \"1000001\""},
      {{"--agent-timeout", "0", "ls"},
       "--agent-timeout takes a number of seconds from 0.001 to 1000000, not \"0\""},
      {{"--stall-check-warning-time-seconds", "0", "ls"},
       "--stall-check-warning-time-seconds takes a whole number from 1 to 31536000, not \"0\""},
      {{"--color", "blue", "ls"}, "--color takes auto, always or never, not \"blue\""},
      {{"--stdin", "1", "ls"}, "--stdin takes 0, none or all, not \"1\""},
      {{"--log-level", "loud", "ls"},
       "--log-level takes trace, debug, info, warning, error or fatal, not \"loud\""},
      {{"--output-ranks", "1-", "ls"},
       "--output-ranks takes a list of ranks such as 0,2-5, not \"1-\""},
      {{"--output-ranks", "3-1", "ls"},
       "--output-ranks takes a list of ranks such as 0,2-5, not \"3-1\""},
      {{"--output-ranks", "0,,1", "ls"},
       "--output-ranks takes a list of ranks such as 0,2-5, not \"0,,1\""},
      {{"-x", "=1", "ls"}, "-x takes NAME or NAME=VALUE, and \"\" is no name"},
      {{"-x", "A\tB=1", "ls"}, "-x takes NAME or NAME=VALUE, and \"A\\x09B\" is no name"},
      {{"-H", "a", "--hostfile", "f", "ls"},
       "-H and --hostfile exclude each other; give one of them"},
      {{"--stall-check", "--no-stall-check", "ls"},
       "--stall-check and --no-stall-check exclude each other; give one of them"},
  };
  for (const auto& [words, message] : table) CHECK(error_of(words) == message);
}

TEST_CASE("command line: an unknown option gets the nearest match") {
  const std::pair<const char*, const char*> table[] = {
      {"--nump-proc 2 ls", "unknown option \"--nump-proc\"; did you mean --num-proc?"},
      {"--num_proc 2 ls", "unknown option \"--num_proc\"; did you mean --num-proc?"},
      {"--num 2 ls", "unknown option \"--num\"; did you mean --num-proc?"},
      {"-pn 2 ls", "unknown option \"-pn\"; did you mean -np?"},
      {"-NP 2 ls", "unknown option \"-NP\"; did you mean -np?"},
      {"-q ls", "unknown option \"-q\"; hvdrun --help lists all options"},
      {"-X A=1 ls", "unknown option \"-X\"; did you mean -x?"},
      {"-n 2 ls", "unknown option \"-n\"; did you mean -np?"},
      {"--np 2 ls", "unknown option \"--np\"; did you mean -np?"},
      {"--host a ls", "unknown option \"--host\"; did you mean --hosts?"},
      {"--hostfil=a ls", "unknown option \"--hostfil\"; did you mean --hostfile?"},
      {"-Hlocalhost:2 ls", "unknown option \"-Hlocalhost:2\"; did you mean -H localhost:2?"},
      {"-np2 ls", "unknown option \"-np2\"; did you mean -np 2?"},
      {"-xA=1 ls", "unknown option \"-xA\"; did you mean -x A=VALUE?"},
      {"--frobnicate ls", "unknown option \"--frobnicate\"; hvdrun --help lists all options"},
  };
  for (const auto& [text, message] : table) CHECK(error_of(text) == message);
  const std::string huge = "--" + std::string(65'536, 'x');
  CHECK(error_of(Words{huge, "ls"}).size() < 200);
}

TEST_CASE("command line: each option of Horovod has an answer") {
  int refused = 0, warned = 0, taken = 0;
  for (const char* flag : kHorovodFlags) {
    const std::string name = std::string(flag).substr(0, std::string(flag).find(' '));
    const Option* option = find_option(name);
    REQUIRE(option != nullptr);
    const std::string error = error_of((std::string(flag) + " ls").c_str());
    if (option->fate == OptionFate::kRefused) {
      ++refused;
      CHECK(error.find(name + " is not supported yet; ") == 0);  // as it was given
      continue;
    }
    INFO(error);
    CHECK(error.empty());
    const size_t warnings = parse((std::string(flag) + " ls").c_str()).warnings.size();
    CHECK(warnings == (option->fate == OptionFate::kIgnored ? 1 : 0));
    option->fate == OptionFate::kIgnored ? ++warned : ++taken;
  }
  CHECK(refused == 23);
  CHECK(warned == 18);
  CHECK(taken == 30);
}

TEST_CASE("command line: an option without effect is warned about once, with what replaces it") {
  CHECK(parse("--cycle-time-ms 1 --gloo --cycle-time-ms 2 ls").warnings ==
        Words{"--cycle-time-ms has no effect: an operation starts when all ranks are ready, not "
              "at the next cycle",
              "--gloo has no effect: hvdrun starts and connects the ranks itself"});
  CHECK(environment_of(parse("--cycle-time-ms 5 --gloo ls")).empty());  // ranks are not told
  CHECK(parse("--no-log-hide-timestamp --log-with-timestamp ls").warnings ==
        Words{"--no-log-hide-timestamp has no effect: --prefix-output-with-timestamp puts the time "
              "before every line"});
}

TEST_CASE("command line: values of variables are overwritten where they stand, and nothing else") {
  const Words words = {"-np",  "2",    "-x",        "A=one=1", "-x=B=two",  "-x",
                       "HOME", "-x@0", "C=three",   "-x@1=D=", "--env@",    "2",
                       "E=5",  "--",   "-x=A=free", "-x",      "A=one=free"};
  Words shown = words;
  std::vector<char*> argv;
  for (std::string& word : shown) argv.push_back(word.data());
  hide_values(words, argv);
  Words hidden = words;
  hidden[3] = "A=*****", hidden[4] = "-x=B=***", hidden[8] = "C=*****", hidden[12] = "E=*";
  CHECK(shown == hidden);
}
