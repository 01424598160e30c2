// A program that uses libhvd, for the end-to-end tests: `late_worker WHERE RANK SECONDS`. RANK
// comes SECONDS late to init() (WHERE "init") or to the second sum ("sum"); all end after the
// third.
#include <hvd/hvd.h>
#include <poll.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

namespace {

using Seconds = std::chrono::duration<double>;

// The clock decides, not poll(), which begins anew when the process was stopped.
void wait_until(std::chrono::steady_clock::time_point end) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return;
    poll(nullptr, 0, int(left.count()));
  }
}

void run(const std::string& where, bool late, Seconds time) {
  const auto reach = [&](const char* place) {
    if (where != place) return;
    // Before it says so: it may be stopped at any moment afterwards.
    const auto end = std::chrono::steady_clock::now() +
                     std::chrono::duration_cast<std::chrono::nanoseconds>(time);
    std::puts(late ? "late" : "waiting");
    std::fflush(stdout);
    if (late) wait_until(end);
  };
  reach("init");
  hvd::init();
  std::vector<float> x(1000);
  for (int i = 0; i < 3; ++i) {
    if (i == 1) reach("sum");
    hvd::allreduce_(std::span(x));
  }
  hvd::shutdown();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const char* rank = std::getenv("HVD_RANK");
  try {
    run(argv[1], rank != nullptr && std::string(argv[2]) == rank, Seconds(std::atof(argv[3])));
    return 0;
  } catch (const hvd::Error& error) {
    std::fprintf(stderr, "worker: %s\n", error.what());
    return 3;
  }
}
