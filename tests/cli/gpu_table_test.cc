// What `hvdrun devices` prints.
#include "cli/gpu_table.h"

#include "tests/support/catch.h"

namespace hvd {
namespace {

Gpu gpu(int index, const std::string& uuid) {
  Gpu one;
  one.listed = {index, uuid, {}};
  one.name = "NVIDIA H100";
  one.pci = "00000000:1" + std::to_string(index) + ":00.0";
  one.driver = "550.54.14";
  one.free_mib = 80000;
  one.total_mib = 81559;
  one.peers_known = true;
  return one;
}

// That read each other's memory.
std::vector<Gpu> some(int count) {
  std::vector<Gpu> gpus;
  for (int i = 0; i < count; ++i) gpus.push_back(gpu(i, "GPU-" + std::to_string(i)));
  for (Gpu& one : gpus)
    for (int i = 0; i < count; ++i)
      if (i != one.listed.index) one.peers.push_back(i);
  return gpus;
}

std::vector<SeenGpu> seen(std::string_view list, std::span<const Gpu> gpus) {
  return seen_gpus(parse_gpu_list("", list), gpus);
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("gpu table: ranks in the order of their GPUs, then the GPUs that are left") {
  std::vector<Gpu> gpus = some(3);
  gpus[1].numa_node = 1;
  gpus[1].free_mib.reset();
  GpuPlan plan;
  plan.ranks = {0, 1};
  plan.seen = seen("2,1", gpus);
  plan.source = "CUDA_VISIBLE_DEVICES";
  CHECK(gpu_table(gpus, plan) ==
        "rank  GPU  name         PCI               NUMA  free MiB  of MiB  UUID\n"
        "0     2    NVIDIA H100  00000000:12:00.0  -     80000     81559   GPU-2\n"
        "1     1    NVIDIA H100  00000000:11:00.0  1     -         81559   GPU-1\n"
        "-     0    NVIDIA H100  00000000:10:00.0  -     80000     81559   GPU-0\n"
        "left out: GPU 0, by CUDA_VISIBLE_DEVICES\n"
        "peer access: each GPU reads the memory of every other\n"
        "driver: 550.54.14\n");
}

TEST_CASE("gpu table: fewer ranks than GPUs leave some free, and more find none") {
  const std::vector<Gpu> gpus = some(2);
  GpuPlan plan;
  plan.seen = seen_gpus(std::nullopt, gpus);
  plan.ranks = {4};
  CHECK(has(gpu_table(gpus, plan), "\n-     1    NVIDIA H100"));
  CHECK_FALSE(has(gpu_table(gpus, plan), "left out"));
  plan.ranks = {4, 5, 6, 7};
  CHECK(has(gpu_table(gpus, plan),
            "no GPU left: ranks 6,7; start fewer ranks here, or let them share by --share-gpu\n"));
  plan.shared = true;
  CHECK(has(gpu_table(gpus, plan), "\n6     0  "));
  CHECK_FALSE(has(gpu_table(gpus, plan), "no GPU left"));
  plan.seen.clear();
  CHECK(has(gpu_table(gpus, plan), "no GPU left: ranks 4,5,6,7;"));
}

TEST_CASE("gpu table: who uses GPUs, and which reach which") {
  std::vector<Gpu> gpus = some(3);
  gpus[0].uses = {{4321, "python3", 10240}, {7, "x", std::nullopt}};
  gpus[0].peers = {1};
  gpus[2].peers = {};
  GpuPlan plan;
  plan.seen = seen_gpus(std::nullopt, gpus);
  plan.ranks = {0};
  const std::string text = gpu_table(gpus, plan);
  CHECK(has(text, "in use: GPU 0 by process 4321, python3, 10240 MiB\n"));
  CHECK(has(text, "in use: GPU 0 by process 7, x\n"));
  CHECK(has(text, "peer access: GPU 0 reads the memory of GPU 1\n"));
  CHECK(has(text, "peer access: GPU 1 reads the memory of GPUs 0,2\n"));
  CHECK(has(text, "peer access: GPU 2 reads the memory of no other\n"));
  gpus[1].peers_known = false;
  CHECK(has(gpu_table(gpus, plan), "peer access: not known\n"));
  CHECK_FALSE(has(gpu_table(some(1), {}), "peer access"));
}

TEST_CASE("gpu table: parts of divided GPUs are ranks' own") {
  std::vector<Gpu> gpus = some(2);
  gpus[0].divided = gpus[1].divided = true;
  gpus[0].listed.parts = {"MIG-a", "MIG-b"};
  GpuPlan plan;
  plan.ranks = {0, 1};
  plan.seen = seen("MIG-b,MIG-a", gpus);
  plan.source = "--devices";
  const std::string text = gpu_table(gpus, plan);
  CHECK(has(text, "-         -       MIG-b\n1     0  "));
  CHECK(has(text,
            "divided: GPU 0 (MIG) into MIG-a,MIG-b; a rank takes one by --devices, and NCCL one "
            "rank of each GPU, unless by --share-gpu\n"));
  CHECK(has(text, "divided: GPU 1 has MIG on but no MIG device; CUDA cannot use it\n"));
}

TEST_CASE("gpu table: each part has a row, and who uses it is said") {
  std::vector<Gpu> gpus = some(2);
  gpus[0].divided = gpus[1].divided = true;
  gpus[0].listed.parts = {"MIG-aa", "MIG-bb"};
  gpus[0].uses = {{7, "x", 5, "MIG-bb"}};
  GpuPlan plan;
  plan.ranks = {0};
  plan.seen = seen("MIG-b", gpus);
  plan.source = "--devices";
  const std::string text = gpu_table(gpus, plan);
  CHECK(has(text,
            "\n0     0    NVIDIA H100  00000000:10:00.0  -     -         -       MIG-bb\n"
            "-     0    NVIDIA H100  00000000:10:00.0  -     -         -       MIG-aa\n"
            "-     1    NVIDIA H100  00000000:11:00.0  -     80000     81559   GPU-1\n"));
  CHECK(has(text, "in use: GPU 0, MIG-bb, by process 7, x, 5 MiB\n"));
  CHECK_FALSE(has(text, "left out"));
  CHECK(seen_gpus(std::nullopt, gpus) == std::vector<SeenGpu>{{0, ""}});  // CUDA cannot use GPU 1
}

TEST_CASE("gpu table: where CUDA counts otherwise is said") {
  std::vector<Gpu> gpus = some(2);
  GpuPlan plan;
  CHECK_FALSE(has(gpu_table(gpus, plan), "order: "));
  gpus[1].name = "NVIDIA T4";
  CHECK(has(gpu_table(gpus, plan), "order: CUDA counts GPUs of several kinds fastest first"));
  plan.ordered_by_bus = true;
  CHECK_FALSE(has(gpu_table(gpus, plan), "order: "));
}

TEST_CASE("gpu table: a list is followed up to the first that is not there") {
  const std::vector<Gpu> gpus = some(3);
  CHECK(seen("2,0", gpus) == std::vector<SeenGpu>{{2, ""}, {0, ""}});
  CHECK(seen("1,7,0", gpus) == std::vector<SeenGpu>{{1, ""}});
  CHECK(seen("GPU-2", gpus) == std::vector<SeenGpu>{{2, ""}});
  CHECK(seen_gpus(std::vector<GpuName>{}, gpus).empty());
  CHECK(seen_gpus(std::nullopt, gpus).size() == 3);
}

}  // namespace hvd
