// Ranks of the stand-ins as threads, each with the device of its number.
#pragma once

#include <cuda.h>
#include <nccl.h>

#include <cstring>
#include <exception>
#include <functional>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/collectives/nccl/standin.h"
#include "tests/support/until.h"

namespace hvd {

// See standin.h.
struct Setting {
  const char *name, *value;
};
constexpr Setting kNoted = {"abort_on_violation", "0"};  // violations are counted
constexpr Setting kAtOnce = {"in_progress_percent", "0"};

// Those of a case, taken back at its end, when the counts and violations are forgotten too.
class Settings {
 public:
  Settings(std::initializer_list<Setting> settings = {});
  ~Settings();
  Settings(const Settings&) = delete;
  Settings& operator=(const Settings&) = delete;

 private:
  std::vector<Setting> settings_;
};

// Throws unless it succeeded.
void expect(CUresult result, const char* what);
void expect(ncclResult_t result, const char* what);
// Throws unless it is so: Catch's macros are not for threads.
void require(bool is_so, const char* what);

// A thread's device with a stream of it; made in that thread.
class Device {
 public:
  explicit Device(int ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  CUstream stream() const { return stream_; }
  // Waits for the stream by asking.
  void drain() const { drain(stream_); }
  static void drain(CUstream stream);

 private:
  int ordinal_;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
};

// Device memory of a case, of the thread's device.
template <class Value>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    expect(cuMemAlloc(&pointer_, count * sizeof(Value)), "cuMemAlloc");
  }
  explicit DeviceArray(const std::vector<Value>& values, CUstream stream)
      : DeviceArray(values.size()) {
    expect(cuMemcpyAsync(pointer_, reinterpret_cast<CUdeviceptr>(values.data()),
                         count_ * sizeof(Value), stream),
           "cuMemcpyAsync");
    Device::drain(stream);
  }
  // Freeing waits for the device; where a case fails that may have no end.
  ~DeviceArray() {
    if (std::uncaught_exceptions() == 0) cuMemFree(pointer_);
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  CUdeviceptr address() const { return pointer_; }
  Value* data() const { return reinterpret_cast<Value*>(pointer_); }
  // After all work of the stream.
  std::vector<Value> read(CUstream stream) const {
    std::vector<Value> values(count_);
    expect(cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(values.data()), pointer_,
                         count_ * sizeof(Value), stream),
           "cuMemcpyAsync");
    Device::drain(stream);
    return values;
  }

 private:
  CUdeviceptr pointer_ = 0;
  size_t count_;
};

// Waits until the stand-ins of this process do nothing more of their own.
void until_quiet();

// Asks until it is settled, which success may not be yet; the result.
ncclResult_t settle(ncclComm_t comm, ncclResult_t result);
ncclUniqueId unique_id();
ncclConfig_t non_blocking();
ncclComm_t make_communicator(const ncclUniqueId& id, int ranks, int rank);
void finalize_and_destroy(ncclComm_t comm);

// Runs `body` for each rank in a thread of its own. Rethrows the first exception.
void run_ranks(int ranks, const std::function<void(int rank, Device& device)>& body);
// The same, with a communicator that ends well.
void run_communicator(int ranks,
                      const std::function<void(int rank, Device& device, ncclComm_t comm)>& body);

}  // namespace hvd
