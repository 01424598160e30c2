// A rank as a program has it: linked with libhvd.so, its sums on a GPU by the plug-in.
//
//   device_worker ROUNDS [ORDINAL]   sums in rounds, 0: until it is ended; on the GPU of its local
//                                    rank, or on that one
#include <poll.h>

#include <cstdio>
#include <cstdlib>

#include "hvd/hvd.h"
#include "runtime/context.h"
#include "tests/nccl/standin.h"

namespace {

constexpr size_t kCount = 10'000;

// Every other rank may still be at the round before.
bool sum_is_right(hvd::Engine& engine, const std::shared_ptr<std::byte>& memory, int round) {
  auto* values = static_cast<float*>(hvd_standin_memory(memory.get()));
  for (size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(round + hvd::rank());
  auto events = std::make_shared<hvd::DeviceEvents>(*engine.device());
  events->begin_behind(nullptr);
  auto submission = std::make_unique<hvd::Submission>();
  submission->name = "sum";
  submission->keep_alive = memory;
  submission->operation.kind = hvd::OperationKind::kAllreduce;
  submission->operation.result = {memory.get(), kCount, hvd::DataType::kFloat32};
  submission->operation.reduction.op = hvd::ReduceOp::kSum;
  events->give_to(submission->operation);
  const auto work = engine.submit(std::move(submission));
  work->wait();
  while (!work->done()) poll(nullptr, 0, 1);
  work->wait();
  const auto size = static_cast<float>(hvd::size());
  const float wanted = size * static_cast<float>(round) + size * (size - 1) / 2;
  for (size_t i = 0; i < kCount; ++i)
    if (values[i] != wanted) return false;
  return true;
}

}  // namespace

int main(int argc, char** argv) try {
  const int rounds = std::atoi(argv[1]);
  hvd::init();
  const auto context = hvd::context();
  context->use_device(argc > 2 ? std::atoi(argv[2]) : hvd::local_rank());
  hvd::Engine& engine = context->engine();
  const std::shared_ptr<std::byte> memory = engine.device()->allocate(kCount * sizeof(float));
  for (int round = 0; rounds == 0 || round < rounds; ++round) {
    if (!sum_is_right(engine, memory, round)) {
      std::printf("wrong sum in round %d\n", round);
      return 1;
    }
    if (round == 0) std::printf("%s\n", engine.device()->description().c_str());
    std::fflush(stdout);
  }
  hvd::shutdown();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 3;
}
