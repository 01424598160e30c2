// Knobs from the environment, and what other launchers leave there.
#include "runtime/config.h"

#include <map>

#include "runtime/base/error.h"
#include "tests/support/catch.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

Config read(const std::map<std::string, std::string>& environment) {
  return Config::read([&](const char* name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    if (found == environment.end()) return std::nullopt;
    return found->second;
  });
}

constexpr const char* kAgent = "0123456789abcdef0123456789abcdef:3";

}  // namespace

TEST_CASE("config: an empty environment is a world of one with Horovod's defaults") {
  const Config config = read({});
  CHECK_FALSE(config.agent);
  CHECK(config.engine.collective_timeout == 0ms);
  CHECK(config.engine.stall_warning == 60s);
  CHECK(config.engine.stall_shutdown == 0ms);
  CHECK(config.engine.start_timeout == 30s);
}

TEST_CASE("config: every knob is read") {
  const Config config = read({{"HVD_AGENT", kAgent},
                              {"HVD_COLLECTIVE_TIMEOUT", "2.5"},
                              {"HOROVOD_STALL_CHECK_TIME_SECONDS", "7"},
                              {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "9"},
                              {"HOROVOD_START_TIMEOUT", "11"}});
  REQUIRE(config.agent);
  CHECK(config.agent->slot == 3);
  CHECK(config.engine.collective_timeout == 2'500ms);
  CHECK(config.engine.stall_warning == 7s);
  CHECK(config.engine.stall_shutdown == 9s);
  CHECK(config.engine.start_timeout == 11s);
  CHECK(read({{"HOROVOD_STALL_CHECK_DISABLE", "1"}}).engine.stall_warning == 0ms);
  CHECK(read({{"HOROVOD_STALL_CHECK_DISABLE", "0"}}).engine.stall_warning == 60s);
}

TEST_CASE("config: warnings go with the log level") {
  const auto silent = [](const char* level) {
    const auto warn = read({{"HOROVOD_LOG_LEVEL", level}}).engine.warn;
    return warn.target<decltype(&warn_on_standard_error)>() == nullptr;
  };
  for (const char* level : {"error", "ERROR", "fatal"}) CHECK(silent(level));
  for (const char* level : {"", "trace", "debug", "info", "warning", "nonsense"})
    CHECK_FALSE(silent(level));
}

TEST_CASE("config: what cannot be read is named with its value") {
  CHECK_THROWS_WITH(read({{"HVD_COLLECTIVE_TIMEOUT", "soon"}}),
                    Catch::Contains("HVD_COLLECTIVE_TIMEOUT=soon"));
  CHECK_THROWS_WITH(read({{"HVD_COLLECTIVE_TIMEOUT", "-1"}}), Catch::Contains("=-1"));
  CHECK_THROWS_WITH(read({{"HVD_COLLECTIVE_TIMEOUT", "nan"}}), Catch::Contains("=nan"));
  CHECK_THROWS_WITH(read({{"HOROVOD_STALL_CHECK_TIME_SECONDS", "1e99"}}), Catch::Contains("1e99"));
  CHECK_THROWS_WITH(read({{"HOROVOD_STALL_CHECK_DISABLE", "maybe"}}), Catch::Contains("maybe"));
  CHECK_THROWS_WITH(read({{"HVD_AGENT", "x"}}), Catch::Contains("HVD_AGENT=x"));
}

TEST_CASE("config: a rank of hvdrun's whose way to its agent got lost says so") {
  CHECK_THROWS_WITH(read({{"HVD_SIZE", "2"}, {"HVD_RANK", "0"}, {"HOROVOD_SIZE", "2"}}),
                    Catch::StartsWith("HVD_SIZE=2 says that hvdrun started this program") &&
                        Catch::Contains("HVD_AGENT"));
  CHECK_NOTHROW(read({{"HVD_SIZE", "1"}, {"HVD_RANK", "0"}}));
  CHECK_NOTHROW(read({{"HVD_SIZE", "2"}, {"HVD_RANK", "0"}, {"HVD_AGENT", kAgent}}));
}

TEST_CASE("config: several ranks of another launcher are refused, and the variable is named") {
  for (const char* name : {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE",
                           "SLURM_STEP_NUM_TASKS", "HOROVOD_SIZE"}) {
    CAPTURE(name);
    CHECK_THROWS_WITH(read({{name, "4"}}), Catch::StartsWith(std::string(name) + "=4") &&
                                               Catch::Contains("hvdrun -np 4"));
    CHECK_NOTHROW(read({{name, "1"}}));
    CHECK_NOTHROW(read({{name, ""}}));
    CHECK_NOTHROW(read({{name, "many"}}));
    CHECK_NOTHROW(read({{name, "4"}, {"HVD_AGENT", kAgent}}));
  }
}
