// Prints hvdrun's man page; run while building.
#include <cstdio>

#include "cli/help.h"

int main() {
  const bool written = std::fputs(hvd::man_page().c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  return written ? 0 : 1;
}
