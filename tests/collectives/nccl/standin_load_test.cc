// What is taken and what is refused of a driver and of NCCL that are there.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

#include "collectives/nccl/cuda_driver.h"
#include "collectives/nccl/nccl_library.h"
#include "tests/collectives/nccl/standin.h"
#include "tests/collectives/nccl/standin_processes.h"
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

// In a process of its own, since NCCL stays: loads LOAD beside the copies, and says which it got,
// or why none.
int load_beside() {
  const auto variable = [](const char* name) { return std::string(std::getenv(name)); };
  std::istringstream copies(variable("COPIES"));
  for (std::string copy; copies >> copy;)
    if (dlopen((folder() + copy).c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr)
      std::fprintf(stderr, "%s\n", dlerror());
  const std::string refusal = refusal_of([&] {
    const NcclLibrary nccl = NcclLibrary::load(variable("LOAD"));
    std::fprintf(stderr, "%d%s %s\n%s", nccl.version,
                 nccl.ncclCommInitRankScalable == nullptr ? " without newer calls" : "",
                 path_of(reinterpret_cast<const void*>(nccl.ncclGetVersion)).c_str(),
                 nccl.text_of(ncclSystemError, nullptr).c_str());
  });
  std::fprintf(stderr, "%s", refusal.c_str());
  return 0;
}

const RankProgram loads_nccl("loads NCCL", load_beside);

std::string text_of_load(const std::string& path, const std::string& copies = "",
                         const std::string& version = "22809") {
  Process process("loads NCCL",
                  {"LOAD=" + path, "COPIES=" + copies, "HVD_STANDIN_NCCL_VERSION=" + version});
  process.wait();
  return process.text();
}

// Of a case, for this process.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) { hvd_standin_set(name, value); }
  ~Setting() { hvd_standin_set(name_, nullptr); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* const name_;
};

}  // namespace

TEST_CASE("standin load: a driver and NCCL with all calls are taken") {
  const CudaDriver driver = CudaDriver::load(driver_path());
  CHECK(driver.text_of(CUDA_ERROR_OUT_OF_MEMORY) == "out of memory (CUDA_ERROR_OUT_OF_MEMORY)");
  CHECK(driver.text_of(static_cast<CUresult>(12345)) == "CUDA error 12345");
  const std::string nccl = folder() + "libnccl_standin.so";
  CHECK_THAT(text_of_load(nccl),
             Catch::StartsWith("22809 " + nccl +
                               "\nunhandled system error (run with NCCL_DEBUG=INFO for details)"));
}

TEST_CASE("standin load: no device, another driver and one that is too old are told") {
  const auto load = [] { CudaDriver::load(driver_path()); };
  {
    const Setting setting("init_result", "100");
    CHECK(refusal_of(load) ==
          "CUDA cannot be used here: no CUDA-capable device is detected (CUDA_ERROR_NO_DEVICE)");
  }
  {
    const Setting setting("init_result", "803");
    CHECK_THAT(refusal_of(load), Catch::Contains("system has unsupported display driver"));
  }
  const Setting setting("driver_version", "11080");
  CHECK(refusal_of(load) ==
        "the CUDA driver is for CUDA 11.8, too old; 12.0 is needed: update the GPU's driver");
}

TEST_CASE("standin load: an old NCCL is refused, one without newer calls is taken") {
  CHECK_THAT(text_of_load(folder() + "libnccl_standin.so", "", "21805"),
             Catch::StartsWith("NCCL 2.18.5 in ") && Catch::EndsWith("2.19.0 is needed"));
  CHECK_THAT(text_of_load(folder() + "libnccl_standin_old.so", "", "21903"),
             Catch::StartsWith("21903 without newer calls "));
}

TEST_CASE("standin load: the copy that is there already is taken, whatever its name") {
  for (const char* copy : {"nccl_first/libnccl.so.2", "libnccl_standin.so"})
    CHECK_THAT(text_of_load("/gone/libnccl.so.2", copy),
               Catch::StartsWith("22809 " + folder() + copy + "\n"));
}

TEST_CASE("standin load: two copies are refused, whatever their names") {
  for (const char* second : {"nccl_second/libnccl.so.2", "libnccl_standin_old.so"})
    CHECK(text_of_load("/gone/libnccl.so.2", std::string("nccl_first/libnccl.so.2 ") + second) ==
          "this process has two copies of NCCL, " + folder() + "nccl_first/libnccl.so.2 and " +
              folder() + second + ", of which each knows nothing of the other; load one");
}

}  // namespace hvd
