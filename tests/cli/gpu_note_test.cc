// What is said of GPUs that others use.
#include "cli/gpu_note.h"

#include "tests/support/catch.h"

namespace hvd {
namespace {

Gpu gpu(int index, long long free_mib, std::vector<GpuUse> uses = {}) {
  Gpu one;
  one.listed = {index, "GPU-" + std::to_string(index), {}};
  one.free_mib = free_mib;
  one.total_mib = 1000;
  one.uses = std::move(uses);
  return one;
}

const std::vector<SeenGpu> kFirst = {{0, ""}};

// Pids below 100 are others', below 200 ours.
GpuUser user(int pid) {
  return pid < 100 ? GpuUser::kOther : pid < 200 ? GpuUser::kOurs : GpuUser::kUnknown;
}

std::string note(const std::vector<Gpu>& gpus, const std::vector<SeenGpu>& seen = kFirst) {
  return gpu_note(gpus, seen, user);
}

std::vector<SeenGpu> of_ranks(std::string_view devices, size_t ranks,
                              const std::optional<std::string>& visible = std::nullopt) {
  GpuOptions options;
  if (!devices.empty()) options.devices = parse_gpu_list("", devices);
  return gpus_of_ranks(options, ranks, visible, std::vector<Gpu>{gpu(0, 1), gpu(1, 1), gpu(2, 1)});
}

// Of ranks with one GPU in this mode.
std::string not_shared(const char* mode, size_t ranks = 2, bool mps = false, bool server = false) {
  Gpu one = gpu(3, 1);
  one.mode = mode;
  one.mps = server;
  GpuOptions options;
  options.share = true;
  return why_not_shared(options, ranks, kFirst, std::vector<Gpu>{one}, mps);
}

}  // namespace

TEST_CASE("gpu note: nothing is said of GPUs that are free, or not the job's") {
  CHECK(note({gpu(0, 990)}).empty());
  CHECK(note({gpu(0, 500)}).empty());
  CHECK(note({gpu(0, 990), gpu(1, 1, {{7, "x", 5}})}).empty());
  CHECK(note({gpu(0, 1)}, {}).empty());
}

TEST_CASE("gpu note: who uses one is named, and of several the first") {
  CHECK(note({gpu(0, 1, {{7, "python3", 512}})}) ==
        "GPU 0 is in use by process 7 (python3, 512 MiB); hvdrun devices tells of all");
  CHECK(note({gpu(0, 990, {{7, "x", std::nullopt}, {8, "y", 1}, {9, "z", 1}})}) ==
        "GPU 0 is in use by process 7 (x) and 2 more; hvdrun devices tells of all");
}

TEST_CASE("gpu note: less than half of the memory is short, unless the ranks may have it") {
  CHECK(note({gpu(0, 499)}) == "GPU 0 has 499 of 1000 MiB free; hvdrun devices tells of all");
  CHECK(note({gpu(0, 1, {{101, "rank", 999}})}).empty());
  CHECK(note({gpu(0, 1, {{999, "elsewhere", 999}})}).empty());
  CHECK(note({gpu(0, 1, {{101, "rank", 9}, {7, "x", 9}})}) ==
        "GPU 0 is in use by process 7 (x, 9 MiB); hvdrun devices tells of all");
  Gpu divided = gpu(0, 1);
  divided.divided = true;
  divided.listed.parts = {"MIG-a"};
  CHECK(note({divided}).empty());
  Gpu silent = gpu(0, 1);
  silent.free_mib.reset();
  CHECK(note({silent}).empty());
}

TEST_CASE("gpu note: of a divided GPU the ranks' parts count, and one without parts is useless") {
  Gpu divided = gpu(0, 1, {{7, "x", 5, "MIG-a"}});
  divided.divided = true;
  CHECK(note({divided}) ==
        "GPU 0 has MIG on but no MIG device, so CUDA cannot use it; hvdrun devices tells of all");
  divided.parts_unknown = true;
  CHECK_THAT(note({divided}), Catch::StartsWith("GPU 0 is in use by process 7"));
  divided.parts_unknown = false;
  divided.listed.parts = {"MIG-a", "MIG-b"};
  const std::string in_use = "GPU 0 is in use by process 7 (x, 5 MiB); hvdrun devices tells of all";
  CHECK(note({divided}, {{0, "MIG-b"}}).empty());
  CHECK(note({divided}, {{0, "MIG-b"}, {0, "MIG-a"}}) == in_use);
  CHECK(note({divided}) == in_use);
  divided.uses[0].part.clear();
  CHECK(note({divided}, {{0, "MIG-b"}}) == in_use);
}

TEST_CASE("gpu note: a line has no more than four GPUs") {
  std::vector<Gpu> gpus;
  std::vector<SeenGpu> seen;
  for (int i = 0; i < 6; ++i) {
    gpus.push_back(gpu(i, 1));
    seen.push_back({size_t(i), ""});
  }
  CHECK_THAT(note(gpus, seen),
             Catch::EndsWith("GPU 3 has 1 of 1000 MiB free, and so on for 2 more; hvdrun devices "
                             "tells of all"));
}

TEST_CASE("gpu note: the job's GPUs are those of its ranks") {
  CHECK(of_ranks("2,1", 2) == std::vector<SeenGpu>{{2, ""}, {1, ""}});
  CHECK(of_ranks("2,1", 1, "0") == std::vector<SeenGpu>{{2, ""}});
  CHECK(of_ranks("", 2, "1,0,2") == std::vector<SeenGpu>{{1, ""}, {0, ""}});
  CHECK(of_ranks("", 5).size() == 3);
  CHECK(of_ranks("", 0).empty());
}

TEST_CASE("gpu note: who does not answer, and who lets nobody in, is told") {
  Gpu lost = gpu(1, 1), closed = gpu(2, 990), exclusive = gpu(3, 990);
  lost.trouble = "GPU is lost";
  closed.mode = "Prohibited";
  exclusive.mode = "Exclusive_Process";
  CHECK(note({lost}) == "GPU 1: nvidia-smi says GPU is lost; hvdrun devices tells of all");
  CHECK(note({closed}) ==
        "GPU 2 is in compute mode Prohibited, so CUDA cannot use it; hvdrun devices tells of all");
  CHECK(note({exclusive}).empty());
  Gpu hidden = gpu(0, 1);
  hidden.uses_unknown = true;  // the memory may be a rank's
  CHECK(note({hidden}).empty());
}

TEST_CASE("gpu note: a GPU for one process is not shared, but under MPS") {
  CHECK(not_shared("Exclusive_Process") ==
        "--share-gpu: GPU 3 is in compute mode Exclusive_Process, which lets one process use it; "
        "change that by nvidia-smi -i 3 -c DEFAULT, or start CUDA's MPS");
  CHECK(not_shared("Prohibited", 2, true) ==
        "--share-gpu: GPU 3 is in compute mode Prohibited, which lets nobody use it; change that "
        "by nvidia-smi -i 3 -c DEFAULT");
  CHECK(not_shared("Exclusive_Process", 2, true).empty());
  CHECK(not_shared("Exclusive_Process", 2, false, true).empty());
  CHECK(not_shared("Exclusive_Process", 1).empty());
  for (const char* fine : {"Default", ""}) CHECK(not_shared(fine).empty());
  const std::vector<Gpu> unasked = {gpu(0, 1)};
  CHECK(why_not_shared({}, 2, kFirst, unasked, false).empty());
}

}  // namespace hvd
