// A job that waits for ever: rank 0 never comes to what all others are blocked in. `blocked_rank
// WAIT`, where WAIT is
//
// - call: a synchronous allreduce
// - async: wait() of an asynchronous one
// - step: the end of an optimizer's step, where its buckets are waited for
//
// The others print "blocked" before they go in. A signal ends it.
#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string_view>

#include "hvd/hvd.h"
#include "runtime/context.h"
#include "runtime/engine/bucket_list.h"

namespace {

void wait_in(std::string_view what) {
  std::array<float, 1024> data{};
  std::unique_ptr<hvd::BucketList> list;
  if (what == "step")  // of all ranks
    list = hvd::context()->engine().make_bucket_list({.name = "optimizer",
                                                      .buckets = {{.count = data.size()}},
                                                      .parameters = 1,
                                                      .layout = "op Sum\nweight float32 [1024]",
                                                      .reduction = {hvd::ReduceOp::kSum}});
  if (hvd::rank() == 0) {
    pause();
    return;
  }
  std::puts("blocked");
  std::fflush(stdout);
  if (list) {
    list->ready(0, hvd::BucketList::Home::kHome);
    list->finish({.poison = "", .used = {1}});
  } else if (what == "async") {
    hvd::allreduce_async_(std::span(data), {.name = "blocked"})->wait();
  } else {
    hvd::allreduce_(std::span(data));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc == 2 ? argv[1] : "";
  if (what != "call" && what != "async" && what != "step") {
    std::fputs("blocked_rank: which wait? call, async or step\n", stderr);
    return 2;
  }
  try {
    hvd::init();
    wait_in(what);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "blocked_rank: %s\n", error.what());
    return 1;
  }
}
