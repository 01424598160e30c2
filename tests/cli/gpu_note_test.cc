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

std::vector<SeenGpu> of_ranks(const std::vector<std::string>& names, int ranks, int elsewhere,
                              const std::optional<std::string>& visible = std::nullopt) {
  JobSpec spec;
  if (!names.empty()) spec.gpus.devices = parse_gpu_list("", names[0]);
  spec.hosts = {{"here", "", ranks}, {"there", "", elsewhere, true}};
  const std::vector<Gpu> gpus = {gpu(0, 1), gpu(1, 1), gpu(2, 1)};
  return gpus_of_ranks(spec, assign_slots(spec.hosts, ranks + elsewhere), visible, gpus);
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

TEST_CASE("gpu note: the job's GPUs are those of its ranks here") {
  CHECK(of_ranks({"2,1"}, 2, 4) == std::vector<SeenGpu>{{2, ""}, {1, ""}});
  CHECK(of_ranks({"2,1"}, 1, 1, "0") == std::vector<SeenGpu>{{2, ""}});
  CHECK(of_ranks({}, 2, 0, "1,0,2") == std::vector<SeenGpu>{{1, ""}, {0, ""}});
  CHECK(of_ranks({}, 5, 0).size() == 3);
  CHECK(of_ranks({}, 0, 2).empty());
}

}  // namespace hvd
