// Which variables the options about GPUs come to.
#include "cli/gpu_settings.h"

#include "cli/agent/worker_environment.h"
#include "cli/command_line.h"
#include "cli/host_choice.h"
#include "runtime/base/error.h"
#include "tests/support/catch.h"

namespace hvd {
namespace {

using Words = std::vector<std::string>;

struct Job {
  JobSpec spec;
  std::vector<Slot> slots;
};

// Of a command line; without a look at this machine.
Job job(Words words) {
  words.push_back("./train");
  CommandLine line =
      parse_command_line(words, [](const char*) { return std::optional<std::string>(); });
  if (line.host_list) {
    for (const GivenHost& host : parse_host_list(*line.host_list))
      line.spec.hosts.push_back({host.name, "", *host.slots, host.name != "localhost"});
  } else {
    line.spec.hosts = {{"localhost", "", line.spec.size}};
  }
  std::vector<Slot> slots = assign_slots(line.spec.hosts, line.spec.size);
  return {std::move(line.spec), std::move(slots)};
}

GpuSettings settings_of(const Words& words, const Words& environment = {}) {
  const Job one = job(words);
  return gpu_settings(one.spec, one.slots, environment, "/here");
}

// What a rank finds of the variables: "A=1 B=2", sorted.
// What every rank that is told to use GPUs finds besides.
const std::string kExpects = "HVD_EXPECT_GPU=1";

std::string found_by(int rank, const Words& words, const Words& environment = {}) {
  Job one = job(words);
  const GpuSettings all = gpu_settings(one.spec, one.slots, environment, "/here");
  auto& settings = one.spec.environment;
  settings.insert(settings.begin(), all.variables.begin(), all.variables.end());
  Words entries = with_settings(environment, settings), own;
  for (const EnvironmentSetting& setting : settings)
    if (std::ranges::binary_search(setting.ranks, rank))
      own.push_back(setting.name + "=" + *setting.value);
  entries = with_entries(entries, own);
  std::erase(entries, kExpects);
  std::ranges::sort(entries);
  std::string text;
  for (const std::string& entry : entries) text += (text.empty() ? "" : " ") + entry;
  return text;
}

std::string error_of(const Words& words) {
  try {
    settings_of(words);
    return "";
  } catch (const Error& error) {
    return error.code() == ErrorCode::kInvalidArgument ? error.what() : "wrong code";
  }
}

}  // namespace

TEST_CASE("gpu settings: without an option no variable is touched") {
  CHECK(settings_of({"-np", "8"}, {"CUDA_VISIBLE_DEVICES=0"}).variables.empty());
  CHECK(settings_of({"-np", "8"}).notes.empty());
}

TEST_CASE("gpu settings: all ranks find the list of GPUs, in its order and counted by bus") {
  const std::string both = "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=3,1";
  for (int rank : {0, 1}) {
    CHECK(found_by(rank, {"-np", "2", "--devices", "3,1"}) == both);
    CHECK(found_by(rank, {"-np", "2", "--devices", "3,1"}, {"CUDA_VISIBLE_DEVICES=1,3"}) == both);
  }
  CHECK(found_by(0, {"-np", "2", "--devices", "3,1"}, {"CUDA_DEVICE_ORDER=FASTEST_FIRST"}) == both);
  CHECK(found_by(3, {"-np", "4", "-H", "localhost:2,b:2", "--devices", "0,1"}) ==
        "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,1");
  CHECK(found_by(0, {"-np", "1", "--devices", "GPU-1,GPU-2"}) ==
        "CUDA_VISIBLE_DEVICES=GPU-1,GPU-2");
}

TEST_CASE("gpu settings: an order by -x wins over what indices of --devices need, with a note") {
  const auto words = [](const char* order) {
    return Words{"-np", "2", "-x", std::string("CUDA_DEVICE_ORDER=") + order, "--devices", "3,1"};
  };
  const GpuSettings settings = settings_of(words("FASTEST_FIRST"));
  REQUIRE(settings.notes.size() == 1);
  CHECK_THAT(settings.notes[0], Catch::StartsWith("CUDA_DEVICE_ORDER is set to something else than "
                                                  "--devices needs (PCI_BUS_ID) and wins"));
  CHECK(settings_of(words("PCI_BUS_ID")).notes.empty());
}

TEST_CASE("gpu settings: of MIG devices each rank finds its own") {
  const Words words = {"-np", "2", "--devices", "MIG-a,MIG-b"};
  CHECK(found_by(0, words) == "CUDA_VISIBLE_DEVICES=MIG-a");
  CHECK(found_by(1, words, {"CUDA_VISIBLE_DEVICES=0"}) == "CUDA_VISIBLE_DEVICES=MIG-b");
  const GpuSettings shared = settings_of({"-np", "3", "--devices", "MIG-a,MIG-b", "--share-gpu"});
  CHECK(shared.variables[0] == EnvironmentSetting{"CUDA_VISIBLE_DEVICES", "MIG-a", {0, 2}, true});
}

TEST_CASE("gpu settings: once it is known what GPUs there are, ranks find whole names") {
  const std::vector<ListedGpu> gpus = {{0, "GPU-11aa", {"MIG-aa", "MIG-ab"}}, {1, "GPU-22bb", {}}};
  const auto found = [&](const char* devices, int rank) {
    Job one = job({"-np", "2", "--devices", devices, "--share-gpu", "-x", "OTHER=MIG-aa"});
    const GpuSettings all = gpu_settings(one.spec, one.slots, {}, "/here");
    one.spec.environment = all.variables;
    take_whole_names(one.spec, gpus);
    for (const EnvironmentSetting& setting : one.spec.environment)
      if (setting.name == "CUDA_VISIBLE_DEVICES" &&
          (setting.ranks.empty() || std::ranges::binary_search(setting.ranks, rank)))
        return *setting.value + " of " + gpu_list_text(one.spec.gpus.devices);
    return std::string();
  };
  CHECK(found("GPU-2,GPU-11", 0) == "GPU-22bb,GPU-11aa of GPU-22bb,GPU-11aa");
  CHECK(found("MIG-ab,MIG-aa", 0) == "MIG-ab of MIG-ab,MIG-aa");
  CHECK(found("MIG-a", 1) == "MIG-a of MIG-a");  // two are meant
  CHECK(found("1,0", 1) == "1,0 of 1,0");
  JobSpec own;  // without --devices the user's word stands
  own.environment = {{"CUDA_VISIBLE_DEVICES", "GPU-2"}};
  take_whole_names(own, gpus);
  CHECK(own.environment[0].value == "GPU-2");
}

TEST_CASE(
    "gpu settings: more ranks than named GPUs are refused with what to do, but not to share") {
  CHECK(error_of({"-np", "3", "--devices", "0,1"}) ==
        "3 ranks on \"localhost\", but --devices names 2 GPUs; start 2 there, name more GPUs, or "
        "let ranks share by --share-gpu");
  CHECK_THAT(error_of({"-np", "3", "-H", "localhost:1,b:2", "--devices", "0"}),
             Catch::StartsWith("2 ranks on \"b\", but --devices names 1 GPU; start 1 there"));
  CHECK(error_of({"-np", "3", "--devices", "0,1", "--share-gpu"}).empty());
  CHECK(error_of({"-np", "300"}).empty());
}

TEST_CASE("gpu settings: lists that contradict the job are refused") {
  CHECK_THAT(error_of({"-np", "2", "-H", "a:1,b:1", "--devices", "GPU-1"}),
             Catch::StartsWith("--devices names GPUs of one host, but there are ranks on 2; "));
  CHECK(error_of({"-np", "1", "-H", "a:1,b:1", "--devices", "GPU-1"}).empty());
  for (const char* given : {"CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES"})
    CHECK(error_of({"-np", "1", "--devices", "0", "-x", given}) ==
          "--devices and -x CUDA_VISIBLE_DEVICES both say which GPUs ranks use; leave one of them "
          "out");
}

TEST_CASE("gpu settings: of another host indices are known to be there, or not") {
  const auto refusal = [](const char* devices, int gpus) -> std::string {
    try {
      check_devices_of(job({"-np", "2", "--devices", devices}).spec, "h2", gpus);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  CHECK(refusal("1,0", 2).empty());
  CHECK(refusal("0,2", 2) ==
        "h2: --devices: word 2, \"2\", names none of the 2 GPUs here; hvdrun devices lists them");
  CHECK(refusal("0,2", 0).empty());  // nothing is known
  CHECK(refusal("GPU-11aa,GPU-22bb", 1).empty());
}

TEST_CASE("gpu settings: who is told to use GPUs expects one, and nobody else does") {
  const auto expects = [](const Words& words) {
    return std::ranges::any_of(settings_of(words).variables, [](const EnvironmentSetting& one) {
      return one.name + "=" + one.value.value_or("") == kExpects;
    });
  };
  CHECK(expects({"-np", "2", "--devices", "0,1"}));
  CHECK(expects({"-np", "2", "--share-gpu"}));
  CHECK_FALSE(expects({"-np", "2", "--deterministic"}));
}

TEST_CASE("gpu settings: ranks that share a GPU are hosts of their own to NCCL") {
  const Words words = {"-np", "2", "--share-gpu"};
  CHECK(found_by(1, words) ==
        "HVD_SHARE_GPU=1 NCCL_ALGO=Ring NCCL_HOSTID=hvd-1 NCCL_IB_DISABLE=1 NCCL_MAX_CTAS=1 "
        "NCCL_MNNVL_ENABLE=0 "
        "NCCL_NET=Socket NCCL_NVLS_ENABLE=0 NCCL_PROTO=Simple NCCL_RAS_ENABLE=0");
  CHECK(settings_of(words).notes ==
        Words{"--share-gpu is for trying a program out: NCCL moves everything through sockets, "
              "slowly"});
  const std::string apart = found_by(2, {"-np", "3", "-H", "localhost:2,b:1", "--share-gpu"});
  CHECK(apart.find("NCCL_HOSTID=hvd-2") != apart.npos);
}

TEST_CASE(
    "gpu settings: what the user sets wins, with a warning where it breaks what is asked for") {
  const Words shared = {"-np", "2", "--share-gpu"};
  const GpuSettings broken = settings_of(shared, {"NCCL_HOSTID=all", "NCCL_NET=IB"});
  REQUIRE(broken.notes.size() == 3);
  CHECK(broken.notes[0] ==
        "NCCL_HOSTID is set to something else than --share-gpu needs (another for each rank) and "
        "wins; leave it out if that does not work");
  CHECK(broken.notes[1] ==
        "NCCL_NET is set to something else than --share-gpu needs (Socket) and wins; leave it out "
        "if that does not work");
  const std::string kept = found_by(0, shared, {"NCCL_HOSTID=all", "NCCL_NET=IB"});
  CHECK(kept.find("NCCL_HOSTID=all ") != kept.npos);
  CHECK(kept.find("NCCL_NET=IB ") != kept.npos);
  CHECK(settings_of(shared, {"NCCL_NET=Socket", "NCCL_MAX_CTAS=2"}).notes.size() == 1);
  CHECK(found_by(0, {"-np", "2", "--share-gpu", "-x", "NCCL_MAX_CTAS=2"}).find("CTAS=2") !=
        std::string::npos);
  const std::string one = found_by(1, {"-np", "2", "--share-gpu", "-x@1", "NCCL_HOSTID=mine"}, {});
  CHECK(one.find("NCCL_HOSTID=mine") != one.npos);
}

TEST_CASE("gpu settings: one algorithm, protocol and number of channels give the same bits") {
  CHECK(found_by(0, {"-np", "1", "--deterministic"}) ==
        "CUBLAS_WORKSPACE_CONFIG=:4096:8 NCCL_ALGO=Ring NCCL_MAX_NCHANNELS=8 NCCL_MIN_NCHANNELS=8 "
        "NCCL_PROTO=Simple NCCL_WIN_ENABLE=0");
  const std::string both = found_by(0, {"-np", "1", "--deterministic", "--share-gpu"});
  CHECK(both.find("NCCL_MAX_NCHANNELS=1 ") != both.npos);
  const auto variables = settings_of({"-np", "1", "--deterministic", "--share-gpu"}).variables;
  CHECK(std::ranges::count(variables, "NCCL_ALGO", &EnvironmentSetting::name) == 1);
  CHECK(settings_of({"-np", "1", "--deterministic"}, {"CUBLAS_WORKSPACE_CONFIG=:16:8"})
            .notes.empty());
  CHECK(settings_of({"-np", "1", "--deterministic", "-x", "NCCL_ALGO=Tree"},
                    {"CUBLAS_WORKSPACE_CONFIG=:0:0"})
            .notes.size() == 2);
  CHECK(settings_of({"-np", "1", "--deterministic"}, {"NCCL_MAX_NCHANNELS=2"}).notes.size() == 1);
}

TEST_CASE("gpu settings: kernels are waited for") {
  CHECK(found_by(0, {"-np", "1", "--launch-blocking"}) == "CUDA_LAUNCH_BLOCKING=1");
  CHECK(settings_of({"-np", "1", "--launch-blocking"}, {"CUDA_LAUNCH_BLOCKING=0"}).notes.size() ==
        1);
}

TEST_CASE("gpu settings: NCCL tells in some ranks, on their standard error or in their folders") {
  const Words words = {"-np", "4", "--nccl-debug", "1,3"};
  CHECK(found_by(1, words) == "NCCL_DEBUG=INFO NCCL_DEBUG_FILE=/dev/stderr");
  CHECK(found_by(0, words).empty());
  CHECK(found_by(3, words, {"NCCL_DEBUG=WARN"}) == "NCCL_DEBUG=INFO NCCL_DEBUG_FILE=/dev/stderr");
  CHECK(found_by(0, words, {"NCCL_DEBUG=WARN"}) == "NCCL_DEBUG=WARN");
  CHECK(found_by(1, {"-np", "12", "--nccl-debug", "1", "--output-filename", "a%h/.."}) ==
        "NCCL_DEBUG=INFO NCCL_DEBUG_FILE=/here/rank.01/nccl");
  CHECK(found_by(1, {"-np", "2", "--nccl-debug", "1", "--output-filename", "/out/100%"}) ==
        "NCCL_DEBUG=INFO NCCL_DEBUG_FILE=/out/100%%/rank.1/nccl");
  CHECK(found_by(1, {"-np", "2", "-H", "localhost:1,b:1", "--nccl-debug", "0-1",
                     "--output-filename", "/out"}) ==
        "NCCL_DEBUG=INFO NCCL_DEBUG_FILE=/dev/stderr");
  CHECK(found_by(1, {"-np", "2", "--nccl-debug", "1", "-x", "NCCL_DEBUG_FILE=f"}) ==
        "NCCL_DEBUG=INFO NCCL_DEBUG_FILE=f");
  CHECK(found_by(1, {"-np", "2", "--nccl-debug", "1", "-x", "NCCL_DEBUG=TRACE"}) ==
        "NCCL_DEBUG=TRACE");
  CHECK(error_of({"-np", "3", "--nccl-debug", "1,3"}) ==
        "--nccl-debug names rank 3, but the last of 3 ranks is 2; leave it out or start more "
        "ranks");
}

}  // namespace hvd
