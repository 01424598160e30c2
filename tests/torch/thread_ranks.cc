// Engines over in-process Peers, one thread each.
#include "tests/torch/thread_ranks.h"

#include <exception>
#include <thread>
#include <vector>

#include "tests/support/in_process_peers.h"

namespace hvd {
namespace {

void run_rank(InProcessHost& host, int rank, const std::function<void(const ThreadRank&)>& body) {
  Engine engine(host.peers(rank), {});
  body({rank, host.ranks(), &engine,
        [&engine](const BucketListSpec& spec) { return engine.make_bucket_list(spec); }});
  engine.shutdown();
}

}  // namespace

void run_as_threads(int size, const std::function<void(const ThreadRank&)>& body) {
  InProcessHost host(size);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          run_rank(host, rank, body);
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
