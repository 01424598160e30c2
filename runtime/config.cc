#include "runtime/config.h"

#include <cctype>
#include <charconv>
#include <chrono>
#include <cmath>

#include "runtime/base/env.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

// Where a launcher says how many ranks it started. Slurm's variable is that of a step: SLURM_NTASKS
// is also there in a batch script, which is one process.
struct ForeignLauncher {
  const char* variable;
  const char* launcher;
};
constexpr ForeignLauncher kForeignLaunchers[] = {
    {"HOROVOD_SIZE", "horovodrun"},   {"OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun"},
    {"PMI_SIZE", "an MPI launcher"},  {"MV2_COMM_WORLD_SIZE", "MVAPICH's mpirun"},
    {"SLURM_STEP_NUM_TASKS", "srun"}, {"WORLD_SIZE", "torchrun"},
};

template <class Number>
std::optional<Number> to_number(const std::string& text) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || text.empty()) return std::nullopt;
  return value;
}

milliseconds seconds(const Config::Lookup& lookup, const char* name, milliseconds otherwise) {
  const std::optional<std::string> text = lookup(name);
  if (!text || text->empty()) return otherwise;
  constexpr double kMost = 365.0 * 24 * 3600;
  const std::optional<double> value = to_number<double>(*text);
  if (!value || !(*value >= 0) || *value > kMost) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(name) + "=" + std::string(head_of(*text, 80)) +
                    " in the environment is not a number of seconds between 0 and a year");
  }
  return milliseconds(static_cast<int64_t>(std::ceil(*value * 1000)));
}

bool is_set(const Config::Lookup& lookup, const char* name) {
  const std::string text = lookup(name).value_or("");
  if (text.empty() || text == "0" || text == "false" || text == "False") return false;
  if (text == "1" || text == "true" || text == "True") return true;
  throw Error(ErrorCode::kInvalidArgument, std::string(name) + "=" +
                                               std::string(head_of(text, 80)) +
                                               " in the environment is not 1 or 0");
}

// The variable with its value where it says that there are several ranks. What is no number was not
// written by a launcher.
std::string several_ranks(const Config::Lookup& lookup, const char* variable) {
  const std::string text = lookup(variable).value_or("");
  return to_number<long long>(text).value_or(1) > 1 ? std::string(variable) + "=" + text : "";
}

// Without an agent: whoever started several ranks, they would train each for itself.
void refuse_several_ranks(const Config::Lookup& lookup) {
  if (const std::string ours = several_ranks(lookup, "HVD_SIZE"); !ours.empty()) {
    throw Error(
        ErrorCode::kUnavailable,
        ours +
            " says that hvdrun started this program, but HVD_AGENT, by which ranks find "
            "each other, is not set: something between the two clears the environment (env, "
            "sudo, a container); let it pass HVD_AGENT on");
  }
  for (const ForeignLauncher& foreign : kForeignLaunchers) {
    const std::string theirs = several_ranks(lookup, foreign.variable);
    if (theirs.empty()) continue;
    throw Error(ErrorCode::kUnavailable,
                theirs + " says that " + foreign.launcher +
                    " started this program with several ranks, but ranks meet only under hvdrun; "
                    "start it with hvdrun -np " +
                    theirs.substr(theirs.find('=') + 1) + ", or unset " + foreign.variable +
                    " for a world of one");
  }
}

}  // namespace

Config Config::read(const Lookup& lookup) {
  Config config;
  const std::string agent = lookup("HVD_AGENT").value_or("");
  if (!agent.empty())
    config.agent = AgentAddress::parse(agent);
  else
    refuse_several_ranks(lookup);
  EngineOptions& engine = config.engine;
  engine.collective_timeout = seconds(lookup, "HVD_COLLECTIVE_TIMEOUT", engine.collective_timeout);
  engine.stall_warning = seconds(lookup, "HOROVOD_STALL_CHECK_TIME_SECONDS", engine.stall_warning);
  engine.stall_shutdown =
      seconds(lookup, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", engine.stall_shutdown);
  if (is_set(lookup, "HOROVOD_STALL_CHECK_DISABLE"))
    engine.stall_warning = engine.stall_shutdown = milliseconds(0);
  engine.start_timeout = seconds(lookup, "HOROVOD_START_TIMEOUT", engine.start_timeout);
  config.share_gpu = is_set(lookup, "HVD_SHARE_GPU");
  config.expect_gpu = is_set(lookup, "HVD_EXPECT_GPU");
  config.visible_devices = lookup("CUDA_VISIBLE_DEVICES");
  config.devices.cuda_library = lookup("HVD_CUDA_LIBRARY").value_or("");
  config.devices.nccl_library = lookup("HVD_NCCL_LIBRARY").value_or("");
  std::string level = lookup("HOROVOD_LOG_LEVEL").value_or("");
  for (char& c : level) c = char(std::tolower(static_cast<unsigned char>(c)));
  if (level == "error" || level == "fatal") engine.warn = [](const std::string&) {};
  return config;
}

Config Config::from_environment() {
  return read([](const char* name) { return env::get(name); });
}

}  // namespace hvd
