#include "tests/collectives/nccl/standin_ranks.h"

#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace hvd {

Settings::Settings(std::initializer_list<Setting> settings) : settings_(settings) {
  hvd_standin_set("devices", "8");  // for all cases: it is read once
  for (const Setting& setting : settings_) hvd_standin_set(setting.name, setting.value);
  hvd_standin_reset_counts();
  hvd_standin_forget_violations();
}

Settings::~Settings() {
  for (const Setting& setting : settings_) hvd_standin_set(setting.name, nullptr);
  hvd_standin_reset_counts();
  hvd_standin_forget_violations();
}

void expect(CUresult result, const char* what) {
  const char* name = nullptr;
  if (result != CUDA_SUCCESS)
    throw std::runtime_error(std::string(what) + ": " +
                             (cuGetErrorName(result, &name) == CUDA_SUCCESS ? name : "?"));
}

void expect(ncclResult_t result, const char* what) {
  if (result != ncclSuccess)
    throw std::runtime_error(std::string(what) + ": " + ncclGetErrorString(result) + ": " +
                             ncclGetLastError(nullptr));
}

void require(bool is_so, const char* what) {
  if (!is_so) throw std::runtime_error(std::string("not so: ") + what);
}

Device::Device(int ordinal) : ordinal_(ordinal) {
  expect(cuInit(0), "cuInit");
  expect(cuDevicePrimaryCtxRetain(&context_, ordinal), "cuDevicePrimaryCtxRetain");
  expect(cuCtxSetCurrent(context_), "cuCtxSetCurrent");
  expect(cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0), "cuStreamCreate");
}

Device::~Device() {
  cuStreamDestroy(stream_);
  cuDevicePrimaryCtxRelease(ordinal_);
}

void Device::drain(CUstream stream) {
  until("the stream is empty", [&] {
    const CUresult result = cuStreamQuery(stream);
    if (result != CUDA_ERROR_NOT_READY) expect(result, "cuStreamQuery");
    return result == CUDA_SUCCESS;
  });
}

void until_quiet() {
  until("nothing moves", [] { return hvd_standin_quiet() != 0; });
}

ncclResult_t settle(ncclComm_t comm, ncclResult_t result) {
  if (result != ncclInProgress && result != ncclSuccess) return result;
  until("the communicator is settled", [&] {
    expect(ncclCommGetAsyncError(comm, &result), "ncclCommGetAsyncError");
    return result != ncclInProgress;
  });
  return result;
}

ncclUniqueId unique_id() {
  ncclUniqueId id;
  expect(ncclGetUniqueId(&id), "ncclGetUniqueId");
  return id;
}

ncclConfig_t non_blocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

ncclComm_t make_communicator(const ncclUniqueId& id, int ranks, int rank) {
  ncclConfig_t config = non_blocking();
  ncclComm_t comm = nullptr;
  const ncclResult_t result = ncclCommInitRankConfig(&comm, ranks, id, rank, &config);
  expect(settle(comm, result), "ncclCommInitRankConfig");
  return comm;
}

void finalize_and_destroy(ncclComm_t comm) {
  expect(settle(comm, ncclCommFinalize(comm)), "ncclCommFinalize");
  expect(ncclCommDestroy(comm), "ncclCommDestroy");
}

void run_ranks(int ranks, const std::function<void(int rank, Device& device)>& body) {
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        Device device(rank);
        body(rank, device);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (first == nullptr) first = std::current_exception();
      }
    });
  threads.clear();
  if (first != nullptr) std::rethrow_exception(first);
}

void run_communicator(int ranks,
                      const std::function<void(int rank, Device& device, ncclComm_t comm)>& body) {
  const ncclUniqueId id = unique_id();
  run_ranks(ranks, [&](int rank, Device& device) {
    ncclComm_t comm = make_communicator(id, ranks, rank);
    body(rank, device, comm);
    finalize_and_destroy(comm);
  });
}

}  // namespace hvd
