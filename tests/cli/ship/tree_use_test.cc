#include "cli/ship/tree_use.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>

#include <ctime>

#include "runtime/base/deadline.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

constexpr timespec kThen[2] = {{1'000'000'000, 0}, {1'000'000'000, 0}};

UniqueFd opened(const TemporaryDirectory& folder) {
  return UniqueFd(open(folder.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

bool is_young(const TemporaryDirectory& folder) {
  struct stat facts{};
  return stat(folder.path().c_str(), &facts) == 0 && time(nullptr) - facts.st_mtim.tv_sec < 3600;
}

}  // namespace

TEST_CASE("tree_use: trees are said to be used again and again") {
  const TemporaryDirectory first, second;
  std::vector<UniqueFd> trees;
  trees.push_back(opened(first));
  trees.push_back(opened(second));
  const TreeUse use(std::move(trees), 1ms);
  for (int i = 0; i < 3; ++i) {
    for (const TemporaryDirectory* one : {&first, &second})
      CHECK(utimensat(AT_FDCWD, one->path().c_str(), kThen, 0) == 0);
    const Deadline deadline = Deadline::in(30s);
    while (!(is_young(first) && is_young(second)) && !deadline.passed()) poll(nullptr, 0, 1);
    CHECK(is_young(first));
    CHECK(is_young(second));
  }
}

TEST_CASE("tree_use: its end does not wait for the next time") {
  const TemporaryDirectory folder;
  std::vector<UniqueFd> trees;
  trees.push_back(opened(folder));
  const auto begin = Clock::now();
  {
    const TreeUse use(std::move(trees));
  }
  CHECK(Clock::now() - begin < 60s);
}

}  // namespace hvd
