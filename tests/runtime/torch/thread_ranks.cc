// Engines over in-process Peers, one thread each.
#include "tests/runtime/torch/thread_ranks.h"

#include <exception>
#include <thread>

#include "tests/support/in_process_world.h"

namespace hvd {
namespace {

void run_rank(InProcessWorld& world, int rank, const std::function<void(const ThreadRank&)>& body) {
  Engine engine(world.peers(rank), {});
  body({rank, world.size(), &engine, &world.host_of(rank),
        [&engine](const BucketListSpec& spec) { return engine.make_bucket_list(spec); }});
  engine.shutdown();
}

}  // namespace

void run_as_threads(int size, const std::function<void(const ThreadRank&)>& body) {
  run_as_threads(std::vector{size}, body);
}

void run_as_threads(const std::vector<int>& ranks_per_host,
                    const std::function<void(const ThreadRank&)>& body) {
  InProcessWorld world(ranks_per_host);
  const int size = world.size();
  std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          run_rank(world, rank, body);
        } catch (...) {
          errors[static_cast<size_t>(rank)] = std::current_exception();
        }
      });
    }
  }
  std::exception_ptr fallout;
  for (const std::exception_ptr& error : errors) {
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const CommFailure&) {
      if (!fallout) fallout = error;
    }
  }
  if (fallout) std::rethrow_exception(fallout);
}

}  // namespace hvd
