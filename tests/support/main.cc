// main() of every Catch2 test program; started again as `--rank-program NAME` it is a rank.
#define CATCH_CONFIG_RUNNER
#include <signal.h>
#include <sys/prctl.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/rank_program.h"

namespace hvd {
namespace {

std::map<std::string, int (*)()>& programs() {
  static std::map<std::string, int (*)()> instance;
  return instance;
}

}  // namespace

RankProgram::RankProgram(const char* name, int (*program)()) { programs()[name] = program; }

}  // namespace hvd

int main(int argc, char** argv) {
  if (argc != 3 || std::strcmp(argv[1], "--rank-program") != 0)
    return Catch::Session().run(argc, argv);
  const auto found = hvd::programs().find(argv[2]);
  if (found == hvd::programs().end()) {
    std::fprintf(stderr, "no rank program \"%s\"\n", argv[2]);
    return 127;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that is ended leaves no rank behind
  return found->second();
}
