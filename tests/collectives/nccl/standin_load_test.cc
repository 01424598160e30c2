// What is taken and what is refused of a driver and of NCCL that are there.
#include <dlfcn.h>

#include <cstdio>

#include "collectives/nccl/cuda_driver.h"
#include "collectives/nccl/nccl_library.h"
#include "tests/collectives/nccl/standin_processes.h"
#include "tests/collectives/nccl/standin_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/rank_program.h"

namespace hvd {
namespace {

std::string path_of(const void* function) {
  Dl_info info = {};
  dladdr(function, &info);
  return info.dli_fname;
}
std::string driver_path() { return path_of(reinterpret_cast<const void*>(&cuInit)); }
// "…/lib/"
std::string folder() { return driver_path().substr(0, driver_path().rfind('/') + 1); }

template <class Load>
std::string refusal_of(const Load& load) {
  try {
    load();
  } catch (const Error& error) {
    return error.code() == ErrorCode::kUnavailable ? error.what() : "another code";
  }
  return "";
}

// Loads NCCL where copies are in the process before; says which, or why not.
void load_beside(const std::vector<std::string>& copies) {
  for (const std::string& copy : copies)
    if (dlopen((folder() + copy).c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr)
      std::fprintf(stderr, "%s\n", dlerror());
  const std::string refusal = refusal_of([] {
    const NcclLibrary nccl = NcclLibrary::load("/gone/libnccl.so.2");
    std::fprintf(stderr, "%s", path_of(reinterpret_cast<const void*>(nccl.ncclGetVersion)).c_str());
  });
  std::fprintf(stderr, "%s", refusal.c_str());
}

const RankProgram one_copy("one copy", [] {
  load_beside({"nccl_first/libnccl.so.2"});
  return 0;
});
const RankProgram two_copies("two copies", [] {
  load_beside({"nccl_first/libnccl.so.2", "nccl_second/libnccl.so.2"});
  return 0;
});

std::string text_of_run(const char* program) {
  Process process(program, {});
  process.wait();
  return process.text();
}

}  // namespace

TEST_CASE("standin load: a driver and NCCL with all calls are taken") {
  const Settings settings;
  const CudaDriver driver = CudaDriver::load(driver_path());
  CHECK(driver.text_of(CUDA_ERROR_OUT_OF_MEMORY) == "out of memory (CUDA_ERROR_OUT_OF_MEMORY)");
  CHECK(driver.text_of(static_cast<CUresult>(12345)) == "CUDA error 12345");
  const NcclLibrary nccl = NcclLibrary::load(folder() + "libnccl_standin.so");
  CHECK(nccl.version == 22809);
  CHECK(nccl.text_of(ncclSystemError, nullptr)
            .starts_with("unhandled system error (run with NCCL_DEBUG=INFO for details)"));
}

TEST_CASE("standin load: no device, another driver and one that is too old are told") {
  const auto load = [] { CudaDriver::load(driver_path()); };
  {
    const Settings settings{{"init_result", "100"}};
    CHECK(refusal_of(load) ==
          "CUDA cannot be used here: no CUDA-capable device is detected (CUDA_ERROR_NO_DEVICE)");
  }
  {
    const Settings settings{{"init_result", "803"}};
    CHECK_THAT(refusal_of(load), Catch::Contains("system has unsupported display driver"));
  }
  const Settings settings{{"driver_version", "11080"}};
  CHECK(refusal_of(load) ==
        "the CUDA driver is for CUDA 11.8, too old; 12.0 is needed: update the GPU's driver");
}

TEST_CASE("standin load: an old NCCL is refused, one without newer calls is taken") {
  {
    const Settings settings{{"nccl_version", "21805"}};
    CHECK_THAT(refusal_of([] { NcclLibrary::load(folder() + "libnccl_standin.so"); }),
               Catch::StartsWith("NCCL 2.18.5 in ") && Catch::EndsWith("2.19.0 is needed"));
  }
  const Settings settings{{"nccl_version", "21903"}};
  const NcclLibrary nccl = NcclLibrary::load(folder() + "libnccl_standin_old.so");
  CHECK(nccl.version == 21903);
  CHECK(nccl.ncclCommInitRankScalable == nullptr);
}

TEST_CASE("standin load: the copy that is there already is taken, two are refused") {
  CHECK(text_of_run("one copy") == folder() + "nccl_first/libnccl.so.2");
  CHECK(text_of_run("two copies") ==
        "this process has two copies of NCCL, " + folder() + "nccl_first/libnccl.so.2 and " +
            folder() +
            "nccl_second/libnccl.so.2, of which each knows nothing of the other; load one");
}

}  // namespace hvd
