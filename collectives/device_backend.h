// What the engine needs of a device: a communicator on it, and events to order its work by.
//
// Made by a plug-in that knows the device's libraries (collectives/nccl); none is loaded for a
// program that uses no device. Streams and events are the vendor's own: CUstream and CUevent.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "collectives/communicator.h"
#include "collectives/peers.h"
#include "collectives/types.h"

namespace hvd {

class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;

  virtual int ordinal() const = 0;  // of the devices that are visible to this process
  // "NCCL 2.28.9 on GPU 0, NVIDIA H100 80GB HBM3"
  virtual std::string description() const = 0;
  // Among the members of `control`, each with a device of its own. What is started there has been
  // ordered and compared; see Operation::on_device. No collective. This, `peers` and `control`,
  // which gets operations from there and is moved by its owner, outlive it.
  virtual std::unique_ptr<Communicator> make_communicator(Peers& peers, const std::string& name,
                                                          Communicator& control) = 0;
  // Device memory that its communicators move without a copy once it is registered. It may come in
  // large pieces, so a list of buckets asks for one. Any thread. Throws kUnavailable, with both
  // figures, when there is no room.
  virtual std::shared_ptr<std::byte> allocate(size_t bytes) = 0;
  // The same of memory that is never registered.
  virtual std::shared_ptr<std::byte> allocate_plain(size_t bytes) = 0;
  // Any thread: does this lie in memory that may be registered?
  virtual bool has(const void* data) const = 0;

  // Any thread. Throws kUnavailable.
  virtual void* take_event() = 0;
  virtual void give_back(void* event) noexcept = 0;
  // The event has passed when all that is in the stream by now has been done.
  virtual void record(void* event, void* stream) = 0;
  // What comes into the stream from now on begins once the event has passed.
  virtual void wait(void* stream, void* event) = 0;

  // Any thread. Copies all of them, each element times `factor` before it is rounded, behind what
  // is in the stream and in no order of their own, by as few launches as it can: one for some
  // hundred. Throws kUnavailable, and so always where the device has no kernel for it.
  virtual void cast(std::span<const Cast> casts, double factor, void* stream) = 0;
  virtual bool can_cast() const = 0;
};

// An operation's events, for as long as anybody may look at them.
class DeviceEvents {
 public:
  explicit DeviceEvents(DeviceBackend& device) : device_(device), ready_(device.take_event()) {
    try {
      done_ = device.take_event();
    } catch (...) {
      device.give_back(ready_);
      throw;
    }
  }
  ~DeviceEvents() {
    device_.give_back(ready_);
    device_.give_back(done_);
  }
  DeviceEvents(const DeviceEvents&) = delete;
  DeviceEvents& operator=(const DeviceEvents&) = delete;

  void give_to(Operation& operation) const {
    operation.on_device = true;
    operation.ready = ready_;
    operation.done = done_;
  }
  // Its tensors are there once what is in `stream` by now has been done.
  void begin_behind(void* stream) const { device_.record(ready_, stream); }
  // And what is in this one by now.
  void begin_behind_also(void* stream) const {
    device_.wait(stream, ready_);
    device_.record(ready_, stream);
  }
  // What comes into `stream` from now on sees its result. Once it is launched.
  void join(void* stream) const { device_.wait(stream, done_); }

 private:
  DeviceBackend& device_;
  void* ready_ = nullptr;
  void* done_ = nullptr;
};

struct DeviceOptions {
  int ordinal = 0;           // of the devices that are visible to this process
  std::string cuda_library;  // empty: libcuda.so.1
  std::string nccl_library;  // empty: the one that the process has, or libnccl.so.2
};

}  // namespace hvd
