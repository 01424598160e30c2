// Which GPUs a list names, and what CUDA makes of one.
#include "cli/gpu_list.h"

#include "runtime/base/error.h"
#include "tests/support/catch.h"

namespace hvd {
namespace {

const std::vector<ListedGpu> kGpus = {
    {0, "GPU-11aa", {}}, {1, "GPU-11bb", {}}, {2, "GPU-22cc", {"MIG-1a", "MIG-1b"}}};

std::string parsed(std::string_view list) {
  try {
    return gpu_list_text(parse_gpu_list("--devices", list));
  } catch (const Error& error) {
    return error.code() == ErrorCode::kInvalidArgument ? error.what() : "wrong code";
  }
}

std::string checked(std::string_view list) {
  try {
    check_gpu_list("--devices", parse_gpu_list("--devices", list), kGpus);
    return "ok";
  } catch (const Error& error) {
    return error.code() == ErrorCode::kInvalidArgument ? error.what() : "wrong code";
  }
}

}  // namespace

TEST_CASE("gpu list: indices, names of GPUs and names of MIG devices are taken") {
  CHECK(parsed("0") == "0");
  CHECK(parsed(" 3, 1 ,02") == "3,1,2");
  CHECK(parsed("GPU-8932f937-d72c,GPU-5d") == "GPU-8932f937-d72c,GPU-5d");
  CHECK(parsed("MIG-GPU-89/1/0,MIG-GPU-89/2/0") == "MIG-GPU-89/1/0,MIG-GPU-89/2/0");
  CHECK(parse_gpu_list("", "7")[0] == GpuName{GpuName::Kind::kIndex, 7, "7"});
  CHECK(parse_gpu_list("", "MIG-7")[0] == GpuName{GpuName::Kind::kMig, 0, "MIG-7"});
}

TEST_CASE("gpu list: what is none, of another kind or there twice is refused by its place") {
  for (const char* bad : {"", "-1", "x", "0x1", "1.0", "GPU-", "MIG-", "gpu-1", "99999999999"})
    CHECK_THAT(parsed(std::string("5,") + bad),
               Catch::StartsWith("--devices: word 2, \"" + std::string(bad) + "\", is no GPU"));
  CHECK_THAT(parsed("0,GPU-1"), Catch::StartsWith("--devices: word 2, \"GPU-1\", is of another"));
  CHECK_THAT(parsed("GPU-1,MIG-1"), Catch::StartsWith("--devices: word 2, \"MIG-1\", is of anoth"));
  CHECK(parsed("4,2,02") ==
        "--devices: word 3, \"02\", is there as word 2 already; name each GPU once");
}

TEST_CASE("gpu list: each word must name one GPU that is there, and no other word the same") {
  for (const char* good : {"0", "1,0", "GPU-11b,GPU-11a", "MIG-1a,MIG-1b", "MIG-1b"})
    CHECK(checked(good) == "ok");
  CHECK(checked("0,3") ==
        "--devices: word 2, \"3\", names none of the 3 GPUs here; hvdrun devices lists them");
  CHECK_THAT(checked("GPU-33"), Catch::StartsWith("--devices: word 1, \"GPU-33\", names none"));
  CHECK_THAT(checked("GPU-11"),
             Catch::EndsWith("here, or more than one; hvdrun devices lists them"));
  CHECK_THAT(checked("MIG-1"), Catch::StartsWith("--devices: word 1, \"MIG-1\", names none"));
  CHECK(checked("GPU-11b,GPU-11a,GPU-11aa") ==
        "--devices: word 3, \"GPU-11aa\", is the same GPU as word 2; name each GPU once");
}

TEST_CASE("gpu list: a divided GPU is not taken as a whole: its parts are named") {
  for (const char* whole : {"0,2", "GPU-11aa,GPU-2"})
    CHECK_THAT(checked(whole),
               Catch::StartsWith("--devices: word 2, \"") &&
                   Catch::EndsWith("\", is divided (MIG), and CUDA uses its parts alone; name MIG "
                                   "devices: MIG-1a,MIG-1b"));
}

TEST_CASE("gpu list: what CUDA_VISIBLE_DEVICES leaves out is not taken") {
  const auto left = [](std::string_view list, std::string_view variable) -> std::string {
    try {
      check_visible("--devices", parse_gpu_list("", list), names_visible_to_cuda(variable), kGpus);
      return "ok";
    } catch (const Error& error) {
      return error.code() == ErrorCode::kInvalidArgument ? error.what() : "wrong code";
    }
  };
  CHECK(left("1,0", "0,1") == "ok");
  CHECK(left("1", "GPU-11b") == "ok");
  CHECK(left("GPU-11bb", "2,1") == "ok");
  CHECK(left("MIG-1a", "2") == "ok");
  CHECK(left("MIG-1a", "MIG-1b,MIG-1a") == "ok");
  CHECK(left("1,2", "0,1") ==
        "--devices: word 2, \"2\", is not among what CUDA_VISIBLE_DEVICES leaves; name one that "
        "is, or unset it");
  for (const char* none : {"", "0,0", "GPU-33", "MIG-1a"}) CHECK(left("1", none) != "ok");
  CHECK(left("MIG-1a", "MIG-1b") != "ok");
  CHECK(left("2", "MIG-1b") != "ok");
}

TEST_CASE("gpu list: of a divided GPU NCCL takes one rank") {
  const auto parts = [](std::string_view list) -> std::string {
    const std::vector<ListedGpu> gpus = {{0, "GPU-00", {"MIG-0a", "MIG-0b"}},
                                         {1, "GPU-11", {"MIG-1a"}}};
    try {
      check_parts("--devices", parse_gpu_list("", list), gpus);
      return "ok";
    } catch (const Error& error) {
      return error.code() == ErrorCode::kInvalidArgument ? error.what() : "wrong code";
    }
  };
  CHECK(parts("MIG-0b") == "ok");
  CHECK(parts("MIG-0b,MIG-1a") == "ok");
  CHECK(parts("0,1") == "ok");
  CHECK(parts("MIG-0b,MIG-1,MIG-0a") ==
        "--devices: word 3, \"MIG-0a\", is a part of the same GPU as word 1, and NCCL takes no two "
        "ranks of one; start a rank for each GPU, or let ranks share by --share-gpu");
}

TEST_CASE("gpu list: a part that is cut short is found by its whole name") {
  const ListedGpu gpu = {0, "GPU-00", {"MIG-0abc", "MIG-0a", "MIG-0b"}};
  const auto found = [&](std::string_view name) {
    return find_part(parse_gpu_list("", name)[0], gpu);
  };
  CHECK(found("MIG-0a") == "MIG-0a");
  CHECK(found("MIG-0ab") == "MIG-0abc");
  CHECK(found("MIG-0").empty());
  CHECK(found("MIG-1").empty());
  CHECK(found("0").empty());
  // The names of older drivers may begin with one another.
  const std::vector<ListedGpu> old = {
      {0, "GPU-0", {"MIG-GPU-0/1/10", "MIG-GPU-0/1/11", "MIG-GPU-0/1/1"}}};
  const GpuName exact = parse_gpu_list("", "MIG-GPU-0/1/1")[0];
  CHECK(find_gpu(exact, old) == 0u);
  CHECK(find_part(exact, old[0]) == "MIG-GPU-0/1/1");
}

TEST_CASE("gpu list: shortened names become whole ones, and what is not there stays") {
  const auto whole = [](std::string_view list) {
    return gpu_list_text(whole_names(parse_gpu_list("", list), kGpus));
  };
  CHECK(whole("GPU-11b,GPU-22") == "GPU-11bb,GPU-22cc");
  CHECK(whole("MIG-1b,MIG-1") == "MIG-1b,MIG-1");
  CHECK(whole("GPU-11,GPU-3") == "GPU-11,GPU-3");
  CHECK(whole("1,0") == "1,0");
  const std::vector<ListedGpu> silent = {{0, "", {}}};
  CHECK(gpu_list_text(whole_names(parse_gpu_list("", "GPU-1"), silent)) == "GPU-1");
}

TEST_CASE("gpu list: CUDA_VISIBLE_DEVICES leaves some of the GPUs") {
  CHECK(visible_gpus(8, std::nullopt) == 8);
  CHECK(visible_gpus(8, "0,3") == 2);
  CHECK(visible_gpus(8, " 1 , 2 ") == 2);
  CHECK(visible_gpus(8, "") == 0);
  CHECK(visible_gpus(8, "-1") == 0);
  CHECK(visible_gpus(8, "0,-1,1") == 1);
  CHECK(visible_gpus(2, "0,7,1") == 1);
  CHECK(visible_gpus(8, "GPU-1a2b,GPU-3c4d") == 2);
  CHECK(visible_gpus(1, "GPU-1a2b,GPU-3c4d") == 1);
  CHECK(visible_gpus(8, "MIG-1") == 1);
  CHECK(visible_gpus(8, "none") == 0);
  CHECK(visible_gpus(0, "0,1") == 0);
  CHECK(visible_gpus(8, "0,") == 1);
}

TEST_CASE("gpu list: CUDA stops at another kind of word, and shows nothing where one is twice") {
  CHECK(visible_gpus(8, "0,GPU-1a,1") == 1);
  CHECK(visible_gpus(8, "GPU-1a,0") == 1);
  CHECK(visible_gpus(8, "0,1,0") == 0);
  CHECK(visible_gpus(8, "GPU-1a,GPU-1a") == 0);
}

TEST_CASE("gpu list: of several MIG devices a process sees one") {
  CHECK(visible_gpus(8, "MIG-1a,MIG-1b") == 1);
  CHECK(visible_gpus(8, std::nullopt, true) == 1);
  CHECK(visible_gpus(0, std::nullopt, true) == 0);
  CHECK(visible_gpus(8, "1,2", true) == 2);
}

}  // namespace hvd
