#include "tests/collectives/nccl/standin/cuda_device.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <sstream>
#include <vector>

#include "tests/collectives/nccl/standin/cuda_kernel.h"
#include "tests/collectives/nccl/standin/cuda_memory.h"
#include "tests/collectives/nccl/standin/cuda_stream.h"

namespace hvd {
namespace {

std::mutex mutex;  // of what follows, and of what changes in a CUctx_st
bool ready = false;
std::atomic<bool> ended = false;
std::vector<CUcontext>& visible() {
  static auto& only = *new std::vector<CUcontext>;
  return only;
}
// Those that are not visible too.
std::vector<CUcontext>& existing() {
  static auto& only = *new std::vector<CUcontext>;
  return only;
}
thread_local CUcontext current = nullptr;
thread_local std::vector<CUcontext> below;  // `current`, on the stack

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

// The part of a list for a device, the last one for those beyond.
std::string part_of(const std::string& list, int ordinal) {
  const std::vector<std::string> parts = split(list, ';');
  return parts.empty() ? "" : parts[std::min(parts.size() - 1, static_cast<size_t>(ordinal))];
}

std::string hexadecimal(int number, int digits) {
  char text[40];
  std::snprintf(text, sizeof text, "%0*x", digits, static_cast<unsigned>(number));
  return text;
}

std::string bytes_of(const std::string& digits) {
  std::string bytes;
  for (size_t k = 0; k + 1 < digits.size(); k += 2)
    bytes += static_cast<char>(std::stoi(digits.substr(k, 2), nullptr, 16));
  bytes.resize(16);
  return bytes;
}

CUcontext make_device(int ordinal) {
  auto* device = new CUctx_st;
  device->name = part_of(setting("device_names"), ordinal);
  if (device->name.empty()) device->name = "NVIDIA Stand-in";
  std::string uuid = part_of(setting("device_uuids"), ordinal);
  if (uuid.empty()) uuid = "5a" + hexadecimal(ordinal, 30);
  device->uuid = bytes_of(uuid);
  const std::vector<std::string> pci = split(setting("device_pci"), ';');
  device->pci = static_cast<size_t>(ordinal) < pci.size()
                    ? pci[static_cast<size_t>(ordinal)]
                    : "0000:" + hexadecimal(0x10 + ordinal, 2) + ":00.0";
  return device;
}

// "GPU-5a000000-0000-…"
std::string uuid_text(const CUctx_st& device) {
  std::string text = "GPU-";
  for (size_t k = 0; k < 16; ++k) {
    if (k == 4 || k == 6 || k == 8 || k == 10) text += "-";
    text += hexadecimal(static_cast<unsigned char>(device.uuid[k]), 2);
  }
  return text;
}

// CUDA C++ Programming Guide, "CUDA Environment Variables": CUDA_VISIBLE_DEVICES lists indices or
// beginnings of UUIDs; what comes after an invalid one is not seen, and nothing is where one is
// there twice.
std::vector<CUcontext> seen_of(const std::vector<CUcontext>& all) {
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) return all;
  std::vector<CUcontext> seen;
  for (const std::string& entry : split(list, ',')) {
    auto found = all.end();
    if (entry.starts_with("GPU-") || entry.starts_with("MIG-"))
      found = std::find_if(all.begin(), all.end(), [&](CUcontext device) {
        return uuid_text(*device).substr(4).starts_with(entry.substr(4));
      });
    else if (!entry.empty() && entry.find_first_not_of("0123456789") == std::string::npos &&
             std::stoul(entry) < all.size())
      found = all.begin() + static_cast<std::ptrdiff_t>(std::stoul(entry));
    if (found == all.end()) break;
    if (std::find(seen.begin(), seen.end(), *found) != seen.end()) return {};
    seen.push_back(*found);
  }
  for (size_t k = 0; k < seen.size(); ++k) seen[k]->ordinal = static_cast<int>(k);
  return seen;
}

CUcontext device_of(CUdevice number) {
  const std::lock_guard lock(mutex);
  return number >= 0 && static_cast<size_t>(number) < visible().size()
             ? visible()[static_cast<size_t>(number)]
             : nullptr;
}

// The setting lost_device: "1", or "1:7" at its seventh call, or "1:cuMemFree:2".
struct Loss {
  int ordinal = -1;
  std::string call;      // empty: any
  long long number = 0;  // of that call; 0: at once

  Loss() {
    const std::vector<std::string> parts = split(setting("lost_device"), ':');
    if (!parts.empty()) ordinal = std::stoi(parts.front());
    if (parts.size() > 1) number = std::stoll(parts.back());
    if (parts.size() > 2) call = parts[1];
  }
};

// Whether it is lost by this call.
bool count_call(CUcontext context, const char* call) {
  const Loss loss;
  const std::lock_guard lock(mutex);
  if (context->lost || loss.number == 0 || loss.ordinal != context->ordinal ||
      (!loss.call.empty() && loss.call != call))
    return false;
  context->lost = ++context->calls == loss.number;
  return context->lost;
}

void forget_failures(const std::string& changed) {
  const std::lock_guard lock(mutex);
  for (const CUcontext context : existing()) {
    if (changed == "kernel_fails") context->failure = CUDA_SUCCESS;
    if (changed != "lost_device") continue;
    context->calls = 0;
    context->lost = false;
  }
}
const bool listens [[maybe_unused]] = (listen_to_changes(forget_failures), true);

}  // namespace

bool process_ends() { return ended; }

CUresult failure_of(CUcontext context) {
  if (ended) return CUDA_ERROR_DEINITIALIZED;
  if (const CUresult failure = context->failure; failure != CUDA_SUCCESS) return failure;
  const Loss loss;
  if (loss.ordinal != context->ordinal) return CUDA_SUCCESS;
  const std::lock_guard lock(mutex);
  return loss.number == 0 || context->lost ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}

void fail_context(CUcontext context, CUresult failure) {
  context->failure = failure;
  tell_change();
}

CUresult enter(CUcontext context, const char* call) {
  if (count_call(context, call)) tell_change();
  return failure_of(context);
}

CUresult enter_current(CUcontext& context, const char* call) {
  if (ended) return CUDA_ERROR_DEINITIALIZED;
  context = current_context();
  return context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : enter(context, call);
}

CUcontext current_context() {
  const std::lock_guard lock(mutex);
  return current != nullptr && current->retained > 0 ? current : nullptr;
}

const std::vector<CUcontext>& devices() { return visible(); }

}  // namespace hvd

using namespace hvd;

CUresult cuInit(unsigned) {
  const auto result = static_cast<CUresult>(setting("init_result", 0));
  if (result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(mutex);
  if (ready) return CUDA_SUCCESS;
  for (int k = static_cast<int>(existing().size()); k < setting("devices", 1); ++k) {
    existing().push_back(make_device(k));
    existing().back()->ordinal = k;
  }
  visible() = seen_of(existing());
  if (visible().empty()) return CUDA_ERROR_NO_DEVICE;
  ready = true;
  std::atexit([] {
    ended = true;
    tell_change();
  });
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  *version = static_cast<int>(setting("driver_version", 13000));
  return CUDA_SUCCESS;
}

namespace {

struct ErrorName {
  CUresult result;
  const char *name, *text;
};
constexpr ErrorName kErrors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CUDA_ERROR_STREAM_CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE",
     "operation would result in a merge of separate capture sequences"},
    {CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {CUDA_ERROR_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const ErrorName* error_of(CUresult result) {
  for (const ErrorName& error : kErrors)
    if (error.result == result) return &error;
  return nullptr;
}

}  // namespace

CUresult cuGetErrorName(CUresult result, const char** name) {
  const ErrorName* error = error_of(result);
  *name = error == nullptr ? nullptr : error->name;
  return error == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult result, const char** text) {
  const ErrorName* error = error_of(result);
  *text = error == nullptr ? nullptr : error->text;
  return error == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* number) {
  const std::lock_guard lock(mutex);
  if (!ready) return CUDA_ERROR_NOT_INITIALIZED;
  *number = static_cast<int>(visible().size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (device_of(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice number) {
  const CUcontext device = device_of(number);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<size_t>(length), "%s", device->name.c_str());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice number) {
  const CUcontext device = device_of(number);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  std::memcpy(uuid->bytes, device->uuid.data(), 16);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice number) {
  const CUcontext device = device_of(number);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(text, static_cast<size_t>(length), "%s", device->pci.c_str());
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice number, CUdevice peer) {
  if (device_of(number) == nullptr || device_of(peer) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *can = number != peer && setting("no_peer_access", 0) == 0 ? 1 : 0;
  return CUDA_SUCCESS;
}

// What a data-centre GPU of the Hopper generation tells.
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice number) {
  if (device_of(number) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = 9;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = 132;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice number) {
  const CUcontext device = device_of(number);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const std::lock_guard lock(mutex);
  ++device->retained;
  *context = device;
  return CUDA_SUCCESS;
}

// "The primary context is automatically reset once the last reference to it is released" (CUDA
// Driver API), and with it goes all that was made in it.
CUresult cuDevicePrimaryCtxRelease(CUdevice number) {
  const CUcontext device = device_of(number);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  {
    const std::lock_guard lock(mutex);
    if (device->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--device->retained > 0) return CUDA_SUCCESS;
  }
  forget_streams_of(device);
  forget_kernels_of(device);
  forget_memory_of(device);
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  const std::lock_guard lock(mutex);
  if (context != nullptr &&
      std::find(visible().begin(), visible().end(), context) == visible().end())
    return CUDA_ERROR_INVALID_CONTEXT;
  current = context;
  return CUDA_SUCCESS;
}

// The stack is the thread's (CUDA Driver API, "Context Management").
CUresult cuCtxPushCurrent(CUcontext context) {
  const CUcontext before = current;
  const CUresult result = cuCtxSetCurrent(context);
  if (result == CUDA_SUCCESS) below.push_back(before);
  return result;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  if (below.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = current;
  current = below.back();
  below.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = current_context();
  return CUDA_SUCCESS;
}
