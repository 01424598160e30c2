// That what nvcc has made has each kernel for each kind of GPU, and what is said where a driver
// does not take it.
#include "collectives/nccl/cuda_kernels.h"

#include "collectives/nccl/kernels.h"
#include "collectives/nccl/kernels_image.h"
#include "hvd/error.h"
#include "tests/collectives/nccl/device_ranks.h"
#include "tests/collectives/nccl/standin/fatbin.h"
#include "tests/collectives/nccl/standin_ranks.h"
#include "tests/support/catch.h"

namespace hvd {
namespace {

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
#define HVD_SCALE(name, T) names.emplace_back("hvd_scale_" #name);
  HVD_SCALE_KERNELS(HVD_SCALE)
#undef HVD_SCALE
  names.emplace_back("hvd_cast");
  return names;
}

std::string refusal_of(const CudaKernels& kernels) {
  try {
    kernels.scale(DataType::kInt8, {.pre = 2}, nullptr, 1, nullptr);
  } catch (const Error& error) {
    return error.code() == ErrorCode::kUnavailable ? error.what() : "another code";
  }
  return "";
}

}  // namespace

TEST_CASE("nccl kernels image: every kernel is there for every kind of GPU") {
  std::vector<int> machine_code, ptx;
  for (const DeviceCode& code : device_codes(kernels_image().data())) {
    (code.is_ptx ? ptx : machine_code).push_back(code.architecture);
    for (const std::string& name : kernel_names()) {
      INFO(name << " for " << code.architecture);
      CHECK(has_kernel(code, name));
    }
    CHECK_FALSE(has_kernel(code, "hvd_scale_int"));
  }
  CHECK(machine_code == std::vector{75, 80, 90, 100});
  CHECK(ptx.empty());
}

TEST_CASE("nccl kernels image: their PTX is one that CUDA 12.0's drivers take") {
  const std::vector<DeviceCode> codes = device_codes(kernels_ptx());
  REQUIRE(codes.size() == 1);
  CHECK(codes[0].is_ptx);
  CHECK(codes[0].architecture == 75);
  CHECK(codes[0].cuda == 12000);
  for (const std::string& name : kernel_names()) CHECK(has_kernel(codes[0], name));
}

TEST_CASE("nccl kernels: a driver of an older CUDA than the compiler's compiles them") {
  const Settings settings{{"driver_version", "12000"}};
  const CudaDevice device(standin_driver(), 0);
  const CudaDevice::Current current(device);
  const DeviceArray<int8_t> values(std::vector<int8_t>{1, -2, 100}, device.stream());
  device.kernels().scale(DataType::kInt8, {.pre = 2}, values.data(), 3, device.stream());
  CHECK(values.read(device.stream()) == std::vector<int8_t>{2, -4, 127});
}

TEST_CASE("nccl kernels: a driver that does not take them is told of where they are needed") {
  const Settings settings{{"architecture", "70"}};
  CudaDevice device(standin_driver(), 0);
  const CudaDevice::Current current(device);
  device.kernels().scale(DataType::kInt8, {}, nullptr, 1, device.stream());
  device.kernels().scale(DataType::kInt8, {.pre = 2}, nullptr, 0, device.stream());
  CHECK(!device.kernels().are_there());
  CHECK_THAT(refusal_of(device.kernels()),
             Catch::StartsWith("hvd's kernels, compiled by CUDA ") &&
                 Catch::Contains(" for GPUs of compute capability 7.5 and newer, cannot be used "
                                 "here: the driver does not take them: ") &&
                 Catch::Contains("(CUDA_ERROR_NO_BINARY_FOR_GPU); update the GPU's driver"));
}

// As of a plug-in whose image and names are not of one build.
TEST_CASE("nccl kernels: one that the module lacks is named where they are needed") {
  CudaDriver driver = standin_driver();
  driver.cuModuleGetFunction = [](CUfunction* made, CUmodule module, const char* name) {
    return std::string(name) == "hvd_cast" ? CUDA_ERROR_NOT_FOUND
                                           : cuModuleGetFunction(made, module, name);
  };
  const CudaDevice device(driver, 0);
  const CudaDevice::Current current(device);
  CHECK(!device.kernels().are_there());
  CHECK_THAT(refusal_of(device.kernels()),
             Catch::Contains("cannot be used here: hvd_cast: named symbol not found "
                             "(CUDA_ERROR_NOT_FOUND); update the GPU's driver"));
}

TEST_CASE("nccl kernels: so many casts as there is room for are one launch") {
  for (const size_t casts : {size_t{0}, size_t{1}, size_t{CastTable::kMost},
                             size_t{CastTable::kMost} + 1, 3 * size_t{CastTable::kMost} - 1}) {
    const Settings settings;
    CudaDevice device(standin_driver(), 0);
    const CudaDevice::Current current(device);
    std::vector<float> values(casts * 10);
    for (size_t k = 0; k < values.size(); ++k) values[k] = static_cast<float>(k) / 8;
    const DeviceArray<float> from(values.size() + 1);
    const DeviceArray<float16> to(values.size() + 1);
    if (casts != 0) {
      expect(cuMemcpyAsync(from.address(), reinterpret_cast<CUdeviceptr>(values.data()),
                           values.size() * sizeof(float), device.stream()),
             "cuMemcpyAsync");
    }
    std::vector<Cast> all;
    for (size_t k = 0; k < casts; ++k) {
      all.push_back({{from.data() + 10 * k, 10, DataType::kFloat32},
                     {to.data() + 10 * k, 10, DataType::kFloat16}});
      all.push_back({{nullptr, 0, DataType::kFloat32}, {nullptr, 0, DataType::kFloat32}});
    }
    device.kernels().cast(all, 1, device.stream());
    CHECK(hvd_standin_count("kernel hvd_cast", 0) ==
          static_cast<long long>((casts + CastTable::kMost - 1) / CastTable::kMost));
    const std::vector<float16> seen = to.read(device.stream());
    for (size_t k = 0; k < values.size(); ++k) REQUIRE(seen[k] == float16(values[k]));
  }
}

TEST_CASE("nccl kernels: they are taken by GPUs of every architecture since") {
  for (const char* architecture : {"75", "86", "90", "103", "121"}) {
    const Settings settings{{"architecture", architecture}};
    const CudaDevice device(standin_driver(), 0);
    const CudaDevice::Current current(device);
    const DeviceArray<int8_t> values(std::vector<int8_t>{1, -2, 100}, device.stream());
    device.kernels().scale(DataType::kInt8, {.pre = 2}, values.data(), 3, device.stream());
    CHECK(values.read(device.stream()) == std::vector<int8_t>{2, -4, 127});
    CHECK(hvd_standin_count("kernels", 0) == 1);
  }
}

TEST_CASE("nccl kernels: what is not one allocation of the device they do not touch") {
  const Settings settings{kNoted};
  const CudaDevice other(standin_driver(), 1), device(standin_driver(), 0);
  CUdeviceptr elsewhere = 0, freed = 0, own = 0;
  {
    const CudaDevice::Current current(other);
    expect(cuMemAlloc(&elsewhere, 8), "cuMemAlloc");
  }
  const CudaDevice::Current current(device);
  expect(cuMemAlloc(&own, 8), "cuMemAlloc");
  expect(cuMemAlloc(&freed, 8), "cuMemAlloc");
  expect(cuMemFree(freed), "cuMemFree");
  int64_t on_host = 1;
  for (const CUdeviceptr wrong :
       {elsewhere, freed, own + 1, reinterpret_cast<CUdeviceptr>(&on_host)}) {
    device.kernels().scale(DataType::kInt64, {.pre = 2}, reinterpret_cast<void*>(wrong), 1,
                           device.stream());
    Device::drain(device.stream());
    REQUIRE(hvd_standin_violations() == 1);
    CHECK_THAT(hvd_standin_violation(0),
               Catch::StartsWith("hvd_scale_int64 touches 8 bytes that are not in one allocation "
                                 "of GPU 0"));
    hvd_standin_forget_violations();
  }
  CHECK(on_host == 1);
  expect(cuMemFree(own), "cuMemFree");
  expect(cuMemFree(elsewhere), "cuMemFree");
}

TEST_CASE("nccl kernels: memory that one is to touch is not freed") {
  const Settings settings{kNoted, {"delay_us", "100000"}};
  const CudaDevice device(standin_driver(), 0);
  const CudaDevice::Current current(device);
  void* memory = nullptr;
  REQUIRE(ncclMemAlloc(&memory, 8) == ncclSuccess);
  for (int k = 0; k < 10; ++k)  // one begins late
    device.kernels().scale(DataType::kInt64, {.pre = 2}, memory, 1, device.stream());
  ncclMemFree(memory);
  Device::drain(device.stream());
  CHECK(hvd_standin_violations() > 0);
}

}  // namespace hvd
