// A rank's device over an NCCL some of whose calls are a test's own: for failures that no setting
// of the stand-in has.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "collectives/nccl/nccl_communicator.h"
#include "tests/collectives/nccl/device_ranks.h"

namespace hvd {

class ReplacedNccl final : public DeviceBackend {
 public:
  ReplacedNccl(int rank, const std::function<void(NcclLibrary&)>& replace,
               const NcclLimits& limits = {})
      : rank_(rank), limits_(limits), usual_(standin_backend(rank)), nccl_(standin_nccl()) {
    if (replace) replace(nccl_);
  }

  std::unique_ptr<Communicator> make_communicator(Peers& peers, const std::string& name,
                                                  Communicator& control) override {
    return std::make_unique<NcclCommunicator>(peers, standin_device(rank_), nccl_, name, control,
                                              limits_);
  }
  int ordinal() const override { return usual_.ordinal(); }
  std::string description() const override { return usual_.description(); }
  std::shared_ptr<std::byte> allocate(size_t bytes) override { return usual_.allocate(bytes); }
  std::shared_ptr<std::byte> allocate_plain(size_t bytes) override {
    return usual_.allocate_plain(bytes);
  }
  bool has(const void* data) const override { return usual_.has(data); }
  void* take_event() override { return usual_.take_event(); }
  void give_back(void* event) noexcept override { usual_.give_back(event); }
  void record(void* event, void* stream) override { usual_.record(event, stream); }
  void wait(void* stream, void* event) override { usual_.wait(stream, event); }
  void cast(std::span<const Cast> casts, double factor, void* stream) override {
    usual_.cast(casts, factor, stream);
  }
  bool can_cast() const override { return usual_.can_cast(); }

 private:
  const int rank_;
  const NcclLimits limits_;
  DeviceBackend& usual_;
  NcclLibrary nccl_;
};

}  // namespace hvd
