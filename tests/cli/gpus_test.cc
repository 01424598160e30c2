// nvidia-smi's answers, as its manual and published output show them: none of these is of a device
// that was at hand.
#include "cli/gpus.h"

#include "runtime/base/error.h"
#include "tests/support/catch.h"

namespace hvd {
namespace {

constexpr const char* kTwo =
    "0, GPU-5d5ba0d6, NVIDIA H100 80GB HBM3, 00000000:19:00.0, 80994, 81559, Disabled, 550.54.14\n"
    "1, GPU-9e3d8d2b, NVIDIA H100 80GB HBM3, 00000000:AB:00.0, 300, 81559, Enabled, 550.54.14\n";

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
  const auto old = read_gpus("3, GPU-1, Tesla K80, 0000:04:00.0, [N/A], [N/A], [N/A], 470.1\n");
  CHECK_FALSE(old[0].free_mib);
  CHECK_FALSE(old[0].divided);
}

TEST_CASE("gpus: a warning beside the rows is passed over") {
  CHECK(
      read_gpus(std::string(kTwo) + "WARNING: infoROM is corrupted at gpu 0000:19:00.0\n").size() ==
      2);
}

TEST_CASE("gpus: what nvidia-smi says in place of rows is said") {
  CHECK(trouble_with_gpus(kNoDriver) ==
        "nvidia-smi says \"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA "
        "driver. Make sure that the latest NVIDIA driver is installed and running.\"; load or "
        "install NVIDIA's driver, or give the container its GPUs");
  CHECK_THAT(trouble_with_gpus("No devices were found\n"),
             Catch::StartsWith("nvidia-smi says \"No devices were found\"; "));
  CHECK(says_no_gpu("No devices were found\n"));
  CHECK_FALSE(says_no_gpu(kNoDriver));
  CHECK_THAT(trouble_with_gpus(""), Catch::StartsWith("nvidia-smi says nothing; "));
  CHECK_THAT(trouble_with_gpus("\x01\xff\n"), Catch::StartsWith("nvidia-smi says \"\\x01\\xff\""));
}

TEST_CASE("gpus: an answer that is cut, or of other fields, is no answer") {
  const std::string two = kTwo;
  for (size_t length = 1; length < two.size(); ++length) {
    INFO(length);
    if (two[length - 1] != '\n')
      CHECK_THAT(trouble_with_gpus(two.substr(0, length)), Catch::Contains("ends in the middle"));
  }
  CHECK_THAT(trouble_with_gpus("0, GPU-1, a, b\n"), Catch::Contains("is not understood"));
  CHECK_THAT(trouble_with_gpus("0, 1, a, b, 1, 2, [N/A], 5\n"), Catch::Contains("not understood"));
  CHECK_THAT(trouble_with_gpus("0, GPU-1, a, b, 1, 2, [N/A], 5, 6\n"),
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
  CHECK_THAT(trouble_of([&] { read_uses("GPU-5d5ba0d6, 4321, x\n", gpus); }),
             Catch::Contains("is not understood"));
  CHECK_THAT(trouble_of([&] { read_uses("GPU-5d5ba0d6, x, x, 1\n", gpus); }),
             Catch::Contains("is not understood"));
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
  CHECK_THAT(trouble_of([&] { read_peers(" \tGPU0\tGPU1\n GPU0\tX\n", gpus); }),
             Catch::Contains("is not understood"));
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
  CHECK_THAT(trouble_of([] { read_list(kNoDriver); }), Catch::StartsWith("nvidia-smi says \"NVI"));
  CHECK_THAT(trouble_of([] { read_list("GPU 0: x (UUID: \n"); }), Catch::Contains("understood"));
  CHECK_THAT(trouble_of([] { read_list("  MIG 1g Device 0: (UUID: MIG-1)\n"); }),
             Catch::Contains("is not understood"));
}

TEST_CASE("gpus: the folder of a PCI device has four digits for its domain") {
  CHECK(pci_folder("00000000:AB:00.0") == "0000:ab:00.0");
  CHECK(pci_folder("00010000:01:00.0") == "00010000:01:00.0");
  CHECK(pci_folder("0000:19:00.0") == "0000:19:00.0");
  CHECK(pci_folder("").empty());
}

}  // namespace hvd
