#include "tests/runtime/torch/device/ranks.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>

#include "tests/collectives/nccl/device_ranks.h"
#include "tests/collectives/nccl/standin.h"
#include "tests/runtime/torch/training.h"

namespace hvd {

nets::MakeNet on_device(const ThreadRank& rank, const nets::MakeNet& make) {
  return [device = device_of(rank), make] {
    auto net = make();
    nets::move_to(*net, device);
    return net;
  };
}

void order(const c10::Stream& later, const c10::Stream& earlier) {
  c10::Event event(later.device_type());
  event.record(earlier);
  event.block(later);
}

void run_on_devices(int size, const std::function<void(const ThreadRank&)>& body) {
  run_as_threads(size, [&](const ThreadRank& rank) {
    use_one_thread();
    const c10::DeviceGuard guard(device_of(rank));
    rank.engine->use_device(standin_backend(rank.rank));
    body(rank);
  });
}

void check_on_devices(const std::function<void(const ThreadRank&)>& body) {
  for (const int size : {1, 2, 4}) {
    INFO("np " << size);
    CHECK_THAT(error_of([&] { run_on_devices(size, body); }), Catch::Equals(""));
  }
}

StandinSetting::StandinSetting(const char* name, const char* value) : name_(name) {
  hvd_standin_set(name, value);
}
StandinSetting::~StandinSetting() { hvd_standin_set(name_, nullptr); }

}  // namespace hvd
