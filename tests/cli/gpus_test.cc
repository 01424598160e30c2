// nvidia-smi's answers, as its manual and published output show them: none of these is of a device
// that was at hand.
#include "cli/gpus.h"

#include <unistd.h>

#include <filesystem>

#include "runtime/base/error.h"
#include "runtime/base/present_gpus.h"
#include "tests/support/catch.h"
#include "tests/support/folder.h"

namespace hvd {
namespace {

constexpr const char* kTwo =
    "0, GPU-5d5ba0d6, NVIDIA H100 80GB HBM3, 00000000:19:00.0, 80994, 81559, Disabled, Default, "
    "550.54.14\n"
    "1, GPU-9e3d8d2b, NVIDIA H100 80GB HBM3, 00000000:AB:00.0, 300, 81559, Enabled, "
    "Exclusive_Process, 550.54.14\n";

constexpr const char* kNoDriver =
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that "
    "the latest NVIDIA driver is installed and running.\n\n";

template <typename Read>
std::string trouble_of(Read read) {
  try {
    read();
    return "";
  } catch (const Error& error) {
    return error.code() == ErrorCode::kUnavailable ? error.what() : "wrong code";
  }
}

std::string trouble_with_gpus(std::string_view answer) {
  return trouble_of([&] { read_gpus(answer); });
}

}  // namespace

TEST_CASE("gpus: a row each, and what is no number is not known") {
  const std::vector<Gpu> gpus = read_gpus(kTwo);
  REQUIRE(gpus.size() == 2);
  CHECK(gpus[0].listed.index == 0);
  CHECK(gpus[0].listed.uuid == "GPU-5d5ba0d6");
  CHECK(gpus[0].name == "NVIDIA H100 80GB HBM3");
  CHECK(gpus[0].pci == "00000000:19:00.0");
  CHECK(gpus[0].driver == "550.54.14");
  CHECK(gpus[0].free_mib == 80994);
  CHECK(gpus[0].total_mib == 81559);
  CHECK_FALSE(gpus[0].divided);
  CHECK(gpus[1].divided);
  CHECK(gpus[0].mode == "Default");
  CHECK(gpus[1].mode == "Exclusive_Process");
  const auto old =
      read_gpus("3, GPU-1, Tesla K80, 0000:04:00.0, [N/A], [N/A], [N/A], [N/A], 470.1\n");
  CHECK_FALSE(old[0].free_mib);
  CHECK_FALSE(old[0].divided);
  CHECK(old[0].mode.empty());
}

TEST_CASE("gpus: one that does not answer is told of beside the others") {
  const std::string lost =
      "2, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is "
      "lost], [GPU is lost], [GPU is lost]\n";
  const std::vector<Gpu> gpus =
      read_gpus(lost + kTwo + "3, [Unknown Error], a, b, 1, 2, c, d, 5\n");
  REQUIRE(gpus.size() == 4);
  CHECK(gpus[0].listed.index == 2);
  CHECK(gpus[0].listed.uuid.empty());
  CHECK(gpus[0].trouble == "GPU is lost");
  CHECK(gpus[0].driver.empty());
  CHECK(gpus[1].trouble.empty());
  CHECK(gpus[1].listed.uuid == "GPU-5d5ba0d6");
  CHECK(gpus[3].trouble == "Unknown Error");
  CHECK(gpus[3].driver == "5");
  std::vector<Gpu> one = read_gpus(lost);
  read_uses(", 1, x, 5\n", one);  // of no GPU
  CHECK(one[0].uses.empty());
}

TEST_CASE("gpus: a warning beside the rows is passed over") {
  CHECK(
      read_gpus(std::string(kTwo) + "WARNING: infoROM is corrupted at gpu 0000:19:00.0\n").size() ==
      2);
}

TEST_CASE("gpus: what nvidia-smi says in place of rows is said") {
  CHECK(trouble_with_gpus(kNoDriver) ==
        "nvidia-smi says \"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA "
        "driver. Make sure that the latest NVIDIA driver is installed and running.\"; load "
        "NVIDIA's driver, or install it anew");
  CHECK_THAT(trouble_with_gpus("No devices were found\n"),
             Catch::StartsWith("nvidia-smi says \"No devices were found\"; "));
  CHECK(says_no_gpu("No devices were found\n"));
  CHECK_FALSE(says_no_gpu(kNoDriver));
  CHECK_THAT(trouble_with_gpus(""), Catch::StartsWith("nvidia-smi says nothing; "));
  CHECK_THAT(trouble_with_gpus("\x01\xff\n"), Catch::StartsWith("nvidia-smi says \"\\x01\\xff\""));
}

TEST_CASE("gpus: advice goes by nvidia-smi's own words") {
  CHECK_THAT(advice_on("Failed to initialize NVML: Driver/library version mismatch"),
             Catch::StartsWith("the driver was updated while its module is loaded: reboot, "));
  CHECK_THAT(advice_on("Failed to initialize NVML: Unknown Error"),
             Catch::Contains("container") && Catch::Contains("load NVIDIA's driver"));
  CHECK(advice_on(kNoDriver) == "load NVIDIA's driver, or install it anew");
  for (const char* closed :
       {"No devices were found",
        "Failed to initialize NVML: GPU access blocked by the operating system",
        "Failed to initialize NVML: Insufficient Permissions"})
    CHECK(advice_on(closed) == "give the container or the job its GPUs");
  CHECK(advice_on("") == "load or install NVIDIA's driver, or give the container its GPUs");
}

TEST_CASE("gpus: an answer that is cut, or of other fields, is no answer") {
  const std::string two = kTwo;
  for (size_t length = 1; length < two.size(); ++length) {
    INFO(length);
    if (two[length - 1] != '\n')
      CHECK_THAT(trouble_with_gpus(two.substr(0, length)), Catch::Contains("ends in the middle"));
  }
  CHECK_THAT(trouble_with_gpus("0, GPU-1, a, b\n"), Catch::Contains("is not understood"));
  CHECK_THAT(trouble_with_gpus("0, 1, a, b, 1, 2, [N/A], Default, 5\n"),
             Catch::Contains("not understood"));
  CHECK_THAT(trouble_with_gpus("0, GPU-1, a, b, 1, 2, [N/A], Default, 5, 6\n"),
             Catch::Contains("is not understood"));
}

TEST_CASE("gpus: processes are found by the GPU, whatever their names hold") {
  std::vector<Gpu> gpus = read_gpus(kTwo);
  gpus[1].listed.parts = {"MIG-7"};
  read_uses(
      "GPU-5d5ba0d6, 4321, /usr/bin/python3, 10240\n"
      "MIG-7, 7, a, b\x1b]0;x, [N/A]\n"
      "MIG-7, 9, ,  , 1\n"
      "GPU-other, 8, elsewhere, 1\n",
      gpus);
  REQUIRE(gpus[0].uses.size() == 1);
  CHECK(gpus[0].uses[0].pid == 4321);
  CHECK(gpus[0].uses[0].name == "/usr/bin/python3");
  CHECK(gpus[0].uses[0].mib == 10240);
  REQUIRE(gpus[1].uses.size() == 2);
  CHECK(gpus[1].uses[0].name == "a, b?]0;x");
  CHECK_FALSE(gpus[1].uses[0].mib);
  CHECK(gpus[0].uses[0].part.empty());
  CHECK(gpus[1].uses[0].part == "MIG-7");
  read_uses("", gpus);
  CHECK_FALSE((gpus[0].uses_unknown || gpus[1].uses_unknown));
}

TEST_CASE("gpus: processes that are not understood are not known, and the others are") {
  for (const char* odd :
       {"GPU-5d5ba0d6, 4321, x\n", "GPU-5d5ba0d6, x, x, 1\n",
        "GPU-5d5ba0d6, [Insufficient Permissions], [Insufficient Permissions], 1\n"}) {
    std::vector<Gpu> gpus = read_gpus(kTwo);
    read_uses(std::string(odd) + "GPU-9e3d8d2b, 7, [Insufficient Permissions], 1\n", gpus);
    CHECK(gpus[0].uses_unknown);
    CHECK(gpus[0].uses.empty());
    CHECK_FALSE(gpus[1].uses_unknown);
    CHECK(gpus[1].uses.size() == 1);
  }
  std::vector<Gpu> gpus = read_gpus(kTwo);
  read_uses("GPU-5d5ba0d6, 43", gpus);
  CHECK((gpus[0].uses_unknown && gpus[1].uses_unknown));
}

TEST_CASE("gpus: an MPS server is no user of its GPU") {
  std::vector<Gpu> gpus = read_gpus(kTwo);
  read_uses(
      "GPU-5d5ba0d6, 5, nvidia-cuda-mps-server, 30\n"
      "GPU-5d5ba0d6, 6, /opt/train, 400\n"
      "GPU-9e3d8d2b, 7, /usr/bin/nvidia-cuda-mps-server, 30\n",
      gpus);
  CHECK((gpus[0].mps && gpus[1].mps));
  REQUIRE(gpus[0].uses.size() == 1);
  CHECK(gpus[0].uses[0].pid == 6);
  CHECK(gpus[1].uses.empty());
}

TEST_CASE("gpus: who reads whose memory is in a matrix, with or without escapes") {
  const std::string legend = "\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n";
  for (const char* header : {" \tGPU0\tGPU1\t\n", "\x1b[4m\tGPU0\tGPU1\t\x1b[0m\n"}) {
    std::vector<Gpu> gpus = read_gpus(kTwo);
    read_peers(std::string(header) + " GPU0\tX\tOK\t\n GPU1\tCNS\tX\t\n" + legend, gpus);
    CHECK(gpus[0].peers == std::vector<int>{1});
    CHECK(gpus[1].peers.empty());
    CHECK((gpus[0].peers_known && gpus[1].peers_known));
  }
  std::vector<Gpu> gpus = read_gpus(kTwo);
  read_peers(kNoDriver, gpus);
  CHECK_FALSE(gpus[0].peers_known);
  read_peers(" \tGPU0\tGPU1\n GPU0\t[GPU is lost]\n GPU1\tOK\tX\n", gpus);
  CHECK_FALSE(gpus[0].peers_known);
  CHECK(gpus[1].peers_known);
  read_peers(" \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1", gpus);
  CHECK_FALSE((gpus[0].peers_known || gpus[1].peers_known));
}

TEST_CASE("gpus: the list has the parts of divided ones") {
  const std::vector<ListedGpu> gpus = read_list(
      "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d)\n"
      "  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4)\n"
      "  MIG 3g.20gb     Device  1: (UUID: MIG-GPU-5d/2/0)\n"
      "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-77)\n");
  REQUIRE(gpus.size() == 2);
  CHECK(gpus[0].uuid == "GPU-5d5ba0d6-d33d");
  CHECK(gpus[0].parts == std::vector<std::string>{"MIG-c6d4f1ef-42e4", "MIG-GPU-5d/2/0"});
  CHECK(gpus[1].index == 1);
  CHECK(gpus[1].parts.empty());
  const std::vector<ListedGpu> lost =
      read_list("GPU 0: [GPU is lost] (UUID: [GPU is lost])\nGPU 1: NVIDIA A100 (UUID: GPU-77)\n");
  REQUIRE(lost.size() == 2);
  CHECK(lost[0].uuid.empty());
  CHECK(lost[1].uuid == "GPU-77");
  CHECK_THAT(trouble_of([] { read_list(kNoDriver); }), Catch::StartsWith("nvidia-smi says \"NVI"));
  CHECK_THAT(trouble_of([] { read_list("GPU 0: x (UUID: \n"); }), Catch::Contains("understood"));
  CHECK_THAT(trouble_of([] { read_list("  MIG 1g Device 0: (UUID: MIG-1)\n"); }),
             Catch::Contains("is not understood"));
}

TEST_CASE("gpus: what a GPU is divided into is not known where the list is not understood") {
  std::vector<Gpu> gpus = read_gpus(kTwo);
  read_parts("GPU 1: x (UUID: GPU-9e3d8d2b)\n  MIG 1g Device 0: (UUID: MIG-7)\n", gpus);
  CHECK(gpus[1].listed.parts == std::vector<std::string>{"MIG-7"});
  CHECK_FALSE(gpus[1].parts_unknown);
  read_parts("", gpus);
  CHECK(gpus[1].parts_unknown);
}

TEST_CASE("gpus: the folder of a PCI device has four digits for its domain") {
  CHECK(pci_folder("00000000:AB:00.0") == "0000:ab:00.0");
  CHECK(pci_folder("00010000:01:00.0") == "10000:01:00.0");
  CHECK(pci_folder("00000001:01:00.0") == "0001:01:00.0");
  CHECK(pci_folder("12345678:01:00.0") == "12345678:01:00.0");
  CHECK(pci_folder("0000:19:00.0") == "0000:19:00.0");
  CHECK(pci_folder("").empty());
}

TEST_CASE("present gpus: a file that may not be opened is none, and other signs are asked about") {
  const Folder machine;
  const auto make = [&](const std::string& folder) {
    std::filesystem::create_directories(machine.in(folder));
  };
  const auto count = [&] { return present_gpus(machine.in("dev").c_str()); };
  make("dev");
  CHECK_FALSE(may_have_gpus(machine.path()));
  make("proc/driver/nvidia/gpus");
  CHECK_FALSE(may_have_gpus(machine.path()));
  make("proc/driver/nvidia/gpus/0000:19:00.0");
  CHECK(may_have_gpus(machine.path()));
  std::filesystem::remove_all(machine.in("proc"));
  machine.write("dev/dxg", "", 0666);
  CHECK(may_have_gpus(machine.path()));
  std::filesystem::remove(machine.in("dev/dxg"));
  // Whom root may open, too: a cgroup's rules would need a device.
  REQUIRE(symlink("nowhere", machine.in("dev/nvidia0").c_str()) == 0);
  CHECK(count() == 0);
  CHECK_FALSE(may_have_gpus(machine.path()));
  machine.write("dev/nvidia1", "", 0666);
  CHECK(count() == 1);
  CHECK(may_have_gpus(machine.path()));
}

TEST_CASE("present gpus: one with parts that may be opened makes them divided") {
  const Folder machine;
  const std::string driver = machine.in("proc/driver/nvidia/capabilities/");
  std::filesystem::create_directories(machine.in("dev"));
  machine.write("dev/nvidia1", "", 0666);
  for (const char* other : {"mig", "gpu0/mig/gi1/ci0", "gpu1/mig/gi2"})  // no part of GPU 1
    std::filesystem::create_directories(driver + other);
  CHECK_FALSE(gpus_are_divided(machine.path()));
  std::filesystem::create_directories(driver + "gpu1/mig/gi2/ci0");
  CHECK(gpus_are_divided(machine.path()));
}

}  // namespace hvd
