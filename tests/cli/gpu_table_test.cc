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
  return named_gpus(parse_gpu_list("", list), gpus);
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
  plan.seen = seen_by_cuda(std::nullopt, gpus);
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
  plan.seen = seen_by_cuda(std::nullopt, gpus);
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
  CHECK(seen_by_cuda(std::nullopt, gpus) == std::vector<SeenGpu>{{0, "MIG-aa"}});
}

TEST_CASE("gpu table: where a GPU is divided CUDA shows a program one part, and no other GPU") {
  std::vector<Gpu> gpus = some(3);
  gpus[1].divided = true;
  gpus[1].listed.parts = {"MIG-a", "MIG-b"};
  const auto by_cuda = [&](std::string_view list) {
    return seen_by_cuda(names_visible_to_cuda(list), gpus);
  };
  const std::vector<SeenGpu> first = {{1, "MIG-a"}};
  CHECK(seen_by_cuda(std::nullopt, gpus) == first);
  CHECK(by_cuda("1") == first);
  CHECK(by_cuda("0,1") == first);
  CHECK(by_cuda("MIG-b,MIG-a") == std::vector<SeenGpu>{{1, "MIG-b"}});
  CHECK(by_cuda("2,0") == std::vector<SeenGpu>{{2, ""}, {0, ""}});
  CHECK(seen("MIG-b,MIG-a", gpus).size() == 2);  // --devices: each rank has its own
  gpus[1].listed.parts.clear();                  // MIG is on, and there is no part
  CHECK(seen_by_cuda(std::nullopt, gpus) == std::vector<SeenGpu>{{0, ""}, {2, ""}});
}

TEST_CASE("gpu table: a GPU that does not answer has a line, and the others all of theirs") {
  std::vector<Gpu> gpus = some(3);
  gpus[0] = Gpu();
  gpus[0].trouble = "GPU is lost";
  gpus[0].name = "[GPU is lost]";
  gpus[2].uses_unknown = true;
  for (Gpu& one : gpus) std::erase(one.peers, 0);
  GpuPlan plan;
  plan.seen = seen_by_cuda(std::nullopt, gpus);
  plan.ranks = {0, 1};
  CHECK(gpu_table(gpus, plan) ==
        "rank  GPU  name         PCI               NUMA  free MiB  of MiB  UUID\n"
        "0     1    NVIDIA H100  00000000:11:00.0  -     80000     81559   GPU-1\n"
        "1     2    NVIDIA H100  00000000:12:00.0  -     80000     81559   GPU-2\n"
        "trouble: GPU 0: nvidia-smi says GPU is lost\n"
        "peer access: each GPU reads the memory of every other\n"
        "in use: GPU 2, by whom is not known\n"
        "driver: 550.54.14\n");
  gpus.resize(1);
  CHECK(has(gpu_table(gpus, {}), "UUID\ntrouble: GPU 0: nvidia-smi says GPU is lost\n"));
}

TEST_CASE("gpu table: a compute mode that is not the usual one is shown") {
  std::vector<Gpu> gpus = some(2);
  gpus[0].mode = "Default";
  CHECK_FALSE(has(gpu_table(gpus, {}), "compute mode"));
  gpus[1].mode = "Exclusive_Process";
  CHECK(has(gpu_table(gpus, {}), "compute mode: GPU 1 is in Exclusive_Process\n"));
  gpus[1].mps = true;
  CHECK(has(gpu_table(gpus, {}), "GPU 1 is in Exclusive_Process, and has an MPS server\n"));
  gpus[1].divided = gpus[1].parts_unknown = true;
  CHECK(has(gpu_table(gpus, {}), "divided: GPU 1 (MIG), into what is not known\n"));
}

TEST_CASE("gpu table: where CUDA counts otherwise is said") {
  std::vector<Gpu> gpus = some(2);
  GpuPlan plan;
  CHECK_FALSE(has(gpu_table(gpus, plan), "order: "));
  gpus[1].name = "NVIDIA T4";
  CHECK(has(gpu_table(gpus, plan), "order: CUDA counts GPUs of several kinds fastest first"));
  plan.order_known = true;
  CHECK_FALSE(has(gpu_table(gpus, plan), "order: "));
}

TEST_CASE("gpu table: a list is followed up to the first that is not there") {
  const std::vector<Gpu> gpus = some(3);
  CHECK(seen("2,0", gpus) == std::vector<SeenGpu>{{2, ""}, {0, ""}});
  CHECK(seen("1,7,0", gpus) == std::vector<SeenGpu>{{1, ""}});
  CHECK(seen("GPU-2", gpus) == std::vector<SeenGpu>{{2, ""}});
  CHECK(seen_by_cuda(std::vector<GpuName>{}, gpus).empty());
  CHECK(seen_by_cuda(std::nullopt, gpus).size() == 3);
}

}  // namespace hvd
